#include "router/request/seen_chats.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <iterator>
#include <random>
#include <string_view>
#include <utility>

namespace baton::router {

SeenChats::SeenChats(size_t capacity_bytes)
    : capacity_(capacity_bytes), seed_((uint64_t{std::random_device()()} << 32) | std::random_device()()) {}

uint64_t SeenChats::HashOf(const ChatPrompt& chat) const {
  uint64_t hash = seed_ + (chat.add_generation_prompt ? 1 : 0) + (chat.continue_final_message ? 2 : 0) +
                  (chat.add_special_tokens ? 4 : 0);
  for (const std::string_view text :
       {std::string_view(chat.messages_json), std::string_view(chat.tools_json), std::string_view(chat.kwargs_json)}) {
    hash = XXH3_64bits_withSeed(text.data(), text.size(), hash);
  }
  return hash;
}

std::optional<PromptIds> SeenChats::Find(const ChatPrompt& chat) {
  if (capacity_ == 0) return std::nullopt;
  const uint64_t hash = HashOf(chat);
  std::lock_guard lock(mutex_);
  const auto found = by_hash_.find(hash);
  if (found == by_hash_.end() || found->second->chat != chat) return std::nullopt;
  counts_.found_bytes += static_cast<int64_t>(chat.messages_json.size());
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->ids;
}

void SeenChats::Keep(const ChatPrompt& chat, const PromptIds& ids) {
  if (capacity_ == 0) return;
  const uint64_t hash = HashOf(chat);
  {
    std::lock_guard lock(mutex_);
    uint64_t& once = once_[hash % once_.size()];
    if (std::exchange(once, hash) != hash) return;
  }
  Entry entry{hash, chat, ids};
  const size_t cost = CostOf(entry);
  if (cost > capacity_ / 4) return;  // one chat must not drive out all others
  std::lock_guard lock(mutex_);
  if (const auto other = by_hash_.find(hash); other != by_hash_.end()) Drop(other->second);
  entries_.push_front(std::move(entry));
  by_hash_[hash] = entries_.begin();
  counts_.kept_bytes += cost;
  while (counts_.kept_bytes > capacity_) Drop(std::prev(entries_.end()));
}

SeenChats::Counts SeenChats::counts() const {
  std::lock_guard lock(mutex_);
  return counts_;
}

size_t SeenChats::CostOf(const Entry& entry) {
  constexpr size_t kBookkeeping = 320;  // list node, map slot, counts
  return kBookkeeping + entry.chat.messages_json.size() + entry.chat.tools_json.size() + entry.chat.kwargs_json.size() +
         PromptIds::BytesOf(entry.ids.size());
}

// With `mutex_` held.
void SeenChats::Drop(std::list<Entry>::iterator entry) {
  counts_.kept_bytes -= CostOf(*entry);
  by_hash_.erase(entry->hash);
  entries_.erase(entry);
}

}  // namespace baton::router
