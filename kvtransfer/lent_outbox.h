// What a hello says of an outbox that a transport lends (Transport::Lend), as bytes. Workers that know nothing of it
// take it for a card of another version, and have KV staged. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace baton {

/// Of the known bytes at an outbox's end.
inline constexpr uint64_t kMaxMarkBytes = 64 << 10;

struct LentOutbox {
  uint64_t bytes = 0;        ///< of all buffers and the mark
  uint64_t mark_bytes = 0;   ///< at its end, known
  uint64_t mark_digest = 0;  ///< MarkDigest of them
  std::string lent;          ///< what Transport::Lend named it

  std::string Pack() const;
  /// Nothing: it is none, or its numbers fit no outbox.
  static std::optional<LentOutbox> Parse(std::string_view bytes);
};

uint64_t MarkDigest(std::string_view mark);

}  // namespace baton
