#include "common/utf8.h"

namespace baton {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// What the first byte of a sequence says: its length (0: no sequence begins so) and the range of the second byte,
/// which is narrower where overlong forms, surrogates and code points above U+10FFFF must
/// be kept out (Unicode table 3-7).
struct Lead {
  uint8_t length, low, high;
};

Lead LeadOf(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte < 0xF0) {
    return {3, static_cast<uint8_t>(byte == 0xE0 ? 0xA0 : 0x80), static_cast<uint8_t>(byte == 0xED ? 0x9F : 0xBF)};
  }
  if (byte < 0xF5) {
    return {4, static_cast<uint8_t>(byte == 0xF0 ? 0x90 : 0x80), static_cast<uint8_t>(byte == 0xF4 ? 0x8F : 0xBF)};
  }
  return {0, 0, 0};
}

/// Bytes at the start of `text` (not empty) that are one code point, or begin one. `complete`: which of the two.
/// A malformed part has length ≥ 1 too, with `complete` false and something behind it.
size_t Sequence(std::string_view text, bool* complete) {
  const Lead lead = LeadOf(static_cast<uint8_t>(text[0]));
  *complete = lead.length == 1;
  if (lead.length <= 1) return 1;
  size_t n = 1;
  for (; n < lead.length && n < text.size(); ++n) {
    const uint8_t byte = static_cast<uint8_t>(text[n]);
    const bool fits = n == 1 ? (byte >= lead.low && byte <= lead.high) : (byte & 0xC0) == 0x80;
    if (!fits) return n;
  }
  *complete = n == lead.length;
  return n;
}

void AppendReplacements(size_t malformed_bytes, Utf8Repair repair, std::string& out) {
  const size_t count = repair == Utf8Repair::kEachByte ? malformed_bytes : 1;
  for (size_t i = 0; i < count; ++i) out += kReplacement;
}

}  // namespace

bool IsUtf8(std::string_view text) {
  bool complete = true;
  while (!text.empty() && complete) text.remove_prefix(Sequence(text, &complete));
  return complete;
}

size_t Utf8Length(std::string_view text) {
  if (text.empty()) return 0;
  bool complete;
  const size_t n = Sequence(text, &complete);
  return complete ? n : 0;
}

void AppendUtf8(std::string_view bytes, Utf8Repair repair, std::string& held, std::string& out) {
  std::string joined;
  if (!held.empty()) {
    joined = held;
    joined += bytes;
    bytes = joined;
    held.clear();
  }
  while (!bytes.empty()) {
    bool complete;
    const size_t n = Sequence(bytes, &complete);
    if (complete) {
      out += bytes.substr(0, n);
    } else if (n == bytes.size() && LeadOf(static_cast<uint8_t>(bytes[0])).length > 1) {
      held = bytes;
      return;
    } else {
      AppendReplacements(n, repair, out);
    }
    bytes.remove_prefix(n);
  }
}

void FlushUtf8(Utf8Repair repair, std::string& held, std::string& out) {
  if (!held.empty()) AppendReplacements(held.size(), repair, out);
  held.clear();
}

}  // namespace baton
