// libFuzzer target of the GGUF reader: any bytes give a file or a status; what is let through can be read in full.
#include <cstddef>
#include <cstdint>

#include "common/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = baton::GgufFile::Parse({data, size}, "fuzz");
  if (!file.ok()) return 0;
  uint8_t sum = 0;
  for (const baton::GgufTensor& tensor : (*file)->tensors()) {
    for (uint8_t byte : (*file)->Bytes(tensor)) sum ^= byte;
  }
  for (const auto& [key, value] : (*file)->metadata()) {
    for (uint8_t byte : value.raw) sum ^= byte;
    for (std::string_view text : value.strings) sum ^= static_cast<uint8_t>(text.empty() ? 0 : text.back());
    (void)(*file)->GetInt(key);
    (void)(*file)->GetFloats(key);
    (void)(*file)->GetInts(key);
  }
  volatile uint8_t sink = sum;  // keeps the reads
  (void)sink;
  return 0;
}
