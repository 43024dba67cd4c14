// Whole chats that come again: what is kept, when, and that nothing else is taken for it.
#include "router/request/seen_chats.h"

#include <gtest/gtest.h>

#include <functional>

#include "common/str_cat.h"

namespace baton::router {
namespace {

ChatPrompt ChatOf(const std::string& text) {
  ChatPrompt chat;
  chat.messages_json = StrCat(R"([{"role":"user","content":")", text, R"("}])");
  return chat;
}

// Twice: it is kept the second time.
void KeepTwice(SeenChats& seen, const ChatPrompt& chat, const std::vector<int32_t>& ids) {
  seen.Keep(chat, ids, "");
  seen.Keep(chat, ids, "");
}

TEST(SeenChats, AChatIsKeptTheSecondTimeItComes) {
  SeenChats seen(1 << 20);
  const ChatPrompt chat = ChatOf("a");
  seen.Keep(chat, {1, 2, 3}, "");
  EXPECT_EQ(seen.Find(chat, ""), std::nullopt);
  EXPECT_EQ(seen.counts().kept_bytes, 0u);
  seen.Keep(chat, {1, 2, 3}, "");
  ASSERT_NE(seen.Find(chat, ""), std::nullopt);
  EXPECT_EQ(*seen.Find(chat, ""), (std::vector<int32_t>{1, 2, 3}));
}

TEST(SeenChats, AChatThatDiffersInAnyFieldIsAnother) {
  SeenChats seen(1 << 20);
  const ChatPrompt chat = ChatOf("a");
  KeepTwice(seen, chat, {1});
  const std::vector<std::function<void(ChatPrompt&)>> changes = {
      [](ChatPrompt& c) { c.messages_json = ChatOf("b").messages_json; },
      [](ChatPrompt& c) { c.tools_json = "[]"; },
      [](ChatPrompt& c) { c.kwargs_json = "{}"; },
      [](ChatPrompt& c) { c.add_generation_prompt = false; },
      [](ChatPrompt& c) { c.continue_final_message = true; },
      [](ChatPrompt& c) { c.add_special_tokens = true; }};
  for (const auto& change : changes) {
    ChatPrompt other = chat;
    change(other);
    EXPECT_EQ(seen.Find(other, ""), std::nullopt);
    KeepTwice(seen, other, {2});
    EXPECT_EQ(*seen.Find(other, ""), (std::vector<int32_t>{2}));
    EXPECT_EQ(*seen.Find(chat, ""), (std::vector<int32_t>{1}));
  }
}

TEST(SeenChats, AChatOfAnotherSaltIsAnother) {
  SeenChats seen(1 << 20);
  const ChatPrompt chat = ChatOf("a");
  const PromptIds ids = std::vector<int32_t>{1};
  seen.Keep(chat, ids, "alice");
  seen.Keep(chat, ids, "bob");
  EXPECT_EQ(seen.Find(chat, "bob"), std::nullopt) << "of his it came once";
  seen.Keep(chat, ids, "alice");
  EXPECT_NE(seen.Find(chat, "alice"), std::nullopt);
  EXPECT_EQ(seen.Find(chat, "bob"), std::nullopt);
  EXPECT_EQ(seen.Find(chat, ""), std::nullopt);
}

TEST(SeenChats, TheLeastRecentlyUsedGoFirstAndTheBytesAreKept) {
  constexpr size_t kCapacity = 16 << 10;
  SeenChats seen(kCapacity);
  const std::vector<int32_t> ids(256, 7);
  const ChatPrompt loved = ChatOf("loved");
  KeepTwice(seen, loved, ids);
  for (int i = 0; i < 100; ++i) {
    KeepTwice(seen, ChatOf(StrCat("chat ", i)), ids);
    ASSERT_LE(seen.counts().kept_bytes, kCapacity);
    ASSERT_NE(seen.Find(loved, ""), std::nullopt) << i;
  }
  EXPECT_EQ(seen.Find(ChatOf("chat 0"), ""), std::nullopt);
  EXPECT_NE(seen.Find(ChatOf("chat 99"), ""), std::nullopt);
  const size_t before = seen.counts().kept_bytes;
  KeepTwice(seen, ChatOf(std::string(kCapacity / 2, 'x')), ids);  // would drive out most of the others
  EXPECT_EQ(seen.counts().kept_bytes, before);
  SeenChats none(0);
  KeepTwice(none, loved, ids);
  EXPECT_EQ(none.Find(loved, ""), std::nullopt);
}

TEST(SeenChats, APromptHasTheSameIdsHoweverOftenItComes) {
  auto model = ModelText::Load("tests/data/tiny-llama", "", true, 1 << 20);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto ids = [&](const ChatPrompt& chat) {
    return std::get<TokenizedPrompt>(TokenizePrompt(*model, chat, "")).ids;
  };
  const PromptIds first = ids(ChatOf("Hello there"));
  EXPECT_EQ(ids(ChatOf("Hello there")), first);
  const auto counts = model->prompt_ids->counts();
  EXPECT_EQ(ids(ChatOf("Hello there")), first);
  EXPECT_EQ(model->prompt_ids->counts().found_bytes, counts.found_bytes)
      << "the third needs no template and no cutting";
  EXPECT_GT(model->seen_chats->counts().kept_bytes, 0u);
  EXPECT_EQ(model->seen_chats->counts().found_bytes, static_cast<int64_t>(ChatOf("Hello there").messages_json.size()));
}

TEST(SeenChats, AChatThatWasSeenIsNoTextThatHasToBeRead) {
  auto model = ModelText::Load("tests/data/tiny-llama", "", true, 1 << 20);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto ids = [&](const Prompt& prompt) {
    return std::get<TokenizedPrompt>(TokenizePrompt(*model, prompt, "")).ids;
  };
  Prompt prompt = ChatOf("Hello there");
  const PromptIds first = ids(prompt);
  EXPECT_FALSE(TakeSeen(*model, prompt, "")) << "it came once";
  EXPECT_TRUE(std::holds_alternative<ChatPrompt>(prompt));
  ids(prompt);
  EXPECT_TRUE(TakeSeen(*model, prompt, ""));
  EXPECT_EQ(TextBytes(prompt), 0u);
  EXPECT_EQ(ids(prompt), first);
  EXPECT_FALSE(TakeSeen(*model, prompt, "")) << "there is nothing left to find";
  for (Prompt other : {Prompt(ChatOf("Hello")), Prompt(TextPrompt{"Hello there"}), Prompt(TokensPrompt{1, 2})}) {
    const size_t bytes = TextBytes(other), kind = other.index();
    EXPECT_FALSE(TakeSeen(*model, other, ""));
    EXPECT_EQ(TextBytes(other), bytes);
    EXPECT_EQ(other.index(), kind);
  }
}

// Its text is another a minute later.
TEST(SeenChats, ChatsOfATemplateThatReadsTheClockAreNotKept) {
  auto model = ModelText::Load("tests/data/tiny-llama", "", true, 1 << 20);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_FALSE(model->chat_template->reads_clock());
  auto clock = ChatTemplate::Create("{{ strftime_now('%Y') }}{{ messages[0].content }}", TemplateTokens{});
  ASSERT_TRUE(clock.ok()) << clock.status();
  EXPECT_TRUE((*clock)->reads_clock());
  model->chat_template = *std::move(clock);
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(std::get<TokenizedPrompt>(TokenizePrompt(*model, ChatOf("Hi"), "")).ids.empty());
  }
  Prompt prompt = ChatOf("Hi");
  EXPECT_FALSE(TakeSeen(*model, prompt, ""));
  EXPECT_EQ(model->seen_chats->counts().kept_bytes, 0u);
}

}  // namespace
}  // namespace baton::router
