// Checked reading of a JSON object's fields. The first error stays; later reads give their fallback, so that a parser
// can read all its fields and look at status() once. A field that is null counts as absent.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton::engine {

/// A value as JSON for a message: printable, cut.
std::string ShownJson(const nlohmann::json& value);

/// Reads and parses a JSON file of at most `max_bytes`. NotFound: no such file. InvalidArgument: too big, not JSON, or
/// not an object; the message names the path.
absl::StatusOr<nlohmann::json> ReadJsonObject(const std::string& path, uint64_t max_bytes);

class JsonFields {
 public:
  /// `object` must outlive this. `where` starts every message ("DIR/config.json").
  JsonFields(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {}

  bool Has(std::string_view key) const { return Find(key) != nullptr; }
  /// The field is there and is null.
  bool IsNull(std::string_view key) const;
  /// Required integers and numbers in [min, max].
  int64_t Int(std::string_view key, int64_t min, int64_t max);
  int64_t IntOr(std::string_view key, int64_t fallback, int64_t min, int64_t max);
  double FloatOr(std::string_view key, double fallback, double min, double max);
  bool BoolOr(std::string_view key, bool fallback);
  std::string StringOr(std::string_view key, std::string_view fallback);
  /// An array of strings; empty when absent.
  std::vector<std::string> Strings(std::string_view key);
  /// One integer or an array of them; empty when absent.
  std::vector<int64_t> IntOrInts(std::string_view key);
  /// The object under `key`, or null when absent.
  const nlohmann::json* Object(std::string_view key);

  const std::string& where() const { return where_; }
  /// Sets the status to InvalidArgument "where: what" unless it is set already.
  void Fail(std::string_view what);
  const absl::Status& status() const { return status_; }
  /// Takes the error of a nested reader.
  void Adopt(const JsonFields& nested) {
    if (status_.ok()) status_ = nested.status_;
  }

 private:
  const nlohmann::json* Find(std::string_view key) const;
  void WrongType(std::string_view key, const nlohmann::json& value, std::string_view wanted);

  const nlohmann::json& object_;
  std::string where_;
  absl::Status status_;
};

}  // namespace baton::engine
