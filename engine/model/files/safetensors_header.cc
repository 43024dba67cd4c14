// The JSON header of a safetensors file, read by events: no tree is built, so depth and size cost nothing.
#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "common/foreign_text.h"
#include "common/json.h"
#include "common/status.h"
#include "engine/model/files/safetensors.h"

namespace baton::engine {
namespace {

constexpr std::string_view kMetadata = "__metadata__";
constexpr size_t kMaxRank = 8;
constexpr size_t kShownBytes = 200;  // of a tensor's name in a message

// Bits of one element; 0: a word this reader does not know (such a tensor can only be skipped).
uint64_t BitsOf(std::string_view type) {
  if (type == "F64" || type == "I64" || type == "U64") return 64;
  if (type == "F32" || type == "I32" || type == "U32") return 32;
  if (type == "F16" || type == "BF16" || type == "I16" || type == "U16") return 16;
  if (type == "I8" || type == "U8" || type == "BOOL" || type == "F8_E4M3" || type == "F8_E5M2" || type == "F8_E8M0")
    return 8;
  return 0;
}

// Events come from the parser; returning false stops it. Levels: 1 = names, 2 = one tensor's fields, 3 = an array.
class HeaderEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderEvents(const std::string& name) : name_(name) {}

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t value) override { return Unexpected(StrCat("the number ", value)); }
  bool number_float(number_float_t, const string_t& text) override {
    return Unexpected(StrCat("the number ", text.substr(0, 40)));
  }
  bool binary(binary_t&) override { return Unexpected("binary"); }
  bool number_unsigned(number_unsigned_t value) override {
    if (level_ != 3) return Unexpected(StrCat("the number ", value));
    numbers_.push_back(value);
    return numbers_.size() <= kMaxRank || Unexpected(StrCat("more than ", kMaxRank, " numbers"));
  }
  bool string(string_t& value) override {
    if (level_ == 2 && in_metadata_) return true;
    if (level_ != 2 || field_ != "dtype") return Unexpected("a string");
    tensor_.type = value.substr(0, 40);
    return true;
  }
  bool start_object(std::size_t) override {
    if (level_ >= 2) return Unexpected("an object");
    ++level_;
    return true;
  }
  bool key(string_t& value) override { return level_ == 1 ? BeginTensor(value) : BeginField(value); }
  bool end_object() override { return --level_ == 1 ? EndTensor() : true; }
  bool start_array(std::size_t) override {
    if (level_ != 2 || (field_ != "shape" && field_ != "data_offsets")) return Unexpected("an array");
    level_ = 3;
    numbers_.clear();
    return true;
  }
  bool end_array() override {
    level_ = 2;
    return field_ == "shape" ? TakeShape() : TakeOffsets();
  }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::detail::exception&) override {
    return Bad(StrCat("the header is not JSON at byte ", at));
  }

  const absl::Status& status() const { return status_; }
  std::vector<SafeTensor>& tensors() { return tensors_; }

 private:
  bool Bad(const std::string& what) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(StrCat(name_, ": ", what));
    return false;
  }
  std::string Place() const {
    if (level_ == 0) return "the header";
    return StrCat(Quoted(tensor_.name, kShownBytes), level_ > 1 ? StrCat(" ", Printable(field_)) : "");
  }
  bool Unexpected(const std::string& what) { return Bad(StrCat(Place(), ": ", what, " is not expected there")); }

  bool BeginTensor(const std::string& name) {
    tensor_ = {.name = name};
    field_.clear();
    seen_ = 0;
    in_metadata_ = name == kMetadata;
    if (!names_.insert(name).second) return Bad(StrCat(Quoted(name, kShownBytes), " is there twice"));
    return true;
  }
  bool BeginField(const std::string& field) {
    field_ = field;
    if (in_metadata_) return true;
    const int bit = field == "dtype" ? 1 : field == "shape" ? 2 : field == "data_offsets" ? 4 : 0;
    if (bit == 0) return Bad(StrCat(Place(), ": unknown field"));
    if ((seen_ & bit) != 0) return Bad(StrCat(Place(), ": the field is there twice"));
    seen_ |= bit;
    return true;
  }
  bool EndTensor() {
    if (in_metadata_) return true;
    if (seen_ != 7) return Bad(StrCat(Quoted(tensor_.name, kShownBytes), ": dtype, shape or data_offsets is missing"));
    tensors_.push_back(std::move(tensor_));
    return true;
  }
  bool TakeShape() {
    for (uint64_t n : numbers_) {
      if (n > static_cast<uint64_t>(INT64_MAX)) return Bad(StrCat(Place(), ": dimension ", n));
      tensor_.shape.push_back(static_cast<int64_t>(n));
    }
    return true;
  }
  bool TakeOffsets() {
    if (numbers_.size() != 2) return Bad(StrCat(Place(), ": ", numbers_.size(), " numbers instead of 2"));
    tensor_.begin = numbers_[0];
    tensor_.end = numbers_[1];
    return true;
  }

  const std::string& name_;
  absl::Status status_;
  std::vector<SafeTensor> tensors_;
  absl::flat_hash_set<std::string> names_;
  SafeTensor tensor_;
  std::string field_;
  std::vector<uint64_t> numbers_;
  int level_ = 0;
  int seen_ = 0;
  bool in_metadata_ = false;
};

