// Parsing of GGUF: the only code that touches bytes before they are known to be right.
#include "common/gguf_parse.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/foreign_text.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF files are little-endian");

constexpr uint64_t kMaxStringBytes = 64ull << 20;  // a chat template or a vocabulary entry is far below
constexpr uint64_t kMaxAlignment = 1ull << 20;
// The least bytes that one entry takes in the file; a count that the rest of the file cannot hold is a lie.
constexpr uint64_t kMinPairBytes = 8 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;
constexpr uint64_t kMinStringBytes = 8;

/// Bytes of a number of this type; 0 for strings, arrays and unknown types.
uint64_t NumberBytes(GgufValueType type) {
  switch (type) {
    case GgufValueType::kU8:
    case GgufValueType::kI8:
    case GgufValueType::kBool: return 1;
    case GgufValueType::kU16:
    case GgufValueType::kI16: return 2;
    case GgufValueType::kU32:
    case GgufValueType::kI32:
    case GgufValueType::kF32: return 4;
    case GgufValueType::kU64:
    case GgufValueType::kI64:
    case GgufValueType::kF64: return 8;
    case GgufValueType::kString:
    case GgufValueType::kArray: return 0;
  }
  return 0;
}

}  // namespace

absl::Status GgufParser::Bad(const std::string& what) const {
  return absl::InvalidArgumentError(StrCat(name_, ": ", what));
}

absl::Status GgufParser::Need(uint64_t bytes, std::string_view what) const {
  if (bytes <= left()) return absl::OkStatus();
  return Bad(StrCat("truncated: ", Printable(what), " needs ", bytes, " bytes at offset ", at_, ", the file has ",
                    left(), " left of ", bytes_.size()));
}

template <typename T>
absl::StatusOr<T> GgufParser::Number(std::string_view what) {
  BATON_RETURN_IF_ERROR(Need(sizeof(T), what));
  T value;
  std::memcpy(&value, bytes_.data() + at_, sizeof(T));
  at_ += sizeof(T);
  return value;
}

absl::StatusOr<std::string_view> GgufParser::String(std::string_view what) {
  BATON_ASSIGN_OR_RETURN(const uint64_t length, Number<uint64_t>(what));
  if (length > kMaxStringBytes) {
    return Bad(
        StrCat(Printable(what), ": string length ", length, " at offset ", at_ - 8, ", at most ", kMaxStringBytes));
  }
  BATON_RETURN_IF_ERROR(Need(length, what));
  std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + at_, length);
  at_ += length;
  return text;
}

absl::Status GgufParser::Header() {
  if (bytes_.size() < 4 || std::memcmp(bytes_.data(), "GGUF", 4) != 0) {
    return Bad("not a GGUF file: it does not begin with the bytes \"GGUF\"");
  }
  at_ = 4;
  BATON_ASSIGN_OR_RETURN(version_, Number<uint32_t>("version"));
  if (version_ != 2 && version_ != 3) {
    return Bad(StrCat("GGUF version ", version_, std::rotl(version_, 8) < 16 ? " (big-endian?)" : "",
                      ", versions 2 and 3 are supported"));
  }
  BATON_ASSIGN_OR_RETURN(tensor_count_, Number<uint64_t>("tensor count"));
  BATON_ASSIGN_OR_RETURN(pair_count_, Number<uint64_t>("metadata count"));
  if (tensor_count_ > left() / kMinTensorBytes) {
    return Bad(StrCat("tensor count ", tensor_count_, ", the file has only ", left(), " bytes left"));
  }
  if (pair_count_ > left() / kMinPairBytes) {
    return Bad(StrCat("metadata count ", pair_count_, ", the file has only ", left(), " bytes left"));
  }
  return absl::OkStatus();
}

absl::Status GgufParser::Array(std::string_view key, GgufValue& value) {
  BATON_ASSIGN_OR_RETURN(const uint32_t type, Number<uint32_t>(key));
  BATON_ASSIGN_OR_RETURN(value.count, Number<uint64_t>(key));
  value.element_type = static_cast<GgufValueType>(type);
  const uint64_t size = NumberBytes(value.element_type);
  if (size == 0 && value.element_type != GgufValueType::kString) {
    return Bad(StrCat(Quoted(key), ": arrays of type ", type, " are not supported"));
  }
  if (value.count > left() / (size == 0 ? kMinStringBytes : size)) {
    return Bad(StrCat(Quoted(key), ": array of ", value.count, " elements, the file has only ", left(), " bytes left"));
  }
  if (size != 0) {
    value.raw = bytes_.subspan(at_, value.count * size);
    at_ += value.raw.size();
    return absl::OkStatus();
  }
  value.strings.reserve(value.count);
  for (uint64_t i = 0; i < value.count; ++i) {
    BATON_ASSIGN_OR_RETURN(std::string_view text, String(key));
    value.strings.push_back(text);
  }
  return absl::OkStatus();
}

absl::StatusOr<GgufValue> GgufParser::Value(std::string_view key) {
  BATON_ASSIGN_OR_RETURN(const uint32_t type, Number<uint32_t>(key));
  GgufValue value{static_cast<GgufValueType>(type), static_cast<GgufValueType>(type), 1, {}, {}};
  if (value.type == GgufValueType::kArray) {
    BATON_RETURN_IF_ERROR(Array(key, value));
  } else if (value.type == GgufValueType::kString) {
    BATON_ASSIGN_OR_RETURN(std::string_view text, String(key));
    value.strings.push_back(text);
  } else if (const uint64_t size = NumberBytes(value.type); size != 0) {
    BATON_RETURN_IF_ERROR(Need(size, key));
    value.raw = bytes_.subspan(at_, size);
    at_ += size;
  } else {
    return Bad(StrCat(Quoted(key), ": unknown value type ", type));
  }
  return value;
}

