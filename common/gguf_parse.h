// The parser behind GgufFile (common/gguf.h). Reads forward once; every step checks what it needs before it reads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/gguf.h"

namespace baton {

/// Call Header, Metadata, Tensors in this order; stop at the first error. `bytes` and `name` must outlive it.
class GgufParser {
 public:
  GgufParser(absl::Span<const uint8_t> bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  absl::Status Header();
  absl::Status Metadata(absl::flat_hash_map<std::string_view, GgufValue>& out);
  absl::Status Tensors(std::vector<GgufTensor>& out, absl::flat_hash_map<std::string_view, size_t>& index);
  uint32_t version() const { return version_; }

 private:
  uint64_t left() const { return bytes_.size() - at_; }
  absl::Status Bad(const std::string& what) const;
  absl::Status Need(uint64_t bytes, std::string_view what) const;
  template <typename T>
  absl::StatusOr<T> Number(std::string_view what);
  absl::StatusOr<std::string_view> String(std::string_view what);
  absl::StatusOr<GgufValue> Value(std::string_view key);
  absl::Status Array(std::string_view key, GgufValue& value);
  absl::StatusOr<GgufTensor> Tensor();
  absl::Status Place(GgufTensor& tensor, uint64_t data_start) const;

  absl::Span<const uint8_t> bytes_;
  const std::string& name_;
  uint64_t at_ = 0;  // ≤ bytes_.size()
  uint32_t version_ = 0;
  uint64_t tensor_count_ = 0;
  uint64_t pair_count_ = 0;
  uint64_t alignment_ = 32;  // general.alignment
};

}  // namespace baton