// Shape × element size must be exactly the bytes that the offsets span; overflow is a lie too.
absl::Status CheckBytes(const SafeTensor& tensor, uint64_t data_bytes, const std::string& name) {
  const std::string who = StrCat(name, ": ", Quoted(tensor.name, kShownBytes));
  if (tensor.begin > tensor.end || tensor.end > data_bytes) {
    return absl::InvalidArgumentError(
        StrCat(who, " spans bytes ", tensor.begin, " to ", tensor.end, " of ", data_bytes));
  }
  const uint64_t bits = BitsOf(tensor.type);
  if (bits == 0) return absl::OkStatus();
  uint64_t n = bits / 8;
  bool overflow = false;
  for (int64_t d : tensor.shape) overflow |= __builtin_mul_overflow(n, static_cast<uint64_t>(d), &n);
  if (overflow || n != tensor.end - tensor.begin) {
    return absl::InvalidArgumentError(StrCat(who, " has ", tensor.end - tensor.begin, " bytes, its shape and type ",
                                             Printable(tensor.type), " need ",
                                             overflow ? "more than 2^64" : std::to_string(n)));
  }
  return absl::OkStatus();
}

absl::Status CheckNoHoles(const std::vector<SafeTensor>& tensors, uint64_t data_bytes, const std::string& name) {
  uint64_t at = 0;
  for (const SafeTensor& tensor : tensors) {
    if (tensor.begin != at) {
      return absl::InvalidArgumentError(StrCat(name, ": ", Quoted(tensor.name, kShownBytes), " begins at byte ",
                                               tensor.begin, ", the tensor before it ends at ", at));
    }
    at = tensor.end;
  }
  if (at == data_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(name, ": the tensors take ", at, " bytes, the file has ", data_bytes));
}

}  // namespace

std::optional<DType> DTypeOfSafetensors(std::string_view type) {
  if (type == "F32") return DType::kF32;
  if (type == "BF16") return DType::kBF16;
  if (type == "F16") return DType::kF16;
  return std::nullopt;
}

absl::StatusOr<std::vector<SafeTensor>> ParseSafetensorsHeader(std::string_view json, uint64_t data_bytes,
                                                               const std::string& name) {
  HeaderEvents events(name);
  const bool parsed = nlohmann::json::sax_parse(json.begin(), json.end(), &events);
  BATON_RETURN_IF_ERROR(events.status());
  if (!parsed) return absl::InvalidArgumentError(StrCat(name, ": the header is not JSON"));
  std::vector<SafeTensor> tensors = std::move(events.tensors());
  for (const SafeTensor& tensor : tensors) BATON_RETURN_IF_ERROR(CheckBytes(tensor, data_bytes, name));
  std::sort(tensors.begin(), tensors.end(), [](const SafeTensor& a, const SafeTensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  BATON_RETURN_IF_ERROR(CheckNoHoles(tensors, data_bytes, name));
  return tensors;
}

}  // namespace baton::engine
