// Every shape of an answer, byte for byte.
#include "router/http/openai_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/str_cat.h"
#include "router/http/finish_reason.h"

namespace baton::router {
namespace {

const Tokenizer& TheTokenizer() {
  static const auto* tokenizer = Tokenizer::FromHfDirectory("tests/data/tiny-llama").value().release();
  return *tokenizer;
}

OpenAiJson Make(bool chat, bool ids = false, bool as_ids = false) {
  return OpenAiJson(AnswerHead{chat ? "chatcmpl-1" : "cmpl-1", 1700000000, "m", chat, ids, as_ids}, TheTokenizer());
}

constexpr const char* kChat =
    R"({"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m",)";
constexpr const char* kText = R"({"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m",)";

std::string DataEvent(const char* head, const std::string& rest) {
  return "data: " + std::string(head) + rest + "\n\n";
}

ChoicePart Part(std::string text, std::vector<int32_t> ids = {}) {
  ChoicePart part;
  part.text = std::move(text);
  part.token_ids = std::move(ids);
  return part;
}

PositionLogprobs LogprobsAt(int32_t token, float logprob, std::vector<TokenLogprob> top = {}) {
  return {{token, logprob, 1}, std::move(top)};
}

TEST(FinishReason, CallsCountWhereTheAnswerEndedWithThem) {
  const ChoiceFinish by_stop{0, FinishReason::kStop, std::nullopt, "END"}, by_length{0, FinishReason::kLength};
  const ChoiceFinish by_model{0, FinishReason::kStop}, stuck{.reason = FinishReason::kStop, .nothing_allowed = true};
  EXPECT_TRUE(EndedInCalls(by_stop) && EndedInCalls(by_model));
  EXPECT_FALSE(EndedInCalls(by_length) || EndedInCalls(stuck));
  EXPECT_STREQ(OpenAiFinishReason(by_stop, true), "tool_calls");
  EXPECT_STREQ(OpenAiFinishReason(by_stop, false), "stop");
  EXPECT_STREQ(MessagesStopReason(by_stop, true), "tool_use");
  EXPECT_STREQ(MessagesStopReason(by_stop, false), "stop_sequence");
  EXPECT_STREQ(OpenAiFinishReason(by_length, false), "length");
}

TEST(JsonWriter, BytesThatAreNoUtf8BecomeUtf8) {
  const auto json = [](std::string_view text) {
    std::string out;
    AppendJsonString(text, out);
    return out;
  };
  EXPECT_EQ(json("a\xff\x00z"), "\"a\uFFFD\"") << "a literal ends at its NUL";
  EXPECT_EQ(json(std::string_view("\xff\0\xe2\x82", 4)), "\"\uFFFD\\u0000\uFFFD\"");
  EXPECT_EQ(json("é\"👩"), "\"é\\\"👩\"");
  const std::string block(64, 'x');
  EXPECT_EQ(json(StrCat(block, "\xff", block, block)), StrCat("\"", block, "\uFFFD", block, block, "\""));
  EXPECT_EQ(json(StrCat(block, "é", block, block)), StrCat("\"", block, "é", block, block, "\""));
}

TEST(JsonWriter, EveryByteIsEscapedAtEveryPlace) {
  for (int c = 0; c < 0x80; ++c) {
    std::string escaped(1, static_cast<char>(c));
    if (c == '"' || c == '\\') escaped.insert(0, "\\");
    if (c < 0x20) {
      char text[8];
      std::snprintf(text, sizeof text, "\\u%04x", c);
      escaped = c == '\n' ? "\\n" : c == '\r' ? "\\r" : c == '\t' ? "\\t" : text;
    }
    for (size_t at = 0; at < 150; ++at) {
      const std::string before(at, 'x'), byte(1, static_cast<char>(c)), after(149 - at, '~');
      std::string out;
      AppendJsonString(StrCat(before, byte, after), out);
      EXPECT_EQ(out, StrCat("\"", before, escaped, after, "\"")) << "byte " << c << " at " << at;
    }
  }
}

TEST(JsonWriter, ASeedOf64BitsStaysOne) {
  std::string out;
  JsonWriter(out).Uint(~uint64_t{0});
  EXPECT_EQ(out, "18446744073709551615");
}

TEST(OpenAiJson, ChatChunks) {
  OpenAiJson json = Make(true);
  EXPECT_EQ(
      json.RoleChunk(0, {}),
      DataEvent(
          kChat,
          R"("choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]})"));
  EXPECT_EQ(
      json.TextChunk(Part("a\"\n\x01"), {OpenAiJson::Usage::kNull}),
      DataEvent(
          kChat,
          R"("choices":[{"index":0,"delta":{"content":"a\"\n\u0001"},"logprobs":null,"finish_reason":null}],"usage":null})"));
  EXPECT_EQ(
      json.FinishChunk(1, {1, FinishReason::kLength}, {}),
      DataEvent(kChat,
                R"("choices":[{"index":1,"delta":{},"logprobs":null,"finish_reason":"length","stop_reason":null}]})"));
  EXPECT_EQ(
      json.UsageChunk({OpenAiJson::Usage::kGiven,
                       {3, 4, 1},
                       StageTimings{0, 1.5, 0, 0, 0.25, 2, 3, 0, 4, 0.5},
                       false,
                       {20, 50, 30, 3}}),
      DataEvent(
          kChat,
          R"("choices":[],"usage":{"prompt_tokens":3,"total_tokens":7,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":1}},)"
          R"("timings":{"queue_prefill_ms":0.0,"prefill_ms":1.5,"transfer_ms":0.0,"queue_decode_ms":0.0,"first_decode_ms":0.25,"decode_ms":2.0,)"
          R"("router_ms":3.0,"lost_ms":0.0,"reserve_ms":4.0,"network_ms":0.5},)"
          R"("metrics":{"time_to_first_token_ms":20.0,"generation_time_ms":50.0,"queue_time_ms":0.0,"mean_itl_ms":10.0,"tokens_per_second":80.0}})"));
  EXPECT_THAT(json.UsageChunk({OpenAiJson::Usage::kGiven, {3, 4, 1, 3}, StageTimings{}, /*mixed_numerics=*/true}),
              testing::HasSubstr(R"("output_token_metrics":{"reasoning":3,"content":1}},"numerics":"mixed"})"));
  EXPECT_STREQ(OpenAiJson::DoneEvent(), "data: [DONE]\n\n");
}

