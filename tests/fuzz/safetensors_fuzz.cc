// libFuzzer target of the safetensors reader. The input is a file, or, when it begins with '+', edits (offset, byte) of
// a valid one: any bytes give a file or a status, and what is let through can be read in full.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "engine/model/files/safetensors.h"

namespace {

std::vector<uint8_t> ValidFile() {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b.weight":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},"c":{"dtype":"I8","shape":[],"data_offsets":[32,33]}})";
  std::vector<uint8_t> out(8 + header.size() + 33);
  const uint64_t length = header.size();
  std::memcpy(out.data(), &length, 8);
  std::memcpy(out.data() + 8, header.data(), header.size());
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<uint8_t> file(data, data + size);
  if (size > 0 && data[0] == '+') {
    file = ValidFile();
    for (size_t i = 1; i + 1 < size; i += 2) file[data[i] % file.size()] = data[i + 1];
  }
  const auto read = baton::engine::SafetensorsFile::Parse(file, "fuzz");
  if (!read.ok()) return 0;
  uint8_t sum = 0;
  for (const baton::engine::SafeTensor& tensor : (*read)->tensors()) {
    for (uint8_t byte : (*read)->Bytes(tensor)) sum ^= byte;
    if ((*read)->Find(tensor.name) != &tensor) __builtin_trap();  // names are unique
  }
  volatile uint8_t sink = sum;  // keeps the reads
  (void)sink;
  return 0;
}
