// SeenChats: the token ids of whole chats that come again: several answers to one prompt asked for one by one, a retry,
// a load test. A found chat costs neither template nor tokenizer, and is compared with the request's own text.
// A chat is kept the second time it comes, so that conversations, which grow with every turn, fill nothing: their turns
// are TokenCache's.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "router/request/request_input.h"

namespace baton::router {

/// Any thread. The least recently used chats go when they would take more than its bytes.
class SeenChats {
 public:
  /// `capacity_bytes` counts texts, ids and bookkeeping; 0 keeps nothing.
  explicit SeenChats(size_t capacity_bytes);

  /// Nothing: not kept.
  std::optional<PromptIds> Find(const ChatPrompt& chat);
  /// `ids` are those of `chat`.
  void Keep(const ChatPrompt& chat, const PromptIds& ids);
  struct Counts {
    int64_t found_bytes = 0;  ///< of messages, since its start
    size_t kept_bytes = 0;    ///< now
  };
  Counts counts() const;

 private:
  struct Entry {
    uint64_t hash;
    ChatPrompt chat;
    PromptIds ids;
  };
  uint64_t HashOf(const ChatPrompt& chat) const;
  static size_t CostOf(const Entry& entry);
  void Drop(std::list<Entry>::iterator entry);

  const size_t capacity_;
  const uint64_t seed_;  // of the process's own: clients choose the texts
  mutable std::mutex mutex_;
  std::array<uint64_t, 4096> once_{};  // hashes of chats that came once, each at its place by its low bits
  std::list<Entry> entries_;           // most recently used first
  absl::flat_hash_map<uint64_t, std::list<Entry>::iterator> by_hash_;
  Counts counts_;
};

}  // namespace baton::router
