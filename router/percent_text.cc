#include "router/percent_text.h"

namespace baton::router {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

}  // namespace

std::string FromPercent(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape = text[i] == '%' && i + 2 < text.size();
    const int high = escape ? HexDigit(text[i + 1]) : -1, low = escape ? HexDigit(text[i + 2]) : -1;
    const bool whole = high >= 0 && low >= 0;
    out += whole ? static_cast<char>(high * 16 + low) : text[i];
    if (whole) i += 2;
  }
  return out;
}

}  // namespace baton::router
