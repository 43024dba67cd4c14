#include "common/foreign_text.h"

#include <algorithm>
#include <cstdint>

#include "common/str_cat.h"
#include "common/utf8.h"

namespace baton {
namespace {

// Line and paragraph separators, marks and overrides of the writing direction, the byte order mark.
bool Misleads(uint32_t code) {
  return code == 0x61C || (code >= 0x200B && code <= 0x200F) || (code >= 0x2028 && code <= 0x202E) ||
         (code >= 0x2060 && code <= 0x206F) || code == 0xFEFF;
}

uint32_t CodeOf(std::string_view point) {
  if (point.size() == 1) return static_cast<uint8_t>(point[0]);
  uint32_t code = static_cast<uint8_t>(point[0]) & (0x7Fu >> point.size());
  for (char c : point.substr(1)) code = code << 6 | (static_cast<uint8_t>(c) & 0x3F);
  return code;
}

void AppendPoint(std::string_view point, bool quoted, std::string& out) {
  const uint32_t code = CodeOf(point);
  if (code == '\n') {
    out += "\\n";
  } else if (code == '\t') {
    out += "\\t";
  } else if (code == '\r') {
    out += "\\r";
  } else if (code < 0x20 || (code >= 0x7F && code < 0xA0)) {
    out += StrCat("\\x", absl::Hex(code, absl::kZeroPad2));
  } else if (Misleads(code)) {
    out += StrCat("\\u", absl::Hex(code, absl::kZeroPad4));
  } else {
    if (quoted && (code == '"' || code == '\\')) out += '\\';
    out += point;
  }
}

std::string Escaped(std::string_view text, size_t max_bytes, bool quoted) {
  std::string out;
  size_t at = 0;
  while (at < text.size()) {
    const size_t length = Utf8Length(text.substr(at));
    if (at + std::max<size_t>(length, 1) > max_bytes) break;
    if (length == 0) {
      out += StrCat("\\x", absl::Hex(static_cast<uint8_t>(text[at]), absl::kZeroPad2));
    } else {
      AppendPoint(text.substr(at, length), quoted, out);
    }
    at += std::max<size_t>(length, 1);
  }
  if (quoted) out = StrCat("\"", out, "\"");
  return at < text.size() ? StrCat(out, "… (", text.size(), " bytes)") : out;
}

}  // namespace

std::string Printable(std::string_view text, size_t max_bytes) { return Escaped(text, max_bytes, false); }

std::string Quoted(std::string_view text, size_t max_bytes) { return Escaped(text, max_bytes, true); }

}  // namespace baton
