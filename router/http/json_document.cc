// Bodies as documents. What simdjson has no place for is put otherwise before it reads a body: of members with one name
// the last counts, as in Python and JavaScript, and numbers beyond 64 bits or a double keep their spelling.
#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <numeric>
#include <unordered_map>

#include "absl/strings/numbers.h"
#include "common/random_word.h"
#include "router/http/json_reader.h"
#include "router/json_writer.h"

namespace baton::router::json {
namespace {

using simdjson::dom::element_type;

thread_local std::unique_ptr<simdjson::dom::parser> spare_parser;

/// Of a body. Others are looked for beside one that is unknown: what that costs grows with the square of their number.
constexpr size_t kMostFields = 1024;
/// In a body: each keeps its spelling.
constexpr size_t kMostGreatNumbers = 4096;

/// The great numbers of this thread's documents, as they were written. In a document each is a double, which nobody who
/// writes a body can know.
struct Spellings {
  std::unordered_map<uint64_t, std::string> of;  ///< by the bits of the double
  size_t documents = 0;
};
thread_local Spellings spellings;

/// Whether it is a number as JSON has them.
bool IsJsonNumber(std::string_view text) {
  const auto digits = [&text] {
    const size_t count = std::min(text.find_first_not_of("0123456789"), text.size());
    text.remove_prefix(count);
    return count;
  };
  const auto take = [&text](std::string_view any_of) {
    const bool there = !text.empty() && any_of.find(text.front()) != any_of.npos;
    if (there) text.remove_prefix(1);
    return there;
  };
  take("-");
  const bool zero = text.starts_with('0');
  const size_t whole = digits();
  if (whole == 0 || (zero && whole > 1)) return false;
  if (take(".") && digits() == 0) return false;
  if (take("eE")) {
    take("+-");
    if (digits() == 0) return false;
  }
  return text.empty();
}

template <class Integer>
bool Holds(std::string_view digits) {
  Integer value{};
  const char* const end = digits.data() + digits.size();
  const auto [at, failed] = std::from_chars(digits.data(), end, value);
  return failed == std::errc() && at == end;
}

bool IsGreat(std::string_view number) {
  if (number.find_first_of(".eE") == number.npos) return !Holds<int64_t>(number) && !Holds<uint64_t>(number);
  double value = 0;
  return absl::SimpleAtod(AbslView(number), &value) && std::isinf(value);
}

/// Where the string ends that begins at `at`.
size_t EndOfString(std::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) {
    if (text[at] == '\\') ++at;
  }
  return std::min(at + 1, text.size());
}

/// A number beyond 1e300 that no other body has.
double StandIn(std::string_view spelling) {
  constexpr uint64_t kBeyond = 0x7E40000000000000, kDigits = 0x000FFFFFFFFFFFFF;
  const uint64_t bits = kBeyond | (RandomWord() & kDigits);
  spellings.of.emplace(bits, spelling);
  return std::bit_cast<double>(bits);
}

void AppendDouble(double value, std::string& out) {
  char text[32];
  out.append(text, std::to_chars(text, std::end(text), value).ptr);
}

/// The body with a double in place of each great number. Nothing: there are too many of them.
std::optional<std::string> WithStandIns(std::string_view body) {
  std::string out;
  out.reserve(body.size() + 64);
  size_t great = 0, written = 0;
  for (size_t at = 0; at < body.size();) {
    const char c = body[at];
    if (c == '"') {
      at = EndOfString(body, at);
      continue;
    }
    if (c != '-' && (c < '0' || c > '9')) {
      ++at;
      continue;
    }
    const size_t end = std::min(body.find_first_not_of("+-.0123456789eE", at), body.size());
    const std::string_view number = body.substr(at, end - at);
    at = end;
    if (!IsJsonNumber(number) || !IsGreat(number)) continue;
    if (++great > kMostGreatNumbers) return std::nullopt;
    out.append(body, written, end - number.size() - written);
    AppendDouble(StandIn(number), out);
    written = end;
  }
  return out.append(body, written);
}

using Members = std::vector<std::pair<std::string_view, Element>>;

/// As Python has it: each name stands where it stood first, with the value that it had last.
Members LastOfEachName(simdjson::dom::object object) {
  Members members;
  for (auto [key, value] : object) members.emplace_back(key, value);
  std::vector<size_t> order(members.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](size_t i) { return members[i].first; });
  std::vector<bool> again(members.size());
  for (size_t i = 1, first = 0; i < order.size(); ++i) {
    if (members[order[i]].first != members[order[first]].first) {
      first = i;
      continue;
    }
    members[order[first]].second = members[order[i]].second;
    again[order[i]] = true;
  }
  Members last;
  for (size_t i = 0; i < members.size(); ++i) {
    if (!again[i]) last.push_back(members[i]);
  }
  return last;
}

bool AllDiffer(simdjson::dom::object object) {
  constexpr size_t kFew = 8;
  std::array<std::string_view, kFew> few;
  size_t count = 0;
  for (auto [key, value] : object) {
    if (count == kFew) break;
    if (std::find(few.begin(), few.begin() + count, key) != few.begin() + count) return false;
    few[count++] = key;
  }
  if (object.size() <= kFew) return true;
  std::vector<std::string_view> names;
  names.reserve(object.size());
  for (auto [key, value] : object) names.push_back(key);
  std::ranges::sort(names);
  return std::ranges::adjacent_find(names) == names.end();
}

/// Whether no object in it has two members with one name.
bool NamesDiffer(Element e) {
  simdjson::dom::array list;
  simdjson::dom::object object;
  if (!e.get_array().get(list)) {
    for (Element one : list) {
      if (!NamesDiffer(one)) return false;
    }
  } else if (!e.get_object().get(object)) {
    if (!AllDiffer(object)) return false;
    for (auto [key, value] : object) {
      if (!NamesDiffer(value)) return false;
    }
  }
  return true;
}

/// How a great number is written.
enum class Great { kAsItWas, kHeld, kInADouble, kAsStandIn };

void AppendText(Element e, Great great, std::string& out) {
  simdjson::dom::array list;
  simdjson::dom::object object;
  const char* comma = "";
  if (!e.get_array().get(list)) {
    out += '[';
    for (Element one : list) {
      out += std::exchange(comma, ",");
      AppendText(one, great, out);
    }
    out += ']';
  } else if (!e.get_object().get(object)) {
    out += '{';
    for (const auto& [key, value] : LastOfEachName(object)) {
      out += std::exchange(comma, ",");
      AppendJsonString(key, out);
      out += ':';
      AppendText(value, great, out);
    }
    out += '}';
  } else if (const std::string* spelling = GreatNumber(e); spelling != nullptr && great != Great::kAsStandIn) {
    double value = 0;
    bool stays = spelling->find_first_of(".eE") == spelling->npos;  // a whole number
    if (great == Great::kInADouble) stays = stays && absl::SimpleAtod(*spelling, &value) && std::isfinite(value);
    if (great == Great::kAsItWas || stays) {
      out += *spelling;
    } else {
      const double most = std::numeric_limits<double>::max();
      AppendDouble(spelling->starts_with('-') ? -most : most, out);
    }
  } else {
    out += simdjson::minify(e);
  }
}

simdjson::error_code ParseText(std::string_view text, bool copy, size_t max_depth, Document& out) {
  auto failed = simdjson::SUCCESS;
  if (out.parser->capacity() < text.size() || out.parser->max_depth() != max_depth)
    failed = out.parser->allocate(std::max<size_t>(text.size(), 256), max_depth);
  return failed ? failed : out.parser->parse(text.data(), text.size(), copy).get(out.whole);
}

/// NUMBER_OUT_OF_RANGE: too many numbers are.
simdjson::error_code ParseAny(std::string_view text, const JsonLimits& limits, Document& out) {
  const bool copy = limits.readable_behind < simdjson::SIMDJSON_PADDING;
  auto failed = ParseText(text, copy, limits.max_depth, out);
  if (failed == simdjson::NUMBER_ERROR) {
    const std::optional<std::string> other = WithStandIns(text);
    if (!other) return simdjson::NUMBER_OUT_OF_RANGE;
    failed = ParseText(*other, true, limits.max_depth, out);
  }
  if (failed || limits.names_differ || NamesDiffer(out.whole)) return failed;
  std::string other;
  AppendText(out.whole, Great::kAsStandIn, other);
  return ParseText(other, true, limits.max_depth, out);
}

ApiError NotJson(simdjson::error_code failed, std::string_view body, const JsonLimits& limits) {
  switch (failed) {
    case simdjson::UTF8_ERROR:
      return BadRequest(StrCat("The body is not valid UTF-8: byte ", FirstInvalidUtf8(body), " is wrong."), "",
                        "invalid_utf8");
    case simdjson::DEPTH_ERROR:
      return BadRequest(StrCat("The JSON is nested deeper than ", limits.max_depth, " levels (--max-json-depth)."), "",
                        "json_too_deep");
    case simdjson::NUMBER_OUT_OF_RANGE:
      return BadRequest(StrCat("The body has more than ", kMostGreatNumbers,
                               " numbers that are integers beyond 64 bits, or beyond a double."));
    case simdjson::NUMBER_ERROR:
      return BadRequest("The body is not valid JSON: a number is malformed.", "", "invalid_json");
    default:
      return BadRequest(StrCat("The body is not valid JSON: ", simdjson::error_message(failed)), "", "invalid_json");
  }
}

std::string TextWith(Element e, Great great) {
  if (spellings.of.empty()) return simdjson::minify(e);
  std::string out;
  AppendText(e, great, out);
  return out;
}

}  // namespace

const std::string* GreatNumber(Element e) {
  double value = 0;
  if (spellings.of.empty() || e.type() != element_type::DOUBLE || e.get_double().get(value)) return nullptr;
  const auto found = spellings.of.find(std::bit_cast<uint64_t>(value));
  return found == spellings.of.end() ? nullptr : &found->second;
}

std::string NumberText(Element e) {
  constexpr size_t kSaid = 60;  // of a number that may be as long as a body
  double value = 0;
  if (const std::string* spelling = GreatNumber(e)) {
    return spelling->size() <= kSaid ? *spelling
                                     : StrCat(spelling->substr(0, kSaid), "… (", spelling->size(), " characters)");
  }
  if (e.type() != element_type::DOUBLE || e.get_double().get(value)) return simdjson::minify(e);
  std::string out;
  AppendDouble(value, out);
  return out;
}

std::string TextOf(Element e) { return TextWith(e, Great::kAsItWas); }

std::string HeldText(Element e) { return TextWith(e, Great::kHeld); }

std::string TextOfDoubles(Element e) { return TextWith(e, Great::kInADouble); }

Document::Document() : parser(spare_parser ? std::move(spare_parser) : std::make_unique<simdjson::dom::parser>()) {
  ++spellings.documents;
}

Document::~Document() {
  constexpr size_t kMostKept = 512 << 10;  // bytes of a body: a thread does not keep what its largest one took
  if (parser->capacity() <= kMostKept) spare_parser = std::move(parser);
  if (--spellings.documents == 0) spellings.of.clear();
}

MaybeError Parse(std::string_view body, const JsonLimits& limits, Document& out) {
  if (body.size() > limits.max_bytes) {
    return BadRequest(StrCat("The body has ", body.size(), " bytes, the limit is ", limits.max_bytes, "."));
  }
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // which editors put in front, and Python skips
  if (body.starts_with(kByteOrderMark)) body.remove_prefix(kByteOrderMark.size());
  if (body.empty()) return BadRequest("The body is empty; a JSON object is expected.");
  if (const auto failed = ParseAny(body, limits, out)) return NotJson(failed, body, limits);
  if (out.whole.get_object().get(out.root))
    return BadRequest(StrCat("The body must be a JSON object, got ", TypeName(out.whole), "."));
  if (out.root.size() > kMostFields) {
    return BadRequest(StrCat("The body has ", out.root.size(), " fields, at most ", kMostFields, " are possible."), "",
                      "too_many_fields");
  }
  return std::nullopt;
}

bool ParseInner(std::string_view text, Document& out) {
  constexpr size_t kDeepest = 1024;
  return !ParseAny(text, JsonLimits{.max_depth = kDeepest}, out);
}

}  // namespace baton::router::json
