#include "router/request/seen_chats.h"

#include <memory>
#include <string_view>

namespace baton::router {

uint64_t SeenChats::HashOf(const ChatPrompt& chat, std::string_view salt) const {
  uint64_t hash = SaltedSeed(chats_.seed(), salt) + (chat.add_generation_prompt ? 1 : 0) +
                  (chat.continue_final_message ? 2 : 0) + (chat.add_special_tokens ? 4 : 0);
  for (const std::string_view text :
       {std::string_view(chat.messages_json), std::string_view(chat.tools_json), std::string_view(chat.kwargs_json)}) {
    hash = SeededHash(text, hash);
  }
  return hash;
}

std::optional<PromptIds> SeenChats::Find(const ChatPrompt& chat, std::string_view salt) {
  if (chats_.keeps_nothing()) return std::nullopt;
  const auto known = chats_.Find(HashOf(chat, salt));
  if (known == nullptr || known->chat != chat) return std::nullopt;
  found_bytes_ += static_cast<int64_t>(chat.messages_json.size());
  return known->ids;
}

void SeenChats::Keep(const ChatPrompt& chat, const PromptIds& ids, std::string_view salt) {
  if (chats_.keeps_nothing()) return;
  const uint64_t hash = HashOf(chat, salt);
  if (!chats_.CameBefore(hash)) return;
  chats_.Keep(
      hash, std::make_shared<const Known>(Known{chat, ids}),
      chat.messages_json.size() + chat.tools_json.size() + chat.kwargs_json.size() + PromptIds::BytesOf(ids.size()));
}

}  // namespace baton::router
