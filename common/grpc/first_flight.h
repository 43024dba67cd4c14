// What the first bytes of a connection are: a gRPC client's, or work in vain that is better not begun. gRPC takes half
// a millisecond of a core for a connection, and 30 to 70 microseconds for each call that is begun and reset.
#pragma once

#include <cstddef>
#include <string_view>

namespace baton::net {

enum class FirstFlight {
  kUnfinished,  ///< too few are here to tell
  kHttp2,       ///< HTTP/2 (RFC 9113, 3.4) begins
  kNotHttp2,    ///< anything else
  kVainFrames,  ///< HTTP/2, with more frames that ask nothing than a client has any use for
};

/// That are neither calls nor a call's message, of what is here with a connection's beginning: SETTINGS, PINGs, resets,
/// priorities, of which old clients send half a dozen.
inline constexpr size_t kMostVainFrames = 16;

/// `bytes`: what has come by now, from the first on, or as much of it as is looked at.
FirstFlight JudgeFirstFlight(std::string_view bytes);

}  // namespace baton::net
