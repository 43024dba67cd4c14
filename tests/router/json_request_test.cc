#include "router/http/json_request.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "common/json.h"
#include "common/str_cat.h"
#include "parsed_request.h"
#include "proto/types.pb.h"
#include "router/http/openai_app.h"
#include "text/chat_template.h"

namespace baton::router {
namespace {

TEST(JsonRequest, AChatKeepsItsMessagesForTheTemplate) {
  const auto r = Chat(
      R"({"model":"m","messages":[{"role":"system","content":"be"},{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b\"\u00e9"}],"name":"x"},
    {"role":"assistant","content":null,"tool_calls":[{"id":1}]}],"stream":true,"stream_options":{"include_usage":true}})");
  EXPECT_EQ(r.input.model, "m");
  ASSERT_EQ(r.prompts.size(), 1u);
  EXPECT_EQ(std::get<ChatPrompt>(r.prompts[0]).messages_json,
            "[{\"role\":\"system\",\"content\":\"be\"},{\"role\":\"user\",\"content\":\"a\\nb\\\"é\",\"name\":\"x\"},"
            "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":1}]}]");
  EXPECT_TRUE(r.stream && r.include_usage);
}

TEST(JsonRequest, AnAssistantThatSaidNothingSaidTheEmptyText) {
  for (const char* none : {"", R"(,"content":null)", R"(,"content":null,"tool_calls":[])", R"(,"content":[])",
                           R"(,"tool_calls":[{"id":1}])", R"(,"content":null,"tool_calls":[{"id":1}])"}) {
    const auto r = Chat(StrCat(R"({"messages":[{"role":"assistant")", none, "}]}"));
    const std::string& messages = std::get<ChatPrompt>(r.prompts[0]).messages_json;
    EXPECT_NE(messages.find(R"("content":"")"), std::string::npos) << messages;
  }
}

// Clients send back a message as their library has it, with members that are null; templates ask whether they are
// there.
TEST(JsonRequest, WhatAMessageDoesNotHaveIsNotInIt) {
  const auto r = Chat(
      R"({"messages":[{"content":"Hi","refusal":null,"role":"assistant","annotations":null,"audio":null,"function_call":null,"tool_calls":null},)"
      R"({"role":"assistant","content":null,"tool_calls":[],"reasoning_content":null},{"role":"user","content":"a","name":null}]})");
  EXPECT_EQ(std::get<ChatPrompt>(r.prompts[0]).messages_json,
            R"([{"content":"Hi","role":"assistant"},{"role":"assistant","content":""},{"role":"user","content":"a"}])");
}

// Templates as SmolLM2's add the content to a string: calls without text are rendered as transformers does it for "".
TEST(JsonRequest, CallsWithoutTextRenderAsTheEmptyText) {
  const std::string folder = "tests/text/golden/templates/";
  std::ifstream in(folder + "cases.json");
  const auto golden = nlohmann::ordered_json::parse(in);
  const nlohmann::ordered_json body = {{"messages", golden["conversations"]["two_calls"]}};
  ASSERT_TRUE(body["messages"][1]["content"].is_null() && body["messages"][1].contains("tool_calls"));
  const auto chat = Chat(body.dump());
  const std::string& messages = std::get<ChatPrompt>(chat.prompts[0]).messages_json;
  EXPECT_EQ(nlohmann::json::parse(messages), nlohmann::json(golden["conversations"]["silent_calls"]));
  int rendered = 0;
  for (const auto& c : golden["cases"]) {
    std::ifstream file(folder + c["template"].get<std::string>() + ".jinja");
    if (c["conversation"] != "silent_calls" || !c.contains("expected") || c.contains("tools") || !file) continue;
    std::stringstream source;
    source << file.rdbuf();
    const auto& t = golden["tokens"];
    const auto chat_template =
        ChatTemplate::Create(source.str(), {t["bos_token"], t["eos_token"], t["pad_token"], t["unk_token"]});
    ASSERT_TRUE(chat_template.ok()) << chat_template.status();
    RenderRequest request{.messages_json = messages};
    request.add_generation_prompt = c.value("add_generation_prompt", false);
    const auto text = (*chat_template)->Render(request);
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(*text, c["expected"].get<std::string>()) << c["template"];
    ++rendered;
  }
  EXPECT_GE(rendered, 4);
}