TEST(OpenAiJson, AChunkOfTextAloneSaysWhatAnyChunkSays) {
  for (const bool chat : {true, false}) {
    OpenAiJson json = Make(chat);
    for (const auto usage : {OpenAiJson::Usage::kAbsent, OpenAiJson::Usage::kNull, OpenAiJson::Usage::kAbsent}) {
      for (const uint32_t index : {0U, 1U, 12U}) {
        ChoicePart part = Part("say \"hé\"");
        part.index = index;
        const std::string text = R"("say \"hé\"")";
        const std::string choice =
            chat ? R"("delta":{"content":)" + text + R"(},"logprobs":null,"finish_reason":null}])"
                 : R"("text":)" + text + R"(,"logprobs":null,"finish_reason":null,"stop_reason":null}])";
        EXPECT_EQ(json.TextChunk(part, {usage}),
                  DataEvent(chat ? kChat : kText, R"("choices":[{"index":)" + std::to_string(index) + "," + choice +
                                                      (usage == OpenAiJson::Usage::kNull ? R"(,"usage":null})" : "}")));
      }
    }
  }
}

TEST(OpenAiJson, TextChunks) {
  OpenAiJson json = Make(false, true);
  EXPECT_EQ(
      json.TextChunk(Part("ab", {67, 68}), {}),
      DataEvent(
          kText,
          R"("choices":[{"index":0,"text":"ab","logprobs":null,"finish_reason":null,"stop_reason":null,"token_ids":[67,68]}]})"));
  EXPECT_EQ(
      json.FinishChunk(0, {0, FinishReason::kStop, std::nullopt, "END"}, {}),
      DataEvent(kText,
                R"("choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"stop","stop_reason":"END"}]})"));
  EXPECT_EQ(
      json.FinishChunk(0, {0, FinishReason::kStop, 7}, {}),
      DataEvent(kText, R"("choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"stop","stop_reason":7}]})"));
  EXPECT_EQ(
      json.FinishChunk(0, {.reason = FinishReason::kStop, .nothing_allowed = true}, {}),
      DataEvent(
          kText,
          R"("choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"stop","stop_reason":"nothing_allowed"}]})"));
}

