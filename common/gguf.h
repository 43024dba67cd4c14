// A reader of GGUF files (versions 2 and 3, little-endian): header, metadata, tensor table. Owns a read-only mapping.
//
// The file is not trusted: every count, length and offset is checked against the file's size before it is used, and
// nothing is allocated by a number that the file could not back with bytes. Tensor data is not looked at.
// Format: the GGUF specification of the ggml project.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/mapped_file.h"

namespace baton {

/// Element types of tensors; the numbers are the file's.
enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ8_1 = 9,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kQ8_K = 15,
  kIQ2_XXS = 16,
  kIQ2_XS = 17,
  kIQ3_XXS = 18,
  kIQ1_S = 19,
  kIQ4_NL = 20,
  kIQ3_S = 21,
  kIQ2_S = 22,
  kIQ4_XS = 23,
  kI8 = 24,
  kI16 = 25,
  kI32 = 26,
  kI64 = 27,
  kF64 = 28,
  kIQ1_M = 29,
  kBF16 = 30,
  kTQ1_0 = 34,
  kTQ2_0 = 35,
  kMXFP4 = 39,
};

/// A block is `elements` consecutive elements of a row, stored in `bytes` bytes.
struct GgmlBlock {
  std::string_view name;  ///< "Q4_K"; empty: no such type
  uint32_t elements;
  uint32_t bytes;
};
/// {"", 0, 0} for a number that names no type.
GgmlBlock GgmlBlockOf(GgmlType type);

/// Types of metadata values; the numbers are the file's.
enum class GgufValueType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};
std::string_view GgufValueTypeName(GgufValueType type);

/// One metadata value. Views point into the mapping.
struct GgufValue {
  GgufValueType type;
  GgufValueType element_type;             ///< arrays: of the elements; else = type
  uint64_t count;                         ///< arrays: elements; else 1
  absl::Span<const uint8_t> raw;          ///< numbers and bools: count × size bytes, unaligned; empty for strings
  std::vector<std::string_view> strings;  ///< strings
};

/// One tensor of the table.
struct GgufTensor {
  std::string_view name;
  /// 1 to 4, ggml's order: dims[0] is contiguous (a [rows, columns] matrix has {columns, rows}).
  std::vector<uint64_t> dims;
  GgmlType type;
  uint64_t offset;  ///< from the start of the file
  uint64_t bytes;
  uint64_t elements() const;
};

/// An opened file. Immutable; every method may be called from any thread.
class GgufFile {
 public:
  /// NotFound: no such file. InvalidArgument: not GGUF, or a lie in it (with the numbers). Messages name the path.
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& path);
  /// Reads `bytes`, which must outlive the result. `name` is for messages.
  static absl::StatusOr<std::unique_ptr<GgufFile>> Parse(absl::Span<const uint8_t> bytes, std::string name);

  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const std::string& name() const { return name_; }
  uint32_t version() const { return version_; }

  /// Metadata. Find: null if absent. The others: NotFound if absent, InvalidArgument if of another type, negative where
  /// unsigned is asked, or out of range.
  const GgufValue* Find(std::string_view key) const;
  absl::StatusOr<uint64_t> GetUint(std::string_view key) const;  ///< any integer type
  absl::StatusOr<int64_t> GetInt(std::string_view key) const;    ///< any integer type
  absl::StatusOr<double> GetFloat(std::string_view key) const;   ///< F32, F64
  absl::StatusOr<bool> GetBool(std::string_view key) const;
  absl::StatusOr<std::string_view> GetString(std::string_view key) const;
  absl::StatusOr<absl::Span<const std::string_view>> GetStrings(std::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> GetInts(std::string_view key) const;  ///< array of any integer type or bool
  absl::StatusOr<std::vector<float>> GetFloats(std::string_view key) const;  ///< array of F32
  const absl::flat_hash_map<std::string_view, GgufValue>& metadata() const { return metadata_; }

  /// Tensors in the table's order.
  absl::Span<const GgufTensor> tensors() const { return tensors_; }
  const GgufTensor* FindTensor(std::string_view name) const;
  /// The tensor's bytes in the mapping.
  absl::Span<const uint8_t> Bytes(const GgufTensor& tensor) const {
    return bytes_.subspan(tensor.offset, tensor.bytes);
  }

 private:
  GgufFile(absl::Span<const uint8_t> bytes, std::string name) : bytes_(bytes), name_(std::move(name)) {}
  absl::Status ParseAll();
  absl::StatusOr<const GgufValue*> Typed(std::string_view key, bool array) const;
  absl::Status WrongType(std::string_view key, const GgufValue& value, std::string_view wanted) const;

  absl::Span<const uint8_t> bytes_;
  std::string name_;
  std::unique_ptr<MappedFile> mapping_;  // null when the bytes are the caller's
  uint32_t version_ = 0;
  absl::flat_hash_map<std::string_view, GgufValue> metadata_;
  std::vector<GgufTensor> tensors_;
  absl::flat_hash_map<std::string_view, size_t> tensor_index_;
};

}  // namespace baton
