#include "engine/model/config/json_fields.h"

#include <cmath>
#include <optional>

#include "common/foreign_text.h"
#include "common/json.h"
#include "common/mapped_file.h"
#include "common/shallow_json.h"
#include "common/status.h"

namespace baton::engine {
namespace {

// An integer written as 4 or 4.0; nothing else.
std::optional<int64_t> ToInt(const nlohmann::json& value) {
  if (value.is_number_unsigned()) {
    const uint64_t x = value.get<uint64_t>();
    if (x > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(x);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double x = value.get<double>();
  if (!(std::fabs(x) < 9e15) || x != std::floor(x)) return std::nullopt;
  return static_cast<int64_t>(x);
}

}  // namespace

std::string ShownJson(const nlohmann::json& value) {
  return Printable(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

absl::StatusOr<nlohmann::json> ReadJsonObject(const std::string& path, uint64_t max_bytes) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  if (file->bytes().size() > max_bytes) {
    return absl::InvalidArgumentError(
        StrCat(path, ": ", file->bytes().size(), " bytes, at most ", max_bytes, " expected"));
  }
  nlohmann::json value = ShallowJson({reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()});
  if (value.is_discarded())
    return absl::InvalidArgumentError(
        StrCat(path, ": not valid JSON, or nested more than ", kMostJsonDepth, " levels deep"));
  if (!value.is_object())
    return absl::InvalidArgumentError(StrCat(path, ": a JSON ", value.type_name(), ", not an object"));
  return value;
}

const nlohmann::json* JsonFields::Find(std::string_view key) const {
  const auto it = object_.find(std::string(key));
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool JsonFields::IsNull(std::string_view key) const {
  const auto it = object_.find(std::string(key));
  return it != object_.end() && it->is_null();
}

void JsonFields::Fail(std::string_view what) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(StrCat(where_, ": ", what));
}

void JsonFields::WrongType(std::string_view key, const nlohmann::json& value, std::string_view wanted) {
  Fail(StrCat(key, " is ", ShownJson(value), ", not ", wanted));
}

int64_t JsonFields::Int(std::string_view key, int64_t min, int64_t max) {
  if (!Has(key)) Fail(StrCat(key, " is missing"));
  return IntOr(key, min, min, max);
}

int64_t JsonFields::IntOr(std::string_view key, int64_t fallback, int64_t min, int64_t max) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return fallback;
  const std::optional<int64_t> x = ToInt(*value);
  if (!x.has_value() || *x < min || *x > max) {
    WrongType(key, *value, StrCat("an integer from ", min, " to ", max));
    return fallback;
  }
  return *x;
}

double JsonFields::FloatOr(std::string_view key, double fallback, double min, double max) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return fallback;
  const double x = value->is_number() ? value->get<double>() : NAN;
  if (!(x >= min && x <= max)) {
    WrongType(key, *value, StrCat("a number from ", min, " to ", max));
    return fallback;
  }
  return x;
}

bool JsonFields::BoolOr(std::string_view key, bool fallback) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) WrongType(key, *value, "true or false");
  return value->is_boolean() ? value->get<bool>() : fallback;
}

std::string JsonFields::StringOr(std::string_view key, std::string_view fallback) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_string()) WrongType(key, *value, "a string");
  return value->is_string() ? value->get<std::string>() : std::string(fallback);
}

std::vector<std::string> JsonFields::Strings(std::string_view key) {
  std::vector<std::string> out;
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return out;
  bool good = value->is_array();
  for (size_t i = 0; good && i < value->size(); ++i) good = (*value)[i].is_string();
  if (!good) {
    WrongType(key, *value, "an array of strings");
    return out;
  }
  for (const nlohmann::json& element : *value) out.push_back(element.get<std::string>());
  return out;
}

std::vector<int64_t> JsonFields::IntOrInts(std::string_view key) {
  std::vector<int64_t> out;
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return out;
  const nlohmann::json list = value->is_array() ? *value : nlohmann::json::array({*value});
  for (const nlohmann::json& element : list) {
    const std::optional<int64_t> x = ToInt(element);
    if (!x.has_value()) {
      WrongType(key, *value, "an integer or an array of integers");
      return {};
    }
    out.push_back(*x);
  }
  return out;
}

const nlohmann::json* JsonFields::Object(std::string_view key) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr || value->is_object()) return value;
  WrongType(key, *value, "an object");
  return nullptr;
}

}  // namespace baton::engine
