// Bodies that come again: what is kept, when, and that nothing else is taken for it.
#include "router/http/seen_bodies.h"

#include <gtest/gtest.h>

#include <functional>

#include "common/str_cat.h"
#include "router_fixture.h"

namespace baton::router {
namespace {

std::string ChatBody(const std::string& text, const std::string& more = "") {
  return StrCat(R"({"messages":[{"role":"user","content":")", text, R"("}],"max_tokens":1)", more, "}");
}
const std::string kLong(8000, 'x');

CompletionRequest RequestFor(std::vector<int32_t> ids) {
  CompletionRequest request;
  request.chat = true;
  request.input.sampling.max_tokens = static_cast<int32_t>(ids.size());
  request.prompts.emplace_back(SeenPrompt{PromptIds(std::move(ids))});
  return request;
}

// Twice: it is kept the second time.
void KeepTwice(SeenBodies& seen, BodyParser parse, const std::string& body, const CompletionRequest& request) {
  seen.Keep(parse, body, request, 7, "");
  seen.Keep(parse, body, request, 7, "");
}

std::vector<int32_t> IdsOf(const std::optional<CompletionRequest>& found) {
  return found ? std::get<SeenPrompt>(found->prompts.front()).ids.get() : std::vector<int32_t>{-1};
}

TEST(SeenBodies, ABodyIsKeptTheSecondTimeItsChatIsKnown) {
  SeenBodies seen(1 << 20);
  const std::string body = ChatBody(kLong);
  seen.Keep(ParseChatRequest, body, RequestFor({1, 2, 3}), 7, "");
  EXPECT_FALSE(seen.Find(ParseChatRequest, body, ""));
  EXPECT_EQ(seen.counts().kept_bytes, 0u);
  seen.Keep(ParseChatRequest, body, RequestFor({1, 2, 3}), 7, "");
  const auto found = seen.Find(ParseChatRequest, body, "");
  EXPECT_EQ(IdsOf(found), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(found->input.sampling.max_tokens, 3);
  EXPECT_TRUE(found->chat);
  EXPECT_GT(seen.counts().kept_bytes, body.size());
  EXPECT_EQ(seen.counts().found_bytes, 7);
}

TEST(SeenBodies, ABodyThatDiffersAnywhereOrIsReadOtherwiseIsAnother) {
  SeenBodies seen(1 << 20);
  const std::string body = ChatBody(kLong);
  KeepTwice(seen, ParseChatRequest, body, RequestFor({1}));
  EXPECT_FALSE(seen.Find(ParseMessagesRequest, body, ""));
  for (size_t at = 0; at < body.size(); at += 97) {
    std::string other = body;
    other[at] ^= 1;
    ASSERT_FALSE(seen.Find(ParseChatRequest, other, "")) << at;
  }
  for (const std::string& other : {body + " ", " " + body, body.substr(0, body.size() - 1)})
    EXPECT_FALSE(seen.Find(ParseChatRequest, other, ""));
  EXPECT_EQ(IdsOf(seen.Find(ParseChatRequest, body, "")), std::vector<int32_t>{1});
}

TEST(SeenBodies, ABodyOfAnotherKeyIsAnother) {
  SeenBodies seen(1 << 20);
  const std::string body = ChatBody(kLong);
  seen.Keep(ParseChatRequest, body, RequestFor({1}), 7, "alice");
  seen.Keep(ParseChatRequest, body, RequestFor({1}), 7, "bob");
  EXPECT_FALSE(seen.Find(ParseChatRequest, body, "bob")) << "of his it came once";
  seen.Keep(ParseChatRequest, body, RequestFor({1}), 7, "alice");
  EXPECT_TRUE(seen.Find(ParseChatRequest, body, "alice"));
  EXPECT_FALSE(seen.Find(ParseChatRequest, body, "bob"));
  EXPECT_FALSE(seen.Find(ParseChatRequest, body, ""));
}

TEST(SeenBodies, ShortOnesAndVeryLongOnesAreNotLookedAt) {
  SeenBodies seen(64 << 20);
  for (const size_t bytes : {size_t{100}, size_t{4096}, size_t{(512 << 10) + 1}}) {
    const std::string body(bytes, 'x');
    KeepTwice(seen, ParseChatRequest, body, RequestFor({1}));
    EXPECT_FALSE(seen.Find(ParseChatRequest, body, "")) << bytes;
  }
  EXPECT_EQ(seen.counts().kept_bytes, 0u);
  SeenBodies none(0);
  KeepTwice(none, ParseChatRequest, ChatBody(kLong), RequestFor({1}));
  EXPECT_FALSE(none.Find(ParseChatRequest, ChatBody(kLong), ""));
}

TEST(SeenBodies, TheLeastRecentlyUsedGoFirstAndTheBytesAreKept) {
  constexpr size_t kCapacity = 128 << 10;
  SeenBodies seen(kCapacity);
  const std::string loved = ChatBody(kLong);
  KeepTwice(seen, ParseChatRequest, loved, RequestFor({1}));
  for (int i = 0; i < 50; ++i) {
    KeepTwice(seen, ParseChatRequest, ChatBody(StrCat(i, kLong)), RequestFor({2}));
    ASSERT_LE(seen.counts().kept_bytes, kCapacity);
    ASSERT_TRUE(seen.Find(ParseChatRequest, loved, "")) << i;
  }
  EXPECT_FALSE(seen.Find(ParseChatRequest, ChatBody(StrCat(0, kLong)), ""));
  EXPECT_TRUE(seen.Find(ParseChatRequest, ChatBody(StrCat(49, kLong)), ""));
  const size_t before = seen.counts().kept_bytes;
  KeepTwice(seen, ParseChatRequest, ChatBody(std::string(kCapacity / 2, 'x')), RequestFor({3}));
  EXPECT_EQ(seen.counts().kept_bytes, before) << "it would drive out most of the others";
}

using SeenBodiesOfARouter = RouterTest;

// Each body comes so often that it is read as JSON, then its chat is known, then it is.
TEST_F(SeenBodiesOfARouter, AreAskedForAgainAsTheyWereAndMixedUpWithNoOthers) {
  constexpr size_t kTimes = 6;
  FakeWorker worker({.max_model_len = 1 << 16, .vocab_size = 1 << 20});
  Start({&worker});
  std::string turned = kLong;
  turned[4000] = 'y';
  const std::vector<std::string> bodies = {ChatBody(kLong), ChatBody(turned), ChatBody(kLong, R"(,"seed":5)"),
                                           ChatBody(kLong, R"(,"echo":true,"n":2)"),
                                           R"({"messages":[],"padding":")" + kLong + R"("})"};
  std::vector<HttpReply> first;
  std::vector<v1::Attach> asked;
  int64_t text_bytes = 0;
  for (size_t time = 0; time < kTimes; ++time) {
    for (size_t i = 0; i < bodies.size(); ++i) {
      const double before = Metric("baton_router_token_cache_found_bytes_total");
      const HttpReply reply = Ask(port_, "POST", "/v1/chat/completions", bodies[i]);
      const auto attaches = worker.attaches();
      if (i + 1 == bodies.size()) {
        EXPECT_EQ(reply.status, 400) << "what is wrong is no less so the next time";
        continue;
      }
      ASSERT_EQ(reply.status, 200) << reply.body;
      const v1::Attach& now = attaches.back();
      if (time == 0) asked.push_back(now);
      EXPECT_GT(now.short_prompt_token_ids().size(), 2 * 1024u) << "the worker takes such";
      EXPECT_EQ(now.short_prompt_token_ids(), asked[i].short_prompt_token_ids()) << i << " the time " << time;
      EXPECT_EQ(now.sampling().n(), asked[i].sampling().n());
      EXPECT_EQ(now.sampling().max_tokens(), 1);
      EXPECT_EQ(now.sampling().seed() == 5, i == 2) << i << " the time " << time;
      EXPECT_EQ(Json::parse(reply.body)["choices"].size(), i == 3 ? 2u : 1u);
      if (time < 2) continue;
      const double found = Metric("baton_router_token_cache_found_bytes_total") - before;
      if (time == 2 && i == 0) text_bytes = static_cast<int64_t>(found);
      EXPECT_EQ(found, static_cast<double>(text_bytes)) << "counted once, by whatever it was found";
    }
  }
  EXPECT_NE(asked[0].short_prompt_token_ids(), asked[1].short_prompt_token_ids());
  EXPECT_EQ(asked[0].short_prompt_token_ids(), asked[2].short_prompt_token_ids());
}

TEST_F(SeenBodiesOfARouter, OfOneKeyAreNewToAnotherUnlessTheyShareTheCache) {
  FakeWorker worker({.max_model_len = 1 << 16, .vocab_size = 1 << 20});
  for (const bool shared : {false, true}) {
    RouterConfig config;
    config.api_key = {"one", "another"};
    config.share_prefix_cache = shared;
    Start({&worker}, config);
    const auto found = [&](const std::string& key) {
      const double before = Metric("baton_router_token_cache_found_bytes_total");
      EXPECT_EQ(
          Ask(port_, "POST", "/v1/chat/completions", ChatBody(kLong), {{"Authorization", "Bearer " + key}}).status,
          200);
      return Metric("baton_router_token_cache_found_bytes_total") - before;
    };
    const double first = found("one");
    for (int i = 0; i < 3; ++i) EXPECT_GT(found("one"), first + static_cast<double>(kLong.size()) / 2);
    EXPECT_EQ(found("another") == first, !shared);
  }
}

}  // namespace
}  // namespace baton::router