TEST(JsonRequest, WhatIsKnownAtTheEndOnlyIsNotStreamed) {
  EXPECT_EQ(Text(TextWith(R"("n":2,"best_of":3)")).input.sampling.best_of, 3);
  Text(TextWith(R"("n":3,"best_of":3,"stream":true)"));
  Text(TextWith(R"("n":3,"best_of":1,"stream":true)"));
  for (const char* fields : {R"("n":2,"best_of":3,"stream":true)", R"("use_beam_search":true,"stream":true)"}) {
    EXPECT_EQ(TextError(TextWith(fields)).param, "stream") << fields;
    EXPECT_EQ(ChatError(With(fields)).param, "stream") << fields;
  }
  EXPECT_EQ(TextError(TextWith(R"("best_of":"x")")).param, "best_of");
}

TEST(JsonRequest, EarlyStoppingIsABooleanOrNever) {
  EXPECT_EQ(Chat(With(R"("early_stopping":false)")).input.sampling.early_stopping, 0);
  EXPECT_EQ(Chat(With(R"("early_stopping":true)")).input.sampling.early_stopping, 1);
  EXPECT_EQ(Text(TextWith(R"("early_stopping":"never")")).input.sampling.early_stopping, 2);
  EXPECT_EQ(ChatError(With(R"("early_stopping":"soon")")).param, "early_stopping");
  EXPECT_EQ(ChatError(With(R"("early_stopping":1)")).param, "early_stopping");
}

