// A reader of one safetensors file: 8 bytes of header length, a JSON header, data. It owns a read-only mapping.
//
// The file is not trusted: the header's size, nesting, names, types, shapes and offsets are checked against the file
// before anything is used, and nothing is allocated by a number that the file could not back with bytes.
// Format: the safetensors project's description (little-endian, row-major, data without holes or overlaps).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/dtype.h"
#include "common/mapped_file.h"

namespace baton::engine {

struct SafeTensor {
  std::string name;
  std::string type;             ///< the file's word: "BF16"
  std::vector<int64_t> shape;   ///< row-major; empty: a scalar
  uint64_t begin = 0, end = 0;  ///< in the data section
};

/// The engine's type of the file's word, where it has one.
std::optional<DType> DTypeOfSafetensors(std::string_view type);

/// Parses the JSON header. Errors start with `name`. Tensors come in order of `begin`.
absl::StatusOr<std::vector<SafeTensor>> ParseSafetensorsHeader(std::string_view json, uint64_t data_bytes,
                                                               const std::string& name);

/// An opened file. Immutable; any thread.
class SafetensorsFile {
 public:
  /// NotFound: no such file. InvalidArgument: not safetensors, or a lie in it (with the numbers).
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  /// Reads `bytes`, which must outlive the result. `name` is for messages.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Parse(absl::Span<const uint8_t> bytes, std::string name);

  const std::string& name() const { return name_; }
  absl::Span<const SafeTensor> tensors() const { return tensors_; }
  const SafeTensor* Find(std::string_view name) const;
  /// The tensor's bytes; not aligned.
  absl::Span<const uint8_t> Bytes(const SafeTensor& tensor) const {
    return data_.subspan(tensor.begin, tensor.end - tensor.begin);
  }

 private:
  SafetensorsFile() = default;
  absl::Status ReadHeader(absl::Span<const uint8_t> bytes);

  std::string name_;
  std::unique_ptr<MappedFile> mapping_;  // null when the bytes are the caller's
  absl::Span<const uint8_t> data_;
  std::vector<SafeTensor> tensors_;
  absl::flat_hash_map<std::string, size_t> index_;
};

}  // namespace baton::engine