TEST(OpenAiJson, TheFirstChunkHasThePromptsTokensWhereTheyAreAskedFor) {
  const std::vector<int32_t> prompt = {5, 6};
  OpenAiJson::Tail tail;
  tail.prompt = &prompt;
  constexpr char kRole[] =
      R"("delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":[5,6]})";
  const std::string roles = Make(true, true).Begin(2, tail);
  EXPECT_THAT(roles, testing::StartsWith(DataEvent(kChat, StrCat(R"("choices":[{"index":0,)", kRole))));
  EXPECT_EQ(roles.find("prompt_token_ids"), roles.rfind("prompt_token_ids")) << "they are the answer's, not a choice's";
  OpenAiJson text = Make(false, true);
  EXPECT_THAT(text.TextChunk(Part("ab", {67, 68}), tail),
              testing::HasSubstr(R"("token_ids":[67,68],"prompt_token_ids":[5,6]}]})"));
  EXPECT_THAT(text.FinishChunk(0, {0, FinishReason::kStop}, tail),
              testing::HasSubstr(R"("stop_reason":null,"prompt_token_ids":[5,6]}]})"));
}

TEST(OpenAiJson, ChatLogprobs) {
  ChoicePart part = Part("a");
  part.wants_logprobs = true;
  part.logprobs = {LogprobsAt(67, -0.1F, {{67, -0.1F, 1}, {288, -2.5F, 2}})};
  EXPECT_EQ(
      Make(true).TextChunk(part, {}),
      DataEvent(
          kChat,
          R"("choices":[{"index":0,"delta":{"content":"a"},"logprobs":{"content":[{"token":"a","logprob":-0.1,"bytes":[97],)"
          R"("top_logprobs":[{"token":"a","logprob":-0.1,"bytes":[97]},{"token":" the","logprob":-2.5,"bytes":[32,116,104,101]}]}],)"
          R"("refusal":null},"finish_reason":null}]})"));
}

TEST(OpenAiJson, TextLogprobsHaveOffsetsAndNullForTheFirstPromptToken) {
  ChoicePart part = Part("a the");
  part.wants_logprobs = true;
  part.text_offset = 10;
  part.logprobs = {{{67, 0, 0}, {}}, LogprobsAt(288, -1, {{288, -1, 1}, {67, -2, 2}})};
  EXPECT_EQ(
      Make(false).TextChunk(part, {}),
      DataEvent(
          kText,
          R"("choices":[{"index":0,"text":"a the","logprobs":{"text_offset":[10,11],"token_logprobs":[null,-1.0],"tokens":["a"," the"],)"
          R"("top_logprobs":[null,{" the":-1.0,"a":-2.0}]},"finish_reason":null,"stop_reason":null}]})"));
  EXPECT_NE(Make(false, false, true).TextChunk(part, {}).find(R"("tokens":["token_id:67","token_id:288"])"),
            std::string::npos);
}

TEST(OpenAiJson, LogprobsThatAreNoNumbersStayJson) {
  ChoicePart part = Part("a");
  part.wants_logprobs = true;
  part.logprobs = {LogprobsAt(67, -std::numeric_limits<float>::infinity())};
  EXPECT_NE(Make(true).TextChunk(part, {}).find("\"logprob\":-9999.0"), std::string::npos);
}