TEST(JsonRequest, EverySamplingFieldIsRead) {
  const auto r = Chat(With(
      R"("temperature":0,"top_p":0.5,"top_k":-1,"min_p":0.1,"presence_penalty":1,"frequency_penalty":-1,"repetition_penalty":1.1,
    "logit_bias":{"5":-100,"6":1.5},"allowed_token_ids":[1,2],"min_tokens":2,"max_tokens":9,"stop":["a","b"],"stop_token_ids":[3],"ignore_eos":true,
    "seed":18446744073709551615,"n":2,"logprobs":true,"top_logprobs":4,"priority":-3,"cache_salt":"s","skip_special_tokens":false)"));
  const SamplingOptions& s = r.input.sampling;
  EXPECT_EQ(s.temperature, 0.0F);
  EXPECT_EQ(s.top_p, 0.5F);
  EXPECT_EQ(s.top_k, -1);
  EXPECT_EQ(s.min_p, 0.1F);
  EXPECT_EQ(s.presence_penalty, 1.0F);
  EXPECT_EQ(s.frequency_penalty, -1.0F);
  EXPECT_EQ(s.repetition_penalty, 1.1F);
  EXPECT_EQ(s.logit_bias, (std::vector<std::pair<int32_t, float>>{{5, -100.0F}, {6, 1.5F}}));
  EXPECT_EQ(s.allowed_token_ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(s.min_tokens, 2);
  EXPECT_EQ(s.max_tokens, 9);
  EXPECT_EQ(r.input.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(s.stop_token_ids, (std::vector<int32_t>{3}));
  EXPECT_EQ(s.ignore_eos, true);
  EXPECT_EQ(s.seed, ~uint64_t{0});
  EXPECT_EQ(s.n, 2);
  EXPECT_EQ(s.logprobs, 4);
  EXPECT_EQ(r.input.priority, -3);
  EXPECT_EQ(r.input.cache_salt, "s");
  EXPECT_FALSE(r.input.skip_special_tokens);
}

TEST(JsonRequest, NullIsAbsentAndTheNewNameOfMaxTokensWins) {
  const auto r =
      Chat(With(R"("temperature":null,"stop":null,"max_completion_tokens":5,"max_tokens":7,"response_format":null)"));
  EXPECT_FALSE(r.input.sampling.temperature);
  EXPECT_TRUE(r.input.stop.empty());
  EXPECT_EQ(r.input.sampling.max_tokens, 5);
}

TEST(JsonRequest, ReasoningEffortIsAVariableOfTheTemplate) {
  const auto variables = [](const std::string& more) {
    return std::get<ChatPrompt>(Chat(With(more)).prompts[0]).kwargs_json;
  };
  EXPECT_EQ(variables(R"("reasoning_effort":"low")"), R"({"reasoning_effort":"low"})");
  EXPECT_EQ(variables(R"("reasoning_effort":"low","chat_template_kwargs":{})"), R"({"reasoning_effort":"low"})");
  EXPECT_EQ(variables(R"("reasoning_effort":"low","chat_template_kwargs":{"a":1})"),
            R"({"reasoning_effort":"low","a":1})");
  EXPECT_EQ(variables(R"("chat_template_kwargs":{"a":1})"), R"({"a":1})");
  EXPECT_EQ(ChatError(With(R"("reasoning_effort":3)")).param, "reasoning_effort");
}

TEST(JsonRequest, LimitsNameTheFieldThatTheClientSent) {
  const auto chat = Chat(With(R"("max_completion_tokens":5,"logprobs":true,"top_logprobs":2)"));
  EXPECT_STREQ(chat.input.max_tokens_field, "max_completion_tokens");
  EXPECT_STREQ(chat.input.logprobs_field, "top_logprobs");
  EXPECT_STREQ(Text(TextWith(R"("max_tokens":5,"logprobs":2)")).input.max_tokens_field, "max_tokens");
}

TEST(JsonRequest, FieldsThatChangeNothingAreAcceptedWhenTheirTypeIsRight) {
  const auto r =
      Chat(With(R"("user":"u","store":false,"metadata":{"a":"b"},"service_tier":"auto","parallel_tool_calls":true)"));
  EXPECT_TRUE(r.unknown_fields.empty());
  for (const char* field :
       {R"("user":3)", R"("store":"x")", R"("metadata":[])", R"("service_tier":{})", R"("parallel_tool_calls":1)"}) {
    EXPECT_EQ(ChatError(With(field)).http_status, 400) << field;
  }
}

TEST(JsonRequest, PromptsMayBeTextIdsOrListsOfBoth) {
  EXPECT_EQ(std::get<TextPrompt>(Text(R"({"prompt":"a"})").prompts[0]).text, "a");
  EXPECT_EQ(std::get<TokensPrompt>(Text(R"({"prompt":[1,2]})").prompts[0]), (TokensPrompt{1, 2}));
  const auto several = Text(R"({"prompt":["a",[3],"b"]})");
  ASSERT_EQ(several.prompts.size(), 3u);
  EXPECT_EQ(std::get<TokensPrompt>(several.prompts[1]), TokensPrompt{3});
  EXPECT_EQ(std::get<TextPrompt>(Text(R"({"prompt":"a","add_special_tokens":false})").prompts[0]).add_special_tokens,
            false);
  EXPECT_EQ(Text(R"({"prompt":"a"})").input.default_max_tokens, 16);
}

TEST(JsonRequest, EchoWithLogprobsAsksForThePromptsToo) {
  const auto r = Text(TextWith(R"("echo":true,"logprobs":3,"max_tokens":0)"));
  EXPECT_EQ(r.input.sampling.prompt_logprobs, 3);
  EXPECT_TRUE(r.prompt_only);
  EXPECT_EQ(r.input.sampling.max_tokens, 1);
  EXPECT_EQ(Text(TextWith(R"("echo":true,"logprobs":3,"stream":true)")).input.sampling.prompt_logprobs, 3);
}

TEST(JsonRequest, AChatsEchoIsTheLastMessageOfTheSameSpeaker) {
  const auto echoed = [](const char* role, const char* more) {
    return Chat(StrCat(R"({"messages":[{"role":")", role, R"(","content":"so"}],"echo":true)", more, "}"));
  };
  EXPECT_FALSE(echoed("user", "").echo);
  EXPECT_TRUE(echoed("user", R"(,"add_generation_prompt":false)").echo);
  const auto r = echoed("assistant", R"(,"continue_final_message":true)");
  EXPECT_TRUE(r.echo);
  EXPECT_EQ(r.echo_text, "so");
}

TEST(JsonRequest, ANumberThatNoFloatHoldsIsNamedAsItWasSent) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"length_penalty", "1e308", "must be in [-16, 16], got 1e+308."},
      {"temperature", "1e39", "must be in [0, infinity), got 1e+39."},
      {"repetition_penalty", "3.5e38", "must be in (0, infinity), got 3.5e+38."},
      {"top_p", "-1e200", "must be in (0, 1], got -1e+200."},
      {"min_p", "1e40", "must be in [0, 1], got 1e+40."},
      {"presence_penalty", "-12345678901234567890e30", "must be in [-2, 2], got -1.2345678901234567e+49."},
      {"frequency_penalty", "1e308", "must be in [-2, 2], got 1e+308."},
      {"logit_bias", R"({"7":-1e300})", "is out of range: -1e+300."},
  };
  for (const auto& [field, value, message] : cases) {
    const ApiError e = ChatError(With(StrCat("\"", field, "\":", value)));
    EXPECT_EQ(e.http_status, 400) << field;
    EXPECT_EQ(e.param, field);
    EXPECT_EQ(e.message, StrCat("`", field, "` ", message));
  }
  EXPECT_EQ(Chat(With(R"("temperature":3.4028234e38)")).input.sampling.temperature, 3.4028234e38F);
}

