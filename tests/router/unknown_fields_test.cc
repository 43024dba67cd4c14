// Fields that nobody reads: refused with the name that was meant, or ignored and listed.
#include "parsed_request.h"

namespace baton::router {
namespace {

TEST(JsonRequest, UnknownFieldsAreAcceptedAndListed) {
  const auto r = Chat(With(R"("bar":"u","foo":{"bar":[1]})"));
  EXPECT_EQ(r.unknown_fields, (std::vector<std::string>{"bar", "foo"}));
}

TEST(JsonRequest, AFieldThatWasMeantToBeAnotherIsRefusedWithItsName) {
  const std::pair<const char*, const char*> slips[] = {
      {R"("max_token":5)", "unknown field `max_token`: did you mean `max_tokens`?"},
      {R"("temprature":1)", "unknown field `temprature`: did you mean `temperature`?"},
      {R"("stops":["a"])", "unknown field `stops`: did you mean `stop`?"},
      {R"("repeat_penalty":1.1)", "unknown field `repeat_penalty`: it is `repetition_penalty` here."},
      {R"("num_predict":5)", "unknown field `num_predict`: it is `max_tokens` here."},
      {R"("stop_sequences":["a"])", "unknown field `stop_sequences`: it is `stop` here."},
      {R"("num_ctx":4096)",
       "unknown field `num_ctx`: the context is the same for every request here: the server's --max-model-len sets "
       "it."},
      {R"("options":{"num_ctx":1})", "unknown field `options`: the fields in it stand beside `model` here."}};
  for (const auto& [field, message] : slips) {
    for (const ApiError& e : {ChatError(With(field)), TextError(TextWith(field))}) {
      EXPECT_EQ(e.http_status, 400) << field;
      EXPECT_EQ(e.message, message);
      EXPECT_EQ(e.code, "unknown_parameter");
      EXPECT_TRUE(std::string(field).starts_with("\"" + e.param + "\"")) << e.param;
    }
  }
  EXPECT_NE(ChatError(With(R"("system":"be kind")")).message.find("`messages`"), std::string::npos);
  EXPECT_EQ(ChatError(R"({"message":[]})").message, "unknown field `message`: did you mean `messages`?");
  EXPECT_EQ(TextError(TextWith(R"("max_completion_tokens":5)")).message,
            "unknown field `max_completion_tokens`: it is `max_tokens` here.");
}

TEST(JsonRequest, AFieldWhoseRightNameIsGivenTooIsOnlyIgnored) {
  const auto r =
      Chat(With(R"("max_token":5,"n_predict":6,"repeat_penalty":1.1,"max_tokens":7,"repetition_penalty":1.2)"));
  EXPECT_EQ(r.input.sampling.max_tokens, 7);
  EXPECT_EQ(r.unknown_fields, (std::vector<std::string>{"max_token", "n_predict", "repeat_penalty"}));
  EXPECT_EQ(Chat(With(R"("max_new_tokens":5,"max_completion_tokens":7)")).input.sampling.max_tokens, 7);
}

// What clients of OpenAI, vLLM and OpenRouter send beside what this server reads; and short names near to short ones.
TEST(JsonRequest, FieldsOfOtherServersThatMeanNothingHereAreNeverRefused) {
  for (const char* name : {"prediction",
                           "prompt_cache_retention",
                           "safety_identifier",
                           "verbosity",
                           "moderation",
                           "mm_processor_kwargs",
                           "media_io_kwargs",
                           "vllm_xargs",
                           "data_parallel_rank",
                           "cache_control",
                           "provider",
                           "plugins",
                           "transforms",
                           "route",
                           "models",
                           "reasoning",
                           "thinking",
                           "usage",
                           "mode",
                           "id",
                           "k",
                           "top_a",
                           "tfs",
                           "session_id",
                           "keep_alive",
                           "max_tool_calls",
                           "truncation",
                           "include",
                           "background",
                           "text",
                           "input",
                           "client_metadata",
                           "enable_thinking",
                           "chat_id",
                           "conversation",
                           "instructions",
                           "timeout",
                           "extra_headers"}) {
    const auto parsed = ParseChatRequest(With(StrCat("\"", name, "\":1")), kLimits);
    const auto* request = std::get_if<CompletionRequest>(&parsed);
    ASSERT_TRUE(request != nullptr) << name << ": " << std::get<ApiError>(parsed).message;
    EXPECT_EQ(request->unknown_fields, std::vector<std::string>{name});
  }
  const std::string of_openai =
      R"("user":"u","store":true,"metadata":{"a":"b"},"service_tier":"auto","parallel_tool_calls":true,"stream":true,)"
      R"("stream_options":{"include_usage":true},"n":1,"logit_bias":{},"seed":1,"modalities":["text"],"tool_choice":"none",)"
      R"("response_format":{"type":"text"},"reasoning_effort":"low","function_call":"none","functions":[])";
  EXPECT_TRUE(Chat(With(of_openai)).unknown_fields.empty());
}

}  // namespace
}  // namespace baton::router
