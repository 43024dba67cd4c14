// Writes GGUF files for tests: valid unless a field is set to a lie.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "common/gguf.h"

namespace baton {

class GgufBuilder {
 public:
  uint32_t version = 3;
  int64_t tensor_count_lie = -1;  ///< written instead of the true count if ≥ 0
  int64_t pair_count_lie = -1;
  uint64_t alignment = 32;  ///< of the data section; AddUint("general.alignment") tells the reader

  /// Appends one metadata pair with raw value bytes.
  GgufBuilder& AddRaw(std::string_view key, GgufValueType type, std::string_view value) {
    Text(pairs_, key);
    Number(pairs_, static_cast<uint32_t>(type));
    pairs_ += value;
    ++pair_count_;
    return *this;
  }
  GgufBuilder& AddUint(std::string_view key, uint32_t value) { return AddRaw(key, GgufValueType::kU32, Bytes(value)); }
  GgufBuilder& AddString(std::string_view key, std::string_view value) {
    std::string raw;
    Text(raw, value);
    return AddRaw(key, GgufValueType::kString, raw);
  }
  GgufBuilder& AddStrings(std::string_view key, const std::vector<std::string>& values) {
    std::string raw = Bytes(static_cast<uint32_t>(GgufValueType::kString)) + Bytes(uint64_t{values.size()});
    for (const std::string& value : values) Text(raw, value);
    return AddRaw(key, GgufValueType::kArray, raw);
  }
  template <typename T>
  GgufBuilder& AddNumbers(std::string_view key, GgufValueType type, const std::vector<T>& values) {
    std::string raw = Bytes(static_cast<uint32_t>(type)) + Bytes(uint64_t{values.size()});
    for (T value : values) raw += Bytes(value);
    return AddRaw(key, GgufValueType::kArray, raw);
  }
  /// A table entry; the data is the caller's (see Build).
  GgufBuilder& AddTensor(std::string_view name, std::vector<uint64_t> dims, uint32_t type, uint64_t offset) {
    Text(tensors_, name);
    Number(tensors_, static_cast<uint32_t>(dims.size()));
    for (uint64_t dim : dims) Number(tensors_, dim);
    Number(tensors_, type);
    Number(tensors_, offset);
    ++tensor_count_;
    return *this;
  }

  /// The file with `data_bytes` bytes of tensor data: 0, 1, 2, ...
  std::vector<uint8_t> Build(size_t data_bytes = 0) const {
    std::string out = "GGUF" + Bytes(version);
    Number(out, tensor_count_lie >= 0 ? static_cast<uint64_t>(tensor_count_lie) : tensor_count_);
    Number(out, pair_count_lie >= 0 ? static_cast<uint64_t>(pair_count_lie) : pair_count_);
    out += pairs_ + tensors_;
    out.resize((out.size() + alignment - 1) / alignment * alignment);
    for (size_t i = 0; i < data_bytes; ++i) out += static_cast<char>(i);
    return {out.begin(), out.end()};
  }

  template <typename T>
  static std::string Bytes(T value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
  }

 private:
  template <typename T>
  static void Number(std::string& out, T value) {
    out += Bytes(value);
  }
  static void Text(std::string& out, std::string_view text) {
    Number(out, uint64_t{text.size()});
    out += text;
  }

  std::string pairs_;
  std::string tensors_;
  uint64_t pair_count_ = 0;
  uint64_t tensor_count_ = 0;
};

}  // namespace baton
