// SeenChats: the token ids of whole chats that come again: several answers to one prompt asked for one by one, a retry,
// a load test. A found chat costs neither template nor tokenizer, and is compared with the request's own text.
// What came with one salt of the prefix cache is not found with another. Conversations, which grow with every turn,
// fill nothing here: their turns are TokenCache's.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string_view>

#include "router/request/kept_twice.h"
#include "router/request/request_input.h"

namespace baton::router {

/// Any thread.
class SeenChats {
 public:
  /// `capacity_bytes` counts texts, ids and bookkeeping; 0 keeps nothing.
  explicit SeenChats(size_t capacity_bytes) : chats_(capacity_bytes) {}

  /// Nothing: not kept.
  std::optional<PromptIds> Find(const ChatPrompt& chat, std::string_view salt);
  /// `ids` are those of `chat`.
  void Keep(const ChatPrompt& chat, const PromptIds& ids, std::string_view salt);
  struct Counts {
    int64_t found_bytes = 0;  ///< of messages, since its start
    size_t kept_bytes = 0;    ///< now
  };
  Counts counts() const { return {found_bytes_, chats_.kept_bytes()}; }

 private:
  struct Known {
    ChatPrompt chat;
    PromptIds ids;
  };
  uint64_t HashOf(const ChatPrompt& chat, std::string_view salt) const;

  KeptTwice<Known> chats_;
  std::atomic<int64_t> found_bytes_ = 0;
};

}  // namespace baton::router
