#include "common/grpc/first_flight.h"

#include <algorithm>
#include <cstdint>

namespace baton::net {
namespace {

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr size_t kHeadBytes = 9;
enum Kind : uint8_t { kData = 0, kHeaders = 1, kSettings = 4, kWindowUpdate = 8, kContinuation = 9 };

bool Asks(uint8_t kind) { return kind == kData || kind == kHeaders || kind == kContinuation || kind == kWindowUpdate; }

}  // namespace

FirstFlight JudgeFirstFlight(std::string_view bytes) {
  const size_t known = std::min(bytes.size(), kPreface.size());
  if (bytes.substr(0, known) != kPreface.substr(0, known)) return FirstFlight::kNotHttp2;
  bytes.remove_prefix(known);
  if (known < kPreface.size() || bytes.size() < kHeadBytes) return FirstFlight::kUnfinished;
  const auto byte = [&](size_t at) { return static_cast<uint8_t>(bytes[at]); };
  if (byte(3) != kSettings) return FirstFlight::kNotHttp2;
  for (size_t vain = 0; bytes.size() >= kHeadBytes;) {
    if (!Asks(byte(3)) && ++vain > kMostVainFrames) return FirstFlight::kVainFrames;
    const size_t size = kHeadBytes + (size_t{byte(0)} << 16 | size_t{byte(1)} << 8 | size_t{byte(2)});
    bytes.remove_prefix(std::min(bytes.size(), size));
  }
  return FirstFlight::kHttp2;
}

}  // namespace baton::net
