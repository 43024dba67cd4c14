#include "common/config_fields.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "common/str_cat.h"

namespace baton {
namespace {

// The factor of a suffix; 0 when it is none. Lower case is decimal, upper case and "iB" binary.
double SuffixFactor(std::string_view suffix) {
  if (suffix.ends_with("iB")) suffix.remove_suffix(2);
  if (suffix.empty()) return 1;
  if (suffix == "k") return 1e3;
  if (suffix == "m") return 1e6;
  if (suffix == "g") return 1e9;
  if (suffix == "K") return 1024.0;
  if (suffix == "M") return 1024.0 * 1024;
  if (suffix == "G") return 1024.0 * 1024 * 1024;
  if (suffix == "T") return 1024.0 * 1024 * 1024 * 1024;
  return 0;
}

}  // namespace

absl::StatusOr<int64_t> ParseQuantity(std::string_view text) {
  const size_t digits = text.find_first_not_of("0123456789.+-");
  const std::string_view number = text.substr(0, digits);
  const double factor = digits == std::string_view::npos ? 1 : SuffixFactor(text.substr(digits));
  int64_t exact = 0;
  if (factor == 1 && absl::SimpleAtoi(AbslView(number), &exact)) return exact;
  double value = 0;
  if (factor == 0 || !absl::SimpleAtod(AbslView(number), &value) || !(std::abs(value * factor) < 9.2e18) ||
      value * factor != std::floor(value * factor)) {
    return absl::InvalidArgumentError(StrCat("\"", text, "\" is not a whole number (examples: 4096, 32k, 32K, 4GiB)"));
  }
  return static_cast<int64_t>(value * factor);
}

bool IsLogLevel(std::string_view name) {
  return name == "debug" || name == "info" || name == "warning" || name == "error";
}

bool IsLogFormat(std::string_view name) { return name == "text" || name == "json"; }

}  // namespace baton
