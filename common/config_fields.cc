#include "common/config_fields.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/str_cat.h"

namespace baton {
namespace {

constexpr double kExact = 9007199254740992;  // 2^53: whole numbers below it are exact

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

// Whole numbers with all their digits.
std::string NumberText(double value) {
  const bool whole = value == std::floor(value) && std::abs(value) < kExact;
  return whole ? StrCat(static_cast<int64_t>(value)) : StrCat(value);
}

std::string RangeText(double least, double most) { return StrCat(NumberText(least), "…", NumberText(most)); }

FieldRule Numbers(std::string text, std::function<bool(double)> takes) {
  FieldRule rule;
  rule.help = rule.text = std::move(text);
  rule.takes_number = std::move(takes);
  return rule;
}

absl::Status Refusal(std::string_view name, std::string_view value, const FieldRule& rule) {
  if (rule.must_be_given && value.empty())
    return absl::InvalidArgumentError(StrCat("--", name, " is missing: ", rule.text));
  return absl::InvalidArgumentError(StrCat("--", name, " ", value, ": must be ", rule.text));
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

FieldRule Range(double least, double most) {
  return Numbers(RangeText(least, most), [=](double x) { return x >= least && x <= most; });
}

FieldRule AtLeast(double least) {
  return Numbers(StrCat("≥ ", NumberText(least)), [=](double x) { return x >= least; });
}

FieldRule PowerOfTwo(double least, double most) {
  return Numbers(StrCat("a power of two, ", RangeText(least, most)), [=](double x) {
    int exponent = 0;
    return x >= least && x <= most && std::frexp(x, &exponent) == 0.5;
  });
}

FieldRule MultipleOf(int64_t factor, double least, double most) {
  return Numbers(StrCat("a multiple of ", factor, ", ", RangeText(least, most)),
                 [=](double x) { return x >= least && x <= most && std::fmod(x, static_cast<double>(factor)) == 0; });
}

FieldRule OneOf(const std::vector<FieldChoice>& choices) {
  FieldRule rule;
  std::vector<std::string> names;
  for (const FieldChoice& choice : choices) {
    const bool last = names.size() + 1 == choices.size();
    rule.text += StrCat(names.empty() ? "" : last ? " or " : ", ", choice.name);
    rule.help += StrCat(names.empty() ? "" : " | ", choice.name, choice.help.empty() ? "" : ": ", choice.help);
    names.push_back(choice.name);
  }
  rule.takes_text = [names](std::string_view text) { return std::ranges::find(names, text) != names.end(); };
  return rule;
}

FieldRule NotEmpty(std::string_view what) {
  FieldRule rule;
  rule.text = what;
  rule.must_be_given = true;
  rule.takes_text = [](std::string_view text) { return !text.empty(); };
  return rule;
}

FieldRule LogLevelRule() { return OneOf({{"debug"}, {"info"}, {"warning"}, {"error"}}); }
FieldRule LogFormatRule() { return OneOf({{"text"}, {"json", "an object a line"}}); }

absl::Status CheckField(std::string_view name, double value, const FieldRule& rule) {
  if (!rule.takes_number || rule.takes_number(value)) return absl::OkStatus();
  return Refusal(name, NumberText(value), rule);
}

absl::Status CheckField(std::string_view name, std::string_view value, const FieldRule& rule) {
  if (!rule.takes_text || rule.takes_text(value)) return absl::OkStatus();
  return Refusal(name, value, rule);
}

}  // namespace baton
