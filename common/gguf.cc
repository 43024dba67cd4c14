#include "common/gguf.h"

#include <cstring>
#include <limits>

#include "common/gguf_parse.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton {
namespace {

/// Element `i` of a number array, or the number itself (i = 0). The mapping need not be aligned.
template <typename T>
T Load(const GgufValue& value, uint64_t i) {
  T x;
  std::memcpy(&x, value.raw.data() + i * sizeof(T), sizeof(T));
  return x;
}

/// The same for any integer type or bool; false if it is none or does not fit int64.
bool LoadInt(const GgufValue& value, uint64_t i, int64_t* out) {
  switch (value.element_type) {
    case GgufValueType::kBool: *out = Load<uint8_t>(value, i) != 0; return true;
    case GgufValueType::kU8: *out = Load<uint8_t>(value, i); return true;
    // NOLINTNEXTLINE(bugprone-signed-char-misuse): a number
    case GgufValueType::kI8: *out = Load<int8_t>(value, i); return true;
    case GgufValueType::kU16: *out = Load<uint16_t>(value, i); return true;
    case GgufValueType::kI16: *out = Load<int16_t>(value, i); return true;
    case GgufValueType::kU32: *out = Load<uint32_t>(value, i); return true;
    case GgufValueType::kI32: *out = Load<int32_t>(value, i); return true;
    case GgufValueType::kI64: *out = Load<int64_t>(value, i); return true;
    case GgufValueType::kU64: {
      const uint64_t x = Load<uint64_t>(value, i);
      *out = static_cast<int64_t>(x);
      return x <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    }
    default: return false;
  }
}

std::string Describe(const GgufValue& value) {
  if (value.type != GgufValueType::kArray) return std::string(GgufValueTypeName(value.type));
  return StrCat("array of ", value.count, " ", GgufValueTypeName(value.element_type));
}

}  // namespace

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> mapping, MappedFile::Open(path));
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, Parse(mapping->bytes(), path));
  file->mapping_ = std::move(mapping);
  return file;
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Parse(absl::Span<const uint8_t> bytes, std::string name) {
  std::unique_ptr<GgufFile> file(new GgufFile(bytes, std::move(name)));
  BATON_RETURN_IF_ERROR(file->ParseAll());
  return file;
}

absl::Status GgufFile::ParseAll() {
  GgufParser parser(bytes_, name_);
  BATON_RETURN_IF_ERROR(parser.Header());
  BATON_RETURN_IF_ERROR(parser.Metadata(metadata_));
  version_ = parser.version();
  return parser.Tensors(tensors_, tensor_index_);
}

const GgufValue* GgufFile::Find(std::string_view key) const {
  const auto it = metadata_.find(key);
  return it == metadata_.end() ? nullptr : &it->second;
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

absl::StatusOr<const GgufValue*> GgufFile::Typed(std::string_view key, bool array) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return absl::NotFoundError(StrCat(name_, ": no metadata key \"", key, "\""));
  if ((value->type == GgufValueType::kArray) != array) return WrongType(key, *value, array ? "an array" : "one value");
  return value;
}

absl::Status GgufFile::WrongType(std::string_view key, const GgufValue& value, std::string_view wanted) const {
  return absl::InvalidArgumentError(StrCat(name_, ": \"", key, "\" is ", Describe(value), ", not ", wanted));
}

absl::StatusOr<int64_t> GgufFile::GetInt(std::string_view key) const {
  BATON_ASSIGN_OR_RETURN(const GgufValue* value, Typed(key, false));
  int64_t x = 0;
  if (value->type == GgufValueType::kBool || !LoadInt(*value, 0, &x)) return WrongType(key, *value, "an int64");
  return x;
}

absl::StatusOr<uint64_t> GgufFile::GetUint(std::string_view key) const {
  BATON_ASSIGN_OR_RETURN(const GgufValue* value, Typed(key, false));
  if (value->type == GgufValueType::kU64) return Load<uint64_t>(*value, 0);
  BATON_ASSIGN_OR_RETURN(const int64_t x, GetInt(key));
  if (x < 0) return absl::InvalidArgumentError(StrCat(name_, ": \"", key, "\" is ", x, ", below 0"));
  return static_cast<uint64_t>(x);
}

absl::StatusOr<double> GgufFile::GetFloat(std::string_view key) const {
  BATON_ASSIGN_OR_RETURN(const GgufValue* value, Typed(key, false));
  if (value->type == GgufValueType::kF32) return static_cast<double>(Load<float>(*value, 0));
  if (value->type == GgufValueType::kF64) return Load<double>(*value, 0);
  return WrongType(key, *value, "a float");
}

absl::StatusOr<bool> GgufFile::GetBool(std::string_view key) const {
  BATON_ASSIGN_OR_RETURN(const GgufValue* value, Typed(key, false));
  if (value->type != GgufValueType::kBool) return WrongType(key, *value, "a bool");
  return Load<uint8_t>(*value, 0) != 0;
}

absl::StatusOr<std::string_view> GgufFile::GetString(std::string_view key) const {
  BATON_ASSIGN_OR_RETURN(const GgufValue* value, Typed(key, false));
  if (value->type != GgufValueType::kString) return WrongType(key, *value, "a string");
  return value->strings[0];
}

absl::StatusOr<absl::Span<const std::string_view>> GgufFile::GetStrings(std::string_view key) const {
  BATON_ASSIGN_OR_RETURN(const GgufValue* value, Typed(key, true));
  if (value->element_type != GgufValueType::kString) return WrongType(key, *value, "an array of strings");
  return absl::Span<const std::string_view>(value->strings);
}

absl::StatusOr<std::vector<int64_t>> GgufFile::GetInts(std::string_view key) const {
  BATON_ASSIGN_OR_RETURN(const GgufValue* value, Typed(key, true));
  std::vector<int64_t> out(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    if (!LoadInt(*value, i, &out[i])) return WrongType(key, *value, "an array of int64");
  }
  return out;
}

absl::StatusOr<std::vector<float>> GgufFile::GetFloats(std::string_view key) const {
  BATON_ASSIGN_OR_RETURN(const GgufValue* value, Typed(key, true));
  if (value->element_type != GgufValueType::kF32) return WrongType(key, *value, "an array of float32");
  std::vector<float> out(value->count);
  if (!out.empty()) std::memcpy(out.data(), value->raw.data(), value->raw.size());
  return out;
}

}  // namespace baton
