#include "router/telemetry/trace_parent.h"

namespace baton::router {
namespace {

constexpr size_t kLength = 55;  // of version 00: "00-" + 32 + "-" + 16 + "-" + 2

bool IsHex(std::string_view text) { return text.find_first_not_of("0123456789abcdef") == std::string_view::npos; }

bool IsId(std::string_view text) { return IsHex(text) && text.find_first_not_of('0') != std::string_view::npos; }

}  // namespace

std::optional<TraceParent> ParseTraceParent(std::string_view header) {
  if (header.size() < kLength || header[2] != '-' || header[35] != '-' || header[52] != '-') return std::nullopt;
  const std::string_view version = header.substr(0, 2), trace = header.substr(3, 32), parent = header.substr(36, 16),
                         flags = header.substr(53, 2);
  if (!IsHex(version) || version == "ff" || !IsId(trace) || !IsId(parent) || !IsHex(flags)) return std::nullopt;
  // A later version may have more behind its flags, after another dash; version 00 ends there.
  if (header.size() > kLength && (version == "00" || header[kLength] != '-')) return std::nullopt;
  const char last = flags[1];
  const int low = last <= '9' ? last - '0' : last - 'a' + 10;
  return TraceParent{std::string(trace), std::string(parent), (low & 1) != 0};
}

}  // namespace baton::router