absl::Status GgufParser::Metadata(absl::flat_hash_map<std::string_view, GgufValue>& out) {
  for (uint64_t i = 0; i < pair_count_; ++i) {
    BATON_ASSIGN_OR_RETURN(std::string_view key, String("metadata key"));
    BATON_ASSIGN_OR_RETURN(GgufValue value, Value(key));
    if (!out.try_emplace(key, std::move(value)).second) return Bad(StrCat("duplicate key ", Quoted(key)));
  }
  const auto it = out.find("general.alignment");
  if (it == out.end()) return absl::OkStatus();
  if (it->second.type != GgufValueType::kU32) {
    return Bad(StrCat("general.alignment is ", GgufValueTypeName(it->second.type), ", not uint32"));
  }
  uint32_t alignment;
  std::memcpy(&alignment, it->second.raw.data(), sizeof(alignment));
  if (!std::has_single_bit(alignment) || alignment > kMaxAlignment) {
    return Bad(StrCat("general.alignment is ", alignment, ", not a power of two of at most ", kMaxAlignment));
  }
  alignment_ = alignment;
  return absl::OkStatus();
}

absl::StatusOr<GgufTensor> GgufParser::Tensor() {
  BATON_ASSIGN_OR_RETURN(std::string_view name, String("tensor name"));
  BATON_ASSIGN_OR_RETURN(const uint32_t rank, Number<uint32_t>("tensor rank"));
  const std::string who = StrCat("tensor ", Quoted(name));
  if (rank < 1 || rank > 4) return Bad(StrCat(who, ": ", rank, " dimensions, 1 to 4 are possible"));
  GgufTensor tensor{name, {}, GgmlType::kF32, 0, 0};
  uint64_t elements = 1;
  for (uint32_t d = 0; d < rank; ++d) {
    BATON_ASSIGN_OR_RETURN(const uint64_t dim, Number<uint64_t>("tensor dimension"));
    if (dim == 0) return Bad(StrCat(who, ": dimension ", d, " is 0"));
    if (__builtin_mul_overflow(elements, dim, &elements)) {
      return Bad(StrCat(who, ": the number of elements overflows at dimension ", d, " of ", dim));
    }
    tensor.dims.push_back(dim);
  }
  BATON_ASSIGN_OR_RETURN(const uint32_t type, Number<uint32_t>("tensor type"));
  BATON_ASSIGN_OR_RETURN(tensor.offset, Number<uint64_t>("tensor offset"));
  tensor.type = static_cast<GgmlType>(type);
  const GgmlBlock block = GgmlBlockOf(tensor.type);
  if (block.elements == 0) return Bad(StrCat(who, ": unknown type ", type));
  if (tensor.dims[0] % block.elements != 0) {
    return Bad(StrCat(who, ": rows of ", tensor.dims[0], " elements, type ", block.name, " needs a multiple of ",
                      block.elements));
  }
  if (__builtin_mul_overflow(elements / block.elements, uint64_t{block.bytes}, &tensor.bytes)) {
    return Bad(StrCat(who, ": its size in bytes overflows (", elements, " elements of ", block.name, ")"));
  }
  return tensor;
}

absl::Status GgufParser::Place(GgufTensor& tensor, uint64_t data_start) const {
  const std::string who = StrCat("tensor ", Quoted(tensor.name));
  if (tensor.offset % alignment_ != 0) {
    return Bad(StrCat(who, ": offset ", tensor.offset, " is not a multiple of the alignment ", alignment_));
  }
  uint64_t end;
  if (__builtin_add_overflow(tensor.offset, data_start, &tensor.offset) ||
      __builtin_add_overflow(tensor.offset, tensor.bytes, &end)) {
    return Bad(StrCat(who, ": offset ", tensor.offset, " + ", tensor.bytes, " bytes overflows"));
  }
  if (end > bytes_.size()) {
    return Bad(StrCat(who, ": bytes ", tensor.offset, " to ", end, ", the file has ", bytes_.size()));
  }
  return absl::OkStatus();
}

absl::Status GgufParser::Tensors(std::vector<GgufTensor>& out, absl::flat_hash_map<std::string_view, size_t>& index) {
  out.reserve(tensor_count_);
  for (uint64_t i = 0; i < tensor_count_; ++i) {
    BATON_ASSIGN_OR_RETURN(GgufTensor tensor, Tensor());
    if (!index.try_emplace(tensor.name, out.size()).second) {
      return Bad(StrCat("duplicate tensor ", Quoted(tensor.name)));
    }
    out.push_back(std::move(tensor));
  }
  const uint64_t data_start = (at_ + alignment_ - 1) / alignment_ * alignment_;  // at_ ≤ file size: cannot overflow
  for (GgufTensor& tensor : out) BATON_RETURN_IF_ERROR(Place(tensor, data_start));

  std::vector<const GgufTensor*> by_offset;
  for (const GgufTensor& tensor : out) by_offset.push_back(&tensor);
  std::sort(by_offset.begin(), by_offset.end(), [](const auto* a, const auto* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < by_offset.size(); ++i) {
    const GgufTensor& before = *by_offset[i - 1];
    if (before.offset + before.bytes > by_offset[i]->offset) {
      return Bad(StrCat("tensors ", Quoted(before.name), " and ", Quoted(by_offset[i]->name), " overlap at offset ",
                        by_offset[i]->offset));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton
