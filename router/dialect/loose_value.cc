#include "router/dialect/loose_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/ascii.h"
#include "router/dialect/exact_json.h"

namespace baton::router {
namespace {

constexpr std::string_view kMarks[] = {"<escape>", "<|\"|>"};

void AppendUtf8(uint32_t code, std::string& out) {
  if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) code = 0xFFFD;
  if (code < 0x80) {
    out.push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    out.push_back(static_cast<char>(0xC0 | code >> 6));
    out.push_back(static_cast<char>(0x80 | (code & 0x3F)));
  } else if (code < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | code >> 12));
    out.push_back(static_cast<char>(0x80 | (code >> 6 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (code & 0x3F)));
  } else {
    out.push_back(static_cast<char>(0xF0 | code >> 18));
    out.push_back(static_cast<char>(0x80 | (code >> 12 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (code >> 6 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (code & 0x3F)));
  }
}

/// The number of so many digits, if that is what stands there.
std::optional<uint32_t> Hex(std::string_view text, size_t digits) {
  uint32_t code = 0;
  const char* end = text.data() + digits;
  if (digits == 0 || text.size() < digits) return std::nullopt;
  const auto [at, failed] = std::from_chars(text.data(), end, code, 16);
  return failed == std::errc() && at == end ? std::optional(code) : std::nullopt;
}

bool IsWordLetter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
}

}  // namespace

void LooseReader::SkipWhite() { left_.remove_prefix(std::min(left_.find_first_not_of(" \t\r\n"), left_.size())); }

bool LooseReader::Sees(char c) {
  SkipWhite();
  return left_.starts_with(c);
}

bool LooseReader::Take(char c) {
  if (!Sees(c)) return false;
  left_.remove_prefix(1);
  return true;
}

bool LooseReader::AtEnd() {
  SkipWhite();
  return left_.empty();
}

std::string LooseReader::Word() {
  SkipWhite();
  const auto end = std::find_if_not(left_.begin(), left_.end(), IsWordLetter);
  std::string word(left_.begin(), end);
  left_.remove_prefix(word.size());
  return word;
}

std::optional<nlohmann::ordered_json> LooseReader::Value(int depth) {
  if (depth > kDeepestValue) return std::nullopt;
  if (Take('[')) return List(']', depth);
  if (Take('(')) return List(')', depth);
  if (Take('{')) return Object(depth);
  if (std::optional<std::string> text = String()) return Json(*std::move(text));
  if (left_.empty()) return std::nullopt;
  if (left_[0] == '"' || left_[0] == '\'' || left_[0] == '<') return std::nullopt;
  if (!absl::ascii_isalpha(static_cast<unsigned char>(left_[0]))) return Number();
  const std::string word = absl::AsciiStrToLower(Word());
  if (word == "true" || word == "false") return Json(word == "true");
  if (word == "none" || word == "null") return Json(nullptr);
  return std::nullopt;
}

std::optional<nlohmann::ordered_json> LooseReader::List(char close, int depth) {
  Json list = Json::array();
  while (!Take(close)) {
    std::optional<Json> value = Value(depth + 1);
    if (!value) return std::nullopt;
    list.push_back(*std::move(value));
    if (!Take(',') && !Sees(close)) return std::nullopt;
  }
  return list;
}

std::optional<nlohmann::ordered_json> LooseReader::Object(int depth) {
  Json object = Json::object();
  while (!Take('}')) {
    std::optional<std::string> key = String();
    if (!key) key = Word();
    std::optional<Json> value = Take(':') ? Value(depth + 1) : std::nullopt;
    if (!value) return std::nullopt;
    object[*key] = *std::move(value);
    if (!Take(',') && !Sees('}')) return std::nullopt;
  }
  return object;
}

std::optional<nlohmann::ordered_json> LooseReader::Number() {
  const size_t end = std::min(left_.find_first_not_of("+-0123456789.eE_"), left_.size());
  std::string text(left_.substr(0, end));
  std::erase(text, '_');
  if (text.starts_with('+')) text.erase(0, 1);
  left_.remove_prefix(end);
  const char* last = text.data() + text.size();
  int64_t integer = 0;
  if (const auto [at, failed] = std::from_chars(text.data(), last, integer); failed == std::errc() && at == last)
    return Json(integer);
  const std::string_view digits = std::string_view(text).substr(text.starts_with('-') ? 1 : 0);
  const bool whole = !digits.empty() && digits.find_first_not_of("0123456789") == digits.npos;
  if (whole && !digits.starts_with('0')) return BigInteger(text);
  double number = 0;
  const auto [at, failed] = std::from_chars(text.data(), last, number);
  if (text.empty() || failed != std::errc() || at != last || !std::isfinite(number)) return std::nullopt;
  return Json(number);
}

std::optional<std::string> LooseReader::String() {
  SkipWhite();
  for (const std::string_view mark : kMarks) {
    if (!left_.starts_with(mark)) continue;
    const size_t end = left_.find(mark, mark.size());
    if (end == std::string_view::npos) return std::nullopt;
    std::string text(left_.substr(mark.size(), end - mark.size()));
    left_.remove_prefix(end + mark.size());
    return text;
  }
  if (left_.starts_with('"') || left_.starts_with('\'')) return Quoted(left_[0]);
  return std::nullopt;
}

std::optional<std::string> LooseReader::Quoted(char quote) {
  std::string_view begin = left_;
  std::string out;
  for (left_.remove_prefix(1); !left_.empty();) {
    const char c = left_[0];
    left_.remove_prefix(1);
    if (c == quote) return out;
    if (c == '\\' && !left_.empty()) {
      Escape(out);
    } else {
      out.push_back(c);
    }
  }
  left_ = begin;
  return std::nullopt;
}

// Behind a backslash, as Python has it; one that is none of these stays, with its backslash. Two halves of a character,
// as JSON has it, are one.
void LooseReader::Escape(std::string& out) {
  constexpr std::string_view kLetters = "ntrbfv\\'\"/", kMeant = "\n\t\r\b\f\v\\'\"/";
  const char c = left_[0];
  const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
  if (const std::optional<uint32_t> code = Hex(left_.substr(1), digits)) {
    left_.remove_prefix(1 + digits);
    const std::optional<uint32_t> second = left_.starts_with("\\u") ? Hex(left_.substr(2), 4) : std::nullopt;
    const bool halves = *code >= 0xD800 && *code < 0xDC00 && second && *second >= 0xDC00 && *second < 0xE000;
    if (!halves) return AppendUtf8(*code, out);
    left_.remove_prefix(6);
    return AppendUtf8(0x10000 + ((*code - 0xD800) << 10) + (*second - 0xDC00), out);
  }
  const size_t at = kLetters.find(c);
  if (at == std::string_view::npos) return out.push_back('\\');
  out.push_back(kMeant[at]);
  left_.remove_prefix(1);
}

}  // namespace baton::router
