#include "load/answer_reader.h"

#include <gmock/gmock.h>

#include <optional>

namespace baton::load {
namespace {

using testing::ElementsAre;

TEST(EventLines, EventsAreTheSameInWhateverPiecesTheirBytesCome) {
  const std::string bytes = ": hello\ndata: {\"a\":1}\r\n\r\nevent: x\ndata: one\ndata:two\n\n\n\ndata: [DONE]\n\n";
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    EventLines lines;
    std::vector<std::string> events;
    for (size_t at = 0; at < bytes.size(); at += piece)
      EXPECT_TRUE(
          lines.Feed(std::string_view(bytes).substr(at, piece), [&](std::string_view e) { events.emplace_back(e); }));
    EXPECT_THAT(events, ElementsAre("{\"a\":1}", "one\ntwo", "[DONE]")) << piece;
  }
}

TEST(Apply, CountsThatComeWithEveryEventOnlyGrow) {
  Answer a;
  for (const char* usage :
       {R"({"prompt_tokens":7,"completion_tokens":0})", R"({"prompt_tokens":7,"completion_tokens":1})",
        R"({"prompt_tokens":7,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":4}})",
        R"({"prompt_tokens":7})", R"({"prompt_tokens":0,"completion_tokens":0})"})
    Apply(std::string(R"({"choices":[{"text":"x"}],"usage":)") + usage + "}", a);
  EXPECT_TRUE(a.counted);
  EXPECT_EQ(a.prompt_tokens, 7);
  EXPECT_EQ(a.completion_tokens, 5);
  EXPECT_EQ(a.cached_tokens, 4);
}

TEST(Apply, BehindDoneThereIsNothing) {
  Answer a;
  EXPECT_EQ(Apply(R"({"choices":[{"text":"x","finish_reason":"stop"}]})", a), Event::kText);
  Apply("[DONE]", a);
  EXPECT_EQ(Apply(R"({"choices":[{"text":"late"}]})", a), Event::kNothing);
  EXPECT_EQ(Apply("{broken", a), Event::kNothing);
  EXPECT_EQ(a.text, "x");
}

TEST(EventLines, ALineMayEndWithACrAloneAndAByteOrderMarkIsSkipped) {
  const std::string bytes =
      "\xEF\xBB\xBF"
      "data: one\r\rdata: two\r\n\r\ndata: three\r\n\rdata: four\n\n";
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    EventLines lines;
    std::vector<std::string> events;
    for (size_t at = 0; at < bytes.size(); at += piece)
      EXPECT_TRUE(
          lines.Feed(std::string_view(bytes).substr(at, piece), [&](std::string_view e) { events.emplace_back(e); }));
    EXPECT_THAT(events, ElementsAre("one", "two", "three", "four")) << piece;
  }
}

TEST(EventLines, ABodyBeginsAsEventsOrNotOnceThatIsSeen) {
  for (const char* yes : {"data:", "data: x", ": ping", "\r\n\ndata: x", "event: x", "id: 1", "retry: 5",
                          "\xEF\xBB\xBF"
                          "data: x"})
    EXPECT_EQ(BeginsAsEvents(yes), std::optional(true)) << yes;
  for (const char* no : {"{", "<html>", "datum", "eve: ", " data: x", "x"})
    EXPECT_EQ(BeginsAsEvents(no), std::optional(false)) << no;
  for (const char* unseen : {"", "\n", "d", "data", "\xEF", "\xEF\xBB\xBF",
                             "\xEF\xBB\xBF"
                             "eve"})
    EXPECT_EQ(BeginsAsEvents(unseen), std::nullopt) << unseen;
}

TEST(EventLines, AnEventWithoutEndIsNotKept) {
  EventLines lines(100);
  EXPECT_TRUE(lines.Feed("data: " + std::string(80, 'x'), [](std::string_view) {}));
  EXPECT_FALSE(lines.Feed(std::string(80, 'x'), [](std::string_view) {}));
}

TEST(Apply, ACompletionAndAChatGiveTheirTextAndCounts) {
  Answer a;
  EXPECT_EQ(Apply(R"({"choices":[{"text":"Hel"}]})", a), Event::kText);
  EXPECT_EQ(Apply(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})", a), Event::kNothing);
  EXPECT_EQ(Apply(R"({"choices":[{"delta":{"content":"lo"},"finish_reason":null}],"usage":null})", a), Event::kText);
  EXPECT_EQ(Apply(R"({"choices":[{"delta":{},"finish_reason":"stop"}]})", a), Event::kNothing);
  EXPECT_EQ(
      Apply(
          R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":3}},
                      "timings":{"queue_prefill_ms":1,"prefill_ms":2.5,"transfer_ms":4,"queue_decode_ms":8,"first_decode_ms":16,"decode_ms":99,
                      "router_ms":0.5,"lost_ms":0.25,"reserve_ms":2,"network_ms":0.125}})",
          a),
      Event::kNothing);
  EXPECT_EQ(Apply("[DONE]", a), Event::kNothing);
  EXPECT_EQ(a.text, "Hello");
  EXPECT_TRUE(a.finished && a.done && a.counted);
  EXPECT_EQ(a.prompt_tokens, 7);
  EXPECT_EQ(a.completion_tokens, 2);
  EXPECT_EQ(a.cached_tokens, 3);
  ASSERT_TRUE(a.stages);
  EXPECT_EQ(a.stages->ToFirst(), 3.5 + 0.5 + 0.25 + 2 + 0.125);
  EXPECT_EQ(a.stages->ToSecond(), 28);
}