TEST(JsonRequest, AWrongTypeNamesFieldWantAndGot) {
  const ApiError e = ChatError(With(R"("temperature":"hot")"));
  EXPECT_EQ(e.http_status, 400);
  EXPECT_EQ(e.param, "temperature");
  EXPECT_EQ(e.message, "`temperature` must be a number, got a string.");
  for (const char* field : {"stream", "n", "max_tokens", "stop", "seed", "logit_bias", "stop_token_ids", "messages",
                            "model", "echo", "stream_options", "top_logprobs", "chat_template_kwargs", "tools"}) {
    const std::string body = StrCat(R"({"messages":[{"role":"user","content":"x"}],")", field,
                                    "\":", field == std::string("stream_options") ? "3" : "{\"a\":[]}", "}");
    if (field == std::string("logit_bias") || field == std::string("chat_template_kwargs")) continue;
    EXPECT_EQ(ChatError(body).param, field) << body;
  }
}

TEST(JsonRequest, OnlyTheRolesThatCallMayBeWithoutContent) {
  for (const char* role : {"assistant", "function"}) {
    const auto r = Chat(StrCat(R"({"messages":[{"role":")", role, R"(","content":null}]})"));
    EXPECT_EQ(std::get<ChatPrompt>(r.prompts[0]).messages_json, StrCat(R"([{"role":")", role, R"(","content":""}])"));
  }
  for (const char* role : {"user", "system", "developer", "tool", "critic"}) {
    const ApiError e = ChatError(StrCat(R"({"messages":[{"role":")", role, R"(","content":null}]})"));
    EXPECT_EQ(e.http_status, 400) << role;
    EXPECT_NE(e.message.find(role), std::string::npos) << e.message;
  }
}

TEST(JsonRequest, BadChatsAreRefused) {
  for (const char* body :
       {R"({})", R"({"messages":[]})", R"({"messages":"hi"})", R"({"messages":[1]})",
        R"({"messages":[{"content":"x"}]})", R"({"messages":[{"role":"user"}]})",
        R"({"messages":[{"role":"user","content":null}]})", R"({"messages":[{"role":1,"content":"x"}]})",
        R"({"messages":[{"role":"user","content":5}]})", R"({"messages":[{"role":"user","content":[{"text":"x"}]}]})",
        R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})",
        R"({"messages":[{"role":"assistant","tool_calls":"x"}]})",
        R"({"messages":[{"role":"assistant","tool_calls":[3]}]})"}) {
    const ApiError e = ChatError(body);
    EXPECT_EQ(e.http_status, 400) << body;
    EXPECT_FALSE(e.message.empty());
  }
  EXPECT_EQ(ChatError(With(R"("top_logprobs":2)")).param, "top_logprobs");
  Chat(With(R"("top_logprobs":0)"));
  EXPECT_EQ(ChatError(With(R"("allowed_token_ids":[])")).param, "allowed_token_ids");
  EXPECT_EQ(ChatError(With(R"("stream_options":{})")).param, "stream_options");
  EXPECT_EQ(ChatError(With(R"("logit_bias":{"x":1})")).param, "logit_bias");
  EXPECT_EQ(ChatError(With(R"("logit_bias":{"1x":1})")).param, "logit_bias");
  EXPECT_EQ(ChatError(With(R"("n":9999999999)")).param, "n");
  EXPECT_EQ(ChatError(With(R"("max_tokens":1.5)")).param, "max_tokens");
  EXPECT_EQ(ChatError(With(R"("tools":[])")).param, "tools");
  EXPECT_EQ(ChatError(With(R"("cache_salt":"")")).param, "cache_salt");
  EXPECT_EQ(TextError(R"({"prompt":[]})").param, "prompt");
  EXPECT_EQ(TextError(R"({"prompt":{}})").param, "prompt");
  EXPECT_EQ(TextError(R"({"prompt":[1,"a"]})").param, "prompt");
}

