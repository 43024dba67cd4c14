// HTTP/2 frames by hand, as a server sends them and as a client's are read (RFC 9113, RFC 7541 without its tables).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace baton::router::http2 {

inline constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
inline constexpr uint8_t kData = 0, kHeaders = 1, kReset = 3, kSettings = 4, kPing = 6, kGoAway = 7, kWindowUpdate = 8,
                         kContinuation = 9;
inline constexpr uint8_t kEndStream = 1, kAck = 1, kEndHeaders = 4;
inline constexpr uint16_t kInitialWindow = 4, kMaxFrameSize = 5;  // of settings

inline std::string BigEndian(uint64_t value, int bytes) {
  std::string out;
  for (int i = bytes - 1; i >= 0; --i) out += static_cast<char>(value >> (8 * i) & 0xff);
  return out;
}
inline uint32_t Number32(std::string_view bytes) {
  uint32_t out = 0;
  for (size_t i = 0; i < 4 && i < bytes.size(); ++i) out = out << 8 | static_cast<uint8_t>(bytes[i]);
  return out;
}

inline std::string FrameText(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
  return BigEndian(payload.size(), 3) + static_cast<char>(type) + static_cast<char>(flags) + BigEndian(stream, 4) +
         payload;
}

using Fields = std::vector<std::pair<std::string, std::string>>;
/// Literal fields that no table keeps.
inline std::string HeaderBlock(const Fields& fields) {
  const auto text = [](const std::string& value) {
    constexpr size_t kShort = 127;
    std::string out;
    if (value.size() < kShort) {
      out += static_cast<char>(value.size());
    } else {
      out += static_cast<char>(kShort);
      size_t rest = value.size() - kShort;
      for (; rest >= 128; rest /= 128) out += static_cast<char>(rest % 128 + 128);
      out += static_cast<char>(rest);
    }
    return out + value;
  };
  std::string out;
  for (const auto& [name, value] : fields) out += '\0' + text(name) + text(value);
  return out;
}

// ---- what a server says; calls are on stream 1
inline std::string Settings() { return FrameText(kSettings, 0, 0, ""); }
inline std::string Headers(const Fields& fields, uint8_t flags = 0) {
  return FrameText(kHeaders, kEndHeaders | flags, 1, HeaderBlock(fields));
}
inline std::string Answer() { return Headers({{":status", "200"}, {"content-type", "application/grpc"}}); }
inline std::string Trailers(const std::string& status, const std::string& message = "") {
  return Headers({{"grpc-status", status}, {"grpc-message", message}}, kEndStream);
}
inline std::string Data(const std::string& bytes, uint8_t flags = 0) { return FrameText(kData, flags, 1, bytes); }
inline std::string Reset(uint32_t code) { return FrameText(kReset, 0, 1, BigEndian(code, 4)); }
inline std::string GoAway(uint32_t last_stream, uint32_t code, const std::string& text) {
  return FrameText(kGoAway, 0, 0, BigEndian(last_stream, 4) + BigEndian(code, 4) + text);
}
inline std::string Ping(const std::string& eight, uint8_t flags = 0) { return FrameText(kPing, flags, 0, eight); }
inline std::string WindowUpdate(uint32_t stream, uint32_t bytes) {
  return FrameText(kWindowUpdate, 0, stream, BigEndian(bytes, 4));
}

/// A gRPC message's five bytes, and the message behind them.
inline std::string Prefix(uint8_t flags, size_t bytes) { return static_cast<char>(flags) + BigEndian(bytes, 4); }
inline std::string Framed(const std::string& message) { return Prefix(0, message.size()) + message; }

// ---- what a client said
struct Frame {
  uint8_t type = 0, flags = 0;
  uint32_t stream = 0;
  std::string payload;
};
/// Of whole frames; a rest that is none is left away.
inline std::vector<Frame> FramesOf(std::string_view bytes) {
  constexpr size_t kHead = 9;
  std::vector<Frame> out;
  while (bytes.size() >= kHead) {
    const size_t size = Number32(bytes) >> 8;
    if (bytes.size() < kHead + size) break;
    out.push_back({static_cast<uint8_t>(bytes[3]), static_cast<uint8_t>(bytes[4]), Number32(bytes.substr(5)),
                   std::string(bytes.substr(kHead, size))});
    bytes.remove_prefix(kHead + size);
  }
  return out;
}
inline std::string DataIn(std::string_view bytes) {
  std::string out;
  for (const Frame& frame : FramesOf(bytes)) {
    if (frame.type == kData) out += frame.payload;
  }
  return out;
}

}  // namespace baton::router::http2
