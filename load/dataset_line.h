// A line of a file of prompts: its number in errors, its JSON, its numbers within their ranges.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/foreign_text.h"
#include "common/json.h"
#include "common/shallow_json.h"
#include "common/str_cat.h"
#include "load/bench_options.h"

namespace baton::load {

inline constexpr int64_t kMostTokensOfALine = 16 << 20;

class DatasetLine {
 public:
  using Json = nlohmann::json;
  DatasetLine(const BenchOptions& options, int64_t number) : options_(options), number_(number) {}

  absl::Status Wrong(std::string_view what) const {
    return absl::InvalidArgumentError(StrCat(options_.dataset_path, ":", number_, ": ", what));
  }
  absl::StatusOr<Json> Object(const std::string& text) const {
    Json value = ShallowJson(text);
    if (!value.is_object()) return Wrong(StrCat("not a JSON object: ", Printable(text, 60)));
    return value;
  }
  absl::StatusOr<double> Number(const Json& row, const std::string& key, double least, double most) const {
    const auto it = row.find(key);
    if (it == row.end()) return Wrong(StrCat("no \"", key, "\""));
    if (!it->is_number()) return Wrong(StrCat("\"", key, "\" is no number: ", Printable(it->dump(), 40)));
    const double value = it->get<double>();
    if (!(value >= least && value <= most))
      return Wrong(StrCat("\"", key, "\" is ", value, ", not ", least, " to ", most));
    return value;
  }

 private:
  const BenchOptions& options_;
  const int64_t number_;
};

}  // namespace baton::load