// What would change the answer is refused; the values that would not are fine.
TEST(JsonRequest, FieldsThatAreNotBuiltAreRefusedNotIgnored) {
  for (const char* field : {R"("response_format":{"type":"structural_tag"})",
                            R"("structured_outputs":{"structural_tag":"{}"})",
                            R"("structured_outputs":{"disable_any_whitespace":true})",
                            R"("structured_outputs":{"whitespace_pattern":"[ ]?"})",
                            R"("json_schema":{})",
                            R"("suffix":"x")",
                            R"("kv_transfer_params":{"x":1})",
                            R"("chat_template":"x")",
                            R"("modalities":["audio"])",
                            R"("function_call":"auto")",
                            R"("logits_processors":["x"])",
                            R"("grammar":"root ::= x")",
                            R"("regex":"a+")",
                            R"("repetition_detection":{"max_pattern_size":3})",
                            R"("lora_path":"x")",
                            R"("typical_p":0.5)",
                            R"("mirostat":2)",
                            R"("web_search_options":{"a":1})",
                            R"("kv_transfer_params":{"do_remote_decode":true})",
                            R"("logprob_token_ids":[3])",
                            R"("prompt_embeds":"AAAA")",
                            R"("ebnf":"root ::= x")",
                            R"("structural_tag":{"type":"x"})",
                            R"("dry_multiplier":0.5)",
                            R"("xtc_probability":0.5)",
                            R"("documents":[{"a":1}])",
                            R"("functions":[{"name":"f"}])",
                            R"("audio":{"voice":"x"})"}) {
    const ApiError e = ChatError(With(field));
    EXPECT_EQ(e.http_status, 400) << field;
    EXPECT_EQ(e.code, "unsupported_parameter") << field;
  }
  EXPECT_EQ(
      ChatError(R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x"}}]}]})")
          .code,
      "unsupported_parameter");
  for (const char* field :
       {R"("response_format":{"type":"text"})", R"("use_beam_search":false)", R"("best_of":1)", R"("suffix":"")",
        R"("bad_words":[])", R"("modalities":["text"])", R"("function_call":"none")", R"("typical_p":1.0)",
        R"("mirostat":0)", R"("dry_multiplier":0)", R"("xtc_probability":0.0)", R"("functions":[])",
        R"("tools":[{"type":"function"}],"tool_choice":"none")"}) {
    Chat(With(field));
  }
}

TEST(JsonRequest, ABodyThatIsNotOneJsonObjectIsRefused) {
  for (const char* body :
       {"", " ", "{", "[]", "null", "3", "\"x\"", "{\"messages\":[}", "{} {}", "{'a':1}", "{\"a\":01}", "{\"a\":NaN}",
        "{\"a\":\"\n\"}", "{\"a\":\"\\ud800\"}", "{\"a\":1,}", "{\"prompt\":1e999}", "\xEF\xBB\xBF{"}) {
    EXPECT_EQ(ChatError(body).http_status, 400) << body;
    EXPECT_EQ(TextError(body).http_status, 400) << body;
  }
}