TEST(Apply, WhatAServerCountsIsBelievedOnlyWhereItIsACount) {
  for (const char* usage : {"{}", R"({"completion_tokens":-3,"prompt_tokens":-5})", R"({"completion_tokens":1e30})",
                            R"({"completion_tokens":null})", R"({"prompt_tokens":4})"}) {
    Answer a;
    Apply(R"({"choices":[{"text":"a"}]})", a);
    Apply(std::string(R"({"choices":[],"usage":)") + usage + "}", a);
    EXPECT_FALSE(a.counted) << usage;
    EXPECT_GE(a.prompt_tokens, 0) << usage;
    EXPECT_EQ(a.completion_tokens, 0) << usage;
  }
  Answer none;
  Apply(R"({"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":0}})", none);
  EXPECT_TRUE(none.counted);
}

TEST(Apply, TimingsOfAnotherServerAreNoStages) {
  Answer a;
  Apply(R"({"choices":[{"text":"a"}],"timings":{"prompt_n":5,"prompt_ms":20.5,"predicted_n":8,"predicted_ms":80.0}})",
        a);
  EXPECT_FALSE(a.stages);
  Apply(R"({"choices":[],"timings":{"queue_prefill_ms":1.5,"prefill_ms":2.0}})", a);
  ASSERT_TRUE(a.stages);
  EXPECT_EQ(a.stages->queue_prefill, 1.5);
}

TEST(Apply, AThoughtIsTextUnderEitherOfItsNamesAndNotTwice) {
  Answer a;
  EXPECT_EQ(Apply(R"({"choices":[{"delta":{"reasoning":"so "}}]})", a), Event::kText);
  EXPECT_EQ(Apply(R"({"choices":[{"delta":{"reasoning_content":"then","reasoning":"then"}}]})", a), Event::kText);
  EXPECT_EQ(a.text, "so then");
}

TEST(Apply, TheDataOfAnErrorEventIsTheErrorItself) {
  Answer a;
  Apply(R"({"message":"out of memory","code":500})", a);
  EXPECT_EQ(a.error, "out of memory");
  Answer old;
  Apply(R"({"object":"error","message":"too long","type":"BadRequestError"})", old);
  EXPECT_EQ(old.error, "too long");
}

TEST(Apply, AnAnswerThatEndsWithoutTextHasItsEndAsFirstToken) {
  Answer a;
  EXPECT_EQ(Apply(R"({"choices":[{"text":"","finish_reason":"stop"}]})", a), Event::kText);
}

TEST(Apply, WhatIsNoEventIsCalledSoAndAnErrorIsKept) {
  Answer a;
  for (const char* bad : {"", "{", "[1]", "7", "\"text\"", "{\"choices\":"})
    EXPECT_EQ(Apply(bad, a), Event::kMalformed) << bad;
  for (const char* empty : {"{}", R"({"choices":7})", R"({"choices":[7]})",
                            R"({"choices":[{"text":7,"delta":8}],"usage":{"prompt_tokens":"x"}})"})
    EXPECT_EQ(Apply(empty, a), Event::kNothing) << empty;
  Apply(R"({"error":{"message":"worker died","code":503}})", a);
  EXPECT_EQ(a.error, "worker died");
}

// What prints or copies a value calls itself once a level.
TEST(Apply, AnEventOfBracketsIsMalformedAndNotRecursedInto) {
  const std::string deep = std::string(2'000'000, '[') + std::string(2'000'000, ']');
  Answer a;
  EXPECT_EQ(Apply("{\"error\":" + deep + "}", a), Event::kMalformed);
  EXPECT_EQ(Apply("{\"choices\":[{\"delta\":{\"tool_calls\":[" + deep + "]}}]}", a), Event::kMalformed);
  const std::string fits = std::string(100, '[') + std::string(100, ']');
  EXPECT_EQ(Apply("{\"error\":" + fits + "}", a), Event::kNothing);
  EXPECT_EQ(a.error, fits);
}

TEST(Apply, ACountIsNoLargerThanAnybodyCounts) {
  Answer a;
  Apply(R"({"usage":{"prompt_tokens":9223372036854775807,"completion_tokens":18446744073709551615}})", a);
  EXPECT_EQ(a.prompt_tokens, int64_t{1} << 40) << "sums of it do not overflow";
  EXPECT_EQ(a.completion_tokens, 0);
}

}  // namespace
}  // namespace baton::load