TEST(OpenAiJson, WholeAnswers) {
  WholeParts whole;
  whole.choices = {Part("hello")};
  whole.choices[0].finish = ChoiceFinish{0, FinishReason::kStop};
  whole.prompts = {{5, 6}};
  whole.prompt_logprobs = {std::nullopt};
  whole.fingerprint = "baton-x";
  const OpenAiJson::Tail tail{OpenAiJson::Usage::kGiven, {2, 1, 0}, std::nullopt};
  EXPECT_EQ(
      Make(true).WholeAnswer(whole, tail),
      R"({"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"m","choices":[{"index":0,)"
      R"("message":{"role":"assistant","content":"hello","refusal":null},"logprobs":null,"finish_reason":"stop","stop_reason":null}],)"
      R"("system_fingerprint":"baton-x","usage":{"prompt_tokens":2,"total_tokens":3,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}}})");
  whole.prompt_logprobs = {std::vector<PositionLogprobs>{LogprobsAt(67, -0.5F, {{67, -0.5F, 1}, {68, -1, 2}})}};
  whole.seed = 9;
  EXPECT_EQ(
      Make(false).WholeAnswer(whole, tail),
      R"({"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m","choices":[{"index":0,"text":"hello",)"
      R"("logprobs":null,"finish_reason":"stop","stop_reason":null,"prompt_logprobs":[null,{"67":{"logprob":-0.5,"rank":1,"decoded_token":"a"},)"
      R"("68":{"logprob":-1.0,"rank":2,"decoded_token":"b"}}]}],"system_fingerprint":"baton-x","seed":9,)"
      R"("usage":{"prompt_tokens":2,"total_tokens":3,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}}})");
}

TEST(OpenAiJson, Errors) {
  EXPECT_EQ(ErrorJson(BadRequest("no", "top_p")),
            R"({"error":{"message":"no","type":"invalid_request_error","param":"top_p","code":null}})");
  const ApiError full = Overloaded("5 wait", Overload{5, 1500, "--flag"});
  EXPECT_EQ(
      ErrorJson(full),
      R"({"error":{"message":"The server is overloaded: 5 wait. Predicted wait 1500 ms. The limit is set by --flag.",)"
      R"("type":"rate_limit_error","param":null,"code":"overloaded","queue_length":5,"predicted_wait_ms":1500,"flag":"--flag"}})");
  const HttpResponse response = ErrorResponse(full, {});
  EXPECT_EQ(response.status, 429);
  EXPECT_EQ(response.headers, (HttpHeaders{{"Retry-After", "2"}, {"retry-after-ms", "1500"}}));
  EXPECT_EQ(OpenAiJson::ErrorEvent(BadRequest("x")).substr(0, 16), "data: {\"error\":{");
}

TEST(ApiError, CodesOfGrpcBecomeStatusesOfHttp) {
  EXPECT_EQ(FromStatus(absl::InvalidArgumentError("x")).http_status, 400);
  EXPECT_EQ(FromStatus(absl::ResourceExhaustedError("x"), 2500).http_status, 429);
  EXPECT_EQ(FromStatus(absl::ResourceExhaustedError("x"), 2500).retry_after_ms, 2500);
  EXPECT_EQ(FromStatus(absl::UnavailableError("x")).http_status, 503);
  EXPECT_EQ(FromStatus(absl::DeadlineExceededError("x")).http_status, 504);
  EXPECT_EQ(FromStatus(absl::UnimplementedError("x")).http_status, 501);
  EXPECT_EQ(FromStatus(absl::InternalError("x")).http_status, 500);
}

TEST(OpenAiJson, AChunkOfThoughtsAloneShowsThem) {
  OpenAiJson json = Make(true);
  ChoicePart part = Part("");
  part.thoughts = "hm";
  EXPECT_THAT(json.TextChunk(part, {}), testing::HasSubstr(R"("delta":{"reasoning_content":"hm","reasoning":"hm"})"));
}

}  // namespace
}  // namespace baton::router