TEST(JsonRequest, DeepNestingIsRefusedNotRecursedInto) {
  const std::string deep = StrCat("{\"x\":", std::string(100000, '['), std::string(100000, ']'), "}");
  EXPECT_EQ(TextError(deep).code, "json_too_deep");
  std::string objects = "{\"messages\":";
  for (int i = 0; i < 5000; ++i) objects += "{\"a\":";
  EXPECT_EQ(ChatError(objects).http_status, 400);
  const std::string fits = StrCat("{\"prompt\":\"x\",\"y\":", std::string(60, '['), std::string(60, ']'), "}");
  EXPECT_EQ(Text(fits).prompts.size(), 1u);
}

// Others are looked for beside each one that is unknown: what that costs grows with the square of their number.
TEST(JsonRequest, ABodyOfManyFieldsIsRefused) {
  const auto body = [](int fields) {
    std::string text = "{\"prompt\":\"x\"";
    for (int i = 1; i < fields; ++i) absl::StrAppend(&text, ",\"no_such_field_", i, "\":0");
    return text + "}";
  };
  EXPECT_EQ(Text(body(1024)).unknown_fields.size(), 16u);
  const ApiError e = TextError(body(1025));
  EXPECT_EQ(e.code, "too_many_fields");
  EXPECT_NE(e.message.find("1025"), std::string::npos) << e.message;
  EXPECT_NE(e.message.find("1024"), std::string::npos) << e.message;
}

TEST(JsonRequest, InvalidUtf8NamesTheByte) {
  const std::string ok = "{\"prompt\":\"ab";
  for (const char* bad : {"\xff", "\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xe2\x82"}) {
    const ApiError e = TextError(StrCat(ok, bad, "\"}"));
    EXPECT_EQ(e.code, "invalid_utf8");
    EXPECT_NE(e.message.find(StrCat("byte ", ok.size())), std::string::npos) << e.message;
  }
  EXPECT_EQ(std::get<TextPrompt>(Text("{\"prompt\":\"é你👩\\u0000\"}").prompts[0]).text, std::string("é你👩\0", 10));
}

TEST(JsonRequest, TheFirstInvalidByteIsFound) {
  EXPECT_EQ(FirstInvalidUtf8(""), std::string_view::npos);
  EXPECT_EQ(FirstInvalidUtf8("aé你👩\x7f"), std::string_view::npos);
  EXPECT_EQ(FirstInvalidUtf8("a\x80"), 1u);
  EXPECT_EQ(FirstInvalidUtf8("\xf4\x8f\xbf\xbf"), std::string_view::npos) << "U+10FFFF";
  EXPECT_EQ(FirstInvalidUtf8("\xf4\x90\x80\x80"), 0u);
  EXPECT_EQ(FirstInvalidUtf8("\xe0\x9f\x80"), 0u);
}

TEST(JsonRequest, HugeBodiesAreBounded) {
  const JsonLimits small{1000, 64};
  const auto over = ParseTextRequest(StrCat("{\"prompt\":\"", std::string(2000, 'x'), "\"}"), small);
  EXPECT_NE(std::get<ApiError>(over).message.find("1000"), std::string::npos);
  const std::string big(7 << 20, 'x');
  EXPECT_EQ(std::get<TextPrompt>(Text(StrCat("{\"prompt\":\"", big, "\"}")).prompts[0]).text.size(), big.size());
  std::string ids = "{\"prompt\":[1";
  for (int i = 0; i < 1000000; ++i) ids += ",1";
  EXPECT_EQ(std::get<TokensPrompt>(Text(ids + "]}").prompts[0]).size(), 1000001u);
}

TEST(JsonRequest, ManyPromptsAreRefusedBeforeTheyAreKept) {
  std::string body = "{\"prompt\":[[1]";
  for (int i = 0; i < 5000; ++i) body += ",[1]";
  const auto parsed = ParseTextRequest(body + "]}", JsonLimits{1 << 20, 64, 128});
  ASSERT_TRUE(std::holds_alternative<ApiError>(parsed));
  EXPECT_NE(std::get<ApiError>(parsed).message.find("5001"), std::string::npos);
  EXPECT_NE(std::get<ApiError>(parsed).message.find("128"), std::string::npos);
}

TEST(JsonRequest, TokenizeTakesExactlyOneInput) {
  EXPECT_TRUE(std::holds_alternative<ApiError>(ParseTokenizeRequest("{}", kLimits)));
  EXPECT_TRUE(std::holds_alternative<ApiError>(
      ParseTokenizeRequest(R"({"prompt":"a","messages":[{"role":"user","content":"x"}]})", kLimits)));
  EXPECT_TRUE(std::holds_alternative<TokenizeRequest>(ParseTokenizeRequest(R"({"prompt":""})", kLimits)));
  EXPECT_TRUE(std::holds_alternative<ApiError>(ParseDetokenizeRequest(R"({"tokens":"a"})", kLimits)));
  EXPECT_TRUE(std::holds_alternative<ApiError>(ParseDetokenizeRequest("{}", kLimits)));
}

// The other way round is EveryPropertyOfARequestIsRead: together nothing is promised and not read, or read and not
// said.
TEST(OpenApi, EverySamplingFieldOfTheWireIsAProperty) {
  const auto document = nlohmann::json::parse(OpenApiDocument());
  int fields = 0;
  VisitSampling([&](auto, const SamplingField& field) {
    EXPECT_NE(v1::SamplingParams::descriptor()->FindFieldByName(std::string(field.name)), nullptr) << field.name;
    for (const char* path : {"/v1/chat/completions", "/v1/completions"}) {
      EXPECT_TRUE(document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
                      .contains(std::string(field.name)))
          << path << ": " << field.name;
    }
    ++fields;
  });
  EXPECT_EQ(fields + 2, v1::SamplingParams::descriptor()->field_count()) << "grammar and bad_words: texts of their own";
}

TEST(OpenApi, RangesOfSamplingAreTheFieldsOwn) {
  const std::string& document = OpenApiDocument();
  for (const char* property :
       {R"("temperature":{"type":["number","null"],"minimum":0})",
        R"("top_p":{"type":["number","null"],"exclusiveMinimum":0,"maximum":1})",
        R"("top_k":{"type":["integer","null"],"minimum":-1,"maximum":2147483647})",
        R"("repetition_penalty":{"type":["number","null"],"exclusiveMinimum":0})",
        R"("additionalProperties":{"type":"number","minimum":-100,"maximum":100}})",
        R"("allowed_token_ids":{"type":["array","null"],"minItems":1,"items":)",
        R"("stop_token_ids":{"type":["array","null"],"items":)", R"("ignore_eos":{"type":["boolean","null"]})",
        R"("seed":{"type":["integer","null"],"minimum":-9223372036854775808,"maximum":18446744073709551615})",
        R"("n":{"type":["integer","null"],"minimum":1,"maximum":2147483647})"}) {
    EXPECT_NE(document.find(property), std::string::npos) << property;
  }
}

// A property that the document promises and the reader does not know would be ignored in silence.
TEST(OpenApi, EveryPropertyOfARequestIsRead) {
  const auto document = nlohmann::json::parse(OpenApiDocument());
  const auto properties = [&](const char* path) {
    return document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"];
  };
  for (const char* path : {"/v1/chat/completions", "/v1/completions"}) {
    const auto listed = properties(path);
    EXPECT_GT(listed.size(), 30u);
    for (const auto& [name, schema] : listed.items()) {
      nlohmann::json body = {{"messages", {{{"role", "user"}, {"content", "x"}}}}, {"prompt", "x"}};
      body.erase(std::string(path) == "/v1/completions" ? "messages" : "prompt");
      if (!body.contains(name)) body[name] = {{"no field", "is this object"}};
      const auto parsed = std::string(path) == "/v1/completions" ? ParseTextRequest(body.dump(), kLimits)
                                                                 : ParseChatRequest(body.dump(), kLimits);
      const auto* read = std::get_if<CompletionRequest>(&parsed);
      EXPECT_TRUE(read == nullptr || read->unknown_fields.empty()) << path << ": " << name;
    }
  }
}

}  // namespace
}  // namespace baton::router
