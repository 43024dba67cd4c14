// Bodies of Anthropic's, OpenAI's newer and Ollama's APIs: what a chat takes beside their own fields, they take.
#include <gmock/gmock.h>

#include "parsed_request.h"
#include "router/http/text_positions.h"

namespace baton::router {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Parse = std::variant<CompletionRequest, ApiError> (*)(std::string_view, const JsonLimits&);

struct Body {
  Parse parse;
  const char *before, *behind;  ///< of more fields
};
constexpr Body kBodies[] = {
    {ParseMessagesRequest, R"({"messages":[{"role":"user","content":"Hi"}],"max_tokens":9,)", "}"},
    {ParseResponsesRequest, R"({"input":"Hi",)", "}"},
    {ParseOllamaChat, R"({"messages":[{"role":"user","content":"Hi"}],)", "}"},
    {ParseOllamaGenerate, R"({"prompt":"Hi",)", "}"},
    {ParseOllamaGenerate, R"({"prompt":"Hi","options":{)", "}}"},
    {ParseOllamaGenerate, R"({"prompt":"Hi","raw":true,"options":{)", "}}"},
};

CompletionRequest ReadBody(const Body& body, const std::string& fields) {
  auto parsed = body.parse(StrCat(body.before, fields, body.behind), kLimits);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    ADD_FAILURE() << body.before << fields << ": " << error->message;
    return {};
  }
  return std::get<CompletionRequest>(std::move(parsed));
}

constexpr char kSampling[] =
    R"("temperature":0.5,"top_p":0.9,"top_k":5,"min_p":0.1,"presence_penalty":0.25,"frequency_penalty":0.5,"repetition_penalty":1.5,)"
    R"("logit_bias":{"4":1},"allowed_token_ids":[1,2],"min_tokens":2,"stop_token_ids":[3],"ignore_eos":true,"seed":7)";

TEST(OtherApis, TakeEverySamplingFieldOfAChat) {
  const SamplingOptions want = Chat(With(kSampling)).input.sampling;
  for (const Body& body : kBodies) {
    SCOPED_TRACE(body.before);
    const CompletionRequest r = ReadBody(body, kSampling);
    EXPECT_THAT(r.unknown_fields, IsEmpty());
    int fields = 0, given = 0;
    VisitSampling([&](auto member, const SamplingField& field) {
      ++fields;
      if (StrCat(kSampling).find(StrCat("\"", field.name, "\"")) == std::string::npos) return;
      ++given;
      EXPECT_EQ(r.input.sampling.*member, want.*member) << field.name;
    });
    EXPECT_EQ(fields - given, 8) << "n, max_tokens, logprobs, prompt_logprobs and the four of beams are not tried";
  }
}

TEST(OtherApis, TakeWhatElseSaysHowAnAnswerIsMade) {
  const char* fields =
      R"("bad_words":["no"],"stop":["s"],"include_stop_str_in_output":true,"skip_special_tokens":false,"truncate_prompt_tokens":3,)"
      R"("truncation_side":"right","priority":2,"cache_salt":"salt","prompt_cache_key":"session","guided_regex":"a+")";
  for (const Body& body : kBodies) {
    SCOPED_TRACE(body.before);
    const CompletionRequest r = ReadBody(body, fields);
    EXPECT_THAT(r.unknown_fields, IsEmpty());
    EXPECT_THAT(r.input.bad_words, ElementsAre("no"));
    EXPECT_THAT(r.input.stop, ElementsAre("s"));
    EXPECT_TRUE(r.input.include_stop_str_in_output);
    EXPECT_FALSE(r.input.skip_special_tokens);
    EXPECT_EQ(r.input.truncate_prompt_tokens, 3);
    EXPECT_TRUE(r.input.truncates_end);
    EXPECT_EQ(r.input.priority, 2);
    EXPECT_EQ(r.input.cache_salt, "salt");
    EXPECT_EQ(r.input.session, "session");
    ASSERT_NE(r.input.sampling.grammar, nullptr);
    EXPECT_EQ(r.input.sampling.grammar->text, "a+");
  }
}

TEST(OtherApis, MessagesMayAskForASchema) {
  const char* format = R"({"type":"json_schema","schema":{"type":"object"}})";
  for (const std::string& fields :
       {StrCat(R"("output_config":{"effort":"low","format":)", format, "}"), StrCat(R"("output_format":)", format)}) {
    const CompletionRequest r = ReadBody(kBodies[0], fields);
    EXPECT_THAT(r.unknown_fields, IsEmpty());
    ASSERT_NE(r.input.sampling.grammar, nullptr) << fields;
    EXPECT_EQ(r.input.sampling.grammar->kind, GrammarKind::kJsonSchema);
    EXPECT_EQ(r.input.sampling.grammar->text, R"({"type":"object"})");
    EXPECT_EQ(r.input.grammar_field,
              fields.starts_with("\"output_config") ? "output_config.format.schema" : "output_format.schema");
  }
  const char* chats = R"("response_format":{"type":"json_schema","json_schema":{"schema":{"type":"object"}}})";
  EXPECT_EQ(ReadBody(kBodies[0], chats).input.grammar_field, "response_format.json_schema.schema");
  EXPECT_EQ(ReadBody(kBodies[0], R"("output_config":{"effort":"low"})").input.sampling.grammar, nullptr);
  const std::pair<const char*, const char*> wrong[] = {
      {R"("output_config":3)", "output_config"},
      {R"("output_config":{"format":{"type":"xml"}})", "output_config.format"},
      {R"("output_format":{"type":"json_schema"})", "output_format"}};
  for (const auto& [fields, field] : wrong) {
    const auto parsed = kBodies[0].parse(StrCat(kBodies[0].before, fields, kBodies[0].behind), kLimits);
    const auto* error = std::get_if<ApiError>(&parsed);
    ASSERT_NE(error, nullptr) << fields;
    EXPECT_EQ(error->param, field);
  }
}

TEST(OtherApis, WhatTheirAnswersHaveNoPlaceForIsNamed) {
  for (const Body& body : kBodies) {
    const CompletionRequest r = ReadBody(body, R"("n":2,"kv_hints":{})");
    const bool options = std::string_view(body.before).find("options") != std::string_view::npos;
    EXPECT_THAT(r.unknown_fields, options ? ElementsAre("options_n", "options_kv_hints") : ElementsAre("n", "kv_hints"))
        << body.before;
    EXPECT_EQ(r.input.sampling.n, 1);
  }
}

ApiError RefusedBody(const Body& body, const std::string& fields) {
  auto parsed = body.parse(StrCat(body.before, fields, body.behind), kLimits);
  if (auto* error = std::get_if<ApiError>(&parsed)) return *error;
  ADD_FAILURE() << body.before << fields << " was taken";
  return {};
}

TEST(OtherApis, AFieldOfTheirsIsNamedAsTheyCallIt) {
  const Body &messages = kBodies[0], &responses = kBodies[1], &chat = kBodies[2], &options = kBodies[4];
  const std::tuple<Body, const char*, const char*, const char*> cases[] = {
      {messages, R"("stop_sequences":[3])", "stop_sequences", "`stop_sequences` must be"},
      {messages, R"("stop":[3])", "stop", "`stop` must be"},
      {messages, R"("tools":[{"name":"f","input_schema":3}])", "tools[0].input_schema",
       "`tools[0].input_schema` must be a JSON Schema"},
      {messages, R"("tools":[{"name":"f","description":3,"input_schema":{}}])", "tools[0].description",
       "`tools[0].description` must be a string"},
      {messages, R"("tools":[{"name":"f g","input_schema":{}}])", "tools[0].name", "`tools[0].name` must be"},
      {messages, R"("tools":[{"name":"f","input_schema":{}},{"name":"g"}])", "tools[1].input_schema",
       "`tools[1].input_schema` is required"},
      {chat, R"("messages":[{"role":"assistant","content":"","tool_calls":"x"}])", "messages[0].tool_calls",
       "`messages[0].tool_calls` must be an array"},
      {responses, R"("tools":[{"type":"function","name":"f","parameters":3}])", "tools[0].parameters",
       "`tools[0].parameters` must be a JSON Schema"},
      {messages, R"("metadata":3)", "metadata", "`metadata` must be an object"},
      {messages, R"("service_tier":3)", "service_tier", "`service_tier` must be a string"},
      {messages, R"("output_config":{"effort":3})", "output_config.effort", "`output_config.effort` must be a string"},
      {messages,
       R"("tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"auto","disable_parallel_tool_use":3})",
       "tool_choice.disable_parallel_tool_use", "`tool_choice.disable_parallel_tool_use` must be a boolean"},
      {messages, R"("thinking":{"type":"on"})", "thinking.type", "`thinking.type` must be"},
      {messages, R"("thinking":{"type":"enabled","budget_tokens":-1})", "thinking.budget_tokens", "at least 0, got -1"},
      {messages, R"("thinking":{"type":"enabled","budget_tokens":"x"})", "thinking.budget_tokens",
       "`thinking.budget_tokens` must be an integer"},
      {messages, R"("output_format":{"type":"json_schema","schema":{}},"guided_regex":"a")", "guided_regex",
       "`guided_regex` and `output_format.schema` both say"},
      {messages, R"("guided_regex":"a","output_format":{"type":"json_schema","schema":{}})", "output_format.schema",
       "`output_format.schema` and `guided_regex` both say"},
      {chat, R"("guided_regex":"a","format":{})", "format", "`format` and `guided_regex` both say"},
      {chat, R"("guided_regex":"a","format":"json")", "format", "`format` and `guided_regex` both say"},
      {responses, R"("max_output_tokens":"x")", "max_output_tokens", "`max_output_tokens` must be an integer"},
      {responses, R"("text":[])", "text", "`text` must be an object"},
      {responses, R"("text":{"format":"json"})", "text.format", "`text.format` must be an object"},
      {responses, R"("text":{"format":{"type":"xml"}})", "text.format.type", "`text.format.type` must be"},
      {responses, R"("text":{"format":{"type":"json_schema"}})", "text.format.schema", "`text.format.schema` is"},
      {responses, R"("reasoning":{"summary":3})", "reasoning.summary", "`reasoning.summary` must be a string"},
      {responses, R"("text":{"verbosity":3})", "text.verbosity", "`text.verbosity` must be a string"},
      {responses, R"("reasoning":"high")", "reasoning", "`reasoning` must be an object"},
      {responses, R"("reasoning":{"effort":3})", "reasoning.effort", "`reasoning.effort` must be a string"},
      {responses, R"("include":[3])", "include", "`include` must be an array of strings"},
      {responses, R"("include":["usage"])", "include",
       "`include` has \"usage\"; there are code_interpreter_call.outputs, "},
      {responses, R"("stream":true,"stream_options":[])", "stream_options", "`stream_options` must be an object"},
      {responses, R"("stream":true,"stream_options":{"include_obfuscation":1})", "stream_options.include_obfuscation",
       "`stream_options.include_obfuscation` must be a boolean"},
      {responses, R"("stream_options":{})", "stream_options", "`stream_options` is only allowed with"},
      {responses, R"("max_tool_calls":"x")", "max_tool_calls", "`max_tool_calls` must be an integer"},
      {responses, R"("max_tool_calls":0)", "max_tool_calls", "`max_tool_calls` must be at least 1, got 0"},
      {responses, R"("max_tool_calls":3000000000)", "max_tool_calls", "`max_tool_calls` is out of range"},
      {responses, R"("tool_choice":{"type":"mcp","name":"x"})", "tool_choice", "`tool_choice` must be"},
      {responses, R"("tool_choice":3)", "tool_choice", "`tool_choice` must be"},
      {chat, R"("think":{})", "think", "`think` must be a boolean"},
      {chat, R"("images":true)", "images", "`images` must be an array"},
      {options, R"("num_predict":"x")", "num_predict", "`num_predict` must be an integer"},
      {options, R"("repeat_penalty":"x")", "repeat_penalty", "`repeat_penalty` must be a number"},
  };
  for (const auto& [body, fields, param, message] : cases) {
    const ApiError error = RefusedBody(body, fields);
    EXPECT_EQ(error.param, param) << fields;
    EXPECT_THAT(error.message, HasSubstr(message)) << fields;
  }
  for (const char* unbounded : {R"("num_predict":0)", R"("num_predict":-1)"})
    EXPECT_FALSE(ReadBody(options, unbounded).input.sampling.max_tokens) << unbounded;
  const CompletionRequest r = ReadBody(responses, R"("max_output_tokens":0)");  // its range is a matter for later
  const ApiError later = InTheirWords(BadRequest("`max_tokens` must be at least 1.", "max_tokens"), r.renamed);
  EXPECT_EQ(later.param, "max_output_tokens");
  EXPECT_EQ(later.message, "`max_output_tokens` must be at least 1.");
}

TEST(OtherApis, OllamasTopLogprobsNeedLogprobs) {
  for (const Body& body : {kBodies[2], kBodies[3]}) {
    for (const char* fields :
         {R"("top_logprobs":2)", R"("top_logprobs":2,"logprobs":false)", R"("raw":true,"top_logprobs":1)"}) {
      const ApiError error = RefusedBody(body, fields);
      EXPECT_EQ(error.message, "`top_logprobs` needs `logprobs: true`.") << fields;
      EXPECT_EQ(error.param, "top_logprobs");
    }
    EXPECT_EQ(ReadBody(body, R"("top_logprobs":0)").input.sampling.logprobs, std::nullopt);
    EXPECT_EQ(ReadBody(body, R"("top_logprobs":2,"logprobs":true)").input.sampling.logprobs, 2);
  }
}

TEST(OtherApis, AToolThatCannotBeCalledIsNamedByItsPlace) {
  const Body &messages = kBodies[0], &responses = kBodies[1];
  const std::tuple<Body, const char*, const char*, const char*> cases[] = {
      {messages, R"("tools":[{"name":"f","input_schema":{}},{"input_schema":{}}])", "tools[1].name",
       "`tools[1].name` is required"},
      {messages, R"("tools":[{"type":"bash_20250124","name":"bash"}])", "tools[0].type",
       "the server would have to run"},
      {responses, R"("tools":[{"type":"function","name":"f"},{"type":"custom","name":"g"}])", "tools[1].type",
       "`tools[1].type`: a custom tool, which is called with a text of any form"},
      {responses, R"("tools":[{"type":"web_search"}])", "tools[0].type", "which the server would have to run"},
      {responses, R"("tools":[{"name":"f"}])", "tools[0].type", "`tools[0].type` is required"},
  };
  for (const auto& [body, fields, param, message] : cases) {
    const ApiError error = RefusedBody(body, fields);
    EXPECT_EQ(error.param, param) << fields;
    EXPECT_THAT(error.message, HasSubstr(message)) << fields;
  }
}

TEST(OtherApis, AnEmptySystemIsNone) {
  const Body& messages = kBodies[0];
  const std::string without = std::get<ChatPrompt>(ReadBody(messages, R"("seed":1)").prompts[0]).messages_json;
  for (const char* system : {R"("system":"")", R"("system":[])", R"("system":[{"type":"text","text":""}])"})
    EXPECT_EQ(std::get<ChatPrompt>(ReadBody(messages, system).prompts[0]).messages_json, without) << system;
  EXPECT_EQ(RefusedBody(messages, R"("system":[{"type":"image"}])").param, "system");
}

TEST(OtherApis, ResponsesHaveTheRolesOfOpenAis) {
  const Body items = {ParseResponsesRequest, "{", "}"};
  EXPECT_EQ(RefusedBody(items, R"("input":[{"role":"tool","content":"x"}])").message,
            "`input[0]` has the role \"tool\"; there are user, assistant, system and developer.");
  EXPECT_THAT(
      std::get<ChatPrompt>(ReadBody(items, R"("input":[{"role":"developer","content":"x"}])").prompts[0]).messages_json,
      HasSubstr(R"("role":"developer")"));
}

TEST(OtherApis, ResponsesTakeWhatOpenAisClientsSendAndNameWhatChangesNothing) {
  const Body& responses = kBodies[1];
  const std::tuple<const char*, const char*> cases[] = {
      {R"("include":["reasoning.encrypted_content","message.output_text.logprobs"])", ""},
      {R"("max_tool_calls":3)", "max_tool_calls"},
      {R"("stream":true,"stream_options":{"include_obfuscation":false})", ""},
      {R"("stream":true,"stream_options":{"include_obfuscation":true})", "stream_options_include_obfuscation"},
      {R"("stream":true,"stream_options":{"more":null,"other":3})", "stream_options_other"},
      {R"("tool_choice":"auto")", ""},
      {R"("reasoning":{"effort":"low","summary":"auto"})", "reasoning_summary"},
      {R"("text":{"verbosity":"low"})", "text_verbosity"},
      {R"("tools":[],"tool_choice":"auto")", ""},
      {R"("tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"function","function":{"name":"f"}})", ""},
      {R"("tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"function","name":"f"})", ""},
  };
  for (const auto& [fields, unknown] : cases) {
    const CompletionRequest r = ReadBody(responses, fields);
    EXPECT_EQ(r.unknown_fields, unknown[0] == 0 ? std::vector<std::string>() : std::vector<std::string>{unknown})
        << fields;
  }
  EXPECT_EQ(Chat(With(R"("stream":true,"stream_options":{"include_obfuscation":true,"x":1})")).unknown_fields,
            (std::vector<std::string>{"stream_options_include_obfuscation", "stream_options_x"}));
}

bool GoesOn(Parse parse, const std::string& body) {
  auto parsed = parse(body, kLimits);
  const auto* request = std::get_if<CompletionRequest>(&parsed);
  if (request == nullptr) {
    ADD_FAILURE() << body << ": " << std::get<ApiError>(parsed).message;
    return false;
  }
  const auto& prompt = std::get<ChatPrompt>(request->prompts.front());
  EXPECT_NE(prompt.continue_final_message, prompt.add_generation_prompt) << body;
  return prompt.continue_final_message;
}

TEST(OtherApis, AnAnswerGoesOnFromTheAssistantsLastMessage) {
  const auto messages = [](const std::string& last, const char* more = "") {
    return StrCat(R"({"max_tokens":9,"messages":[{"role":"user","content":"Hi"},)", last, "]", more, "}");
  };
  const std::string begun = R"({"role":"assistant","content":"So"})";
  for (const Parse parse : {ParseMessagesRequest, ParseOllamaChat}) {
    EXPECT_TRUE(GoesOn(parse, messages(begun)));
    EXPECT_FALSE(GoesOn(parse, messages(R"({"role":"assistant","content":""})")));
    EXPECT_FALSE(GoesOn(parse, messages(R"({"role":"user","content":"So"})")));
  }
  EXPECT_FALSE(GoesOn(ParseMessagesRequest, messages(begun, R"(,"add_generation_prompt":true)"))) << "said otherwise";
  const auto blocks = [&](const char* list) {
    return GoesOn(ParseMessagesRequest, messages(StrCat(R"({"role":"assistant","content":[)", list, "]}")));
  };
  EXPECT_TRUE(blocks(R"({"type":"thinking","thinking":"hm"},{"type":"text","text":"So"})"));
  EXPECT_FALSE(blocks(R"({"type":"text","text":"So"},{"type":"tool_use","id":"a","name":"f","input":{}})"));
  EXPECT_FALSE(blocks(R"({"type":"text","text":"So"},{"type":"thinking","thinking":"hm"})"));
  EXPECT_FALSE(GoesOn(ParseOllamaChat, messages(R"({"role":"assistant","content":"So","tool_calls":[]})")));
}

TEST(OtherApis, MessagesSayHowLongAnAnswerMayBeAndWhatACallWasOf) {
  const auto refused = [](const char* body) {
    auto parsed = ParseMessagesRequest(body, kLimits);
    const auto* error = std::get_if<ApiError>(&parsed);
    return error == nullptr ? ApiError{} : *error;
  };
  for (const char* more : {"", R"(,"max_tokens":null)"}) {
    const std::string body = StrCat(R"({"messages":[{"role":"user","content":"Hi"}])", more, "}");
    const ApiError error = refused(body.c_str());
    EXPECT_EQ(error.param, "max_tokens") << body;
    EXPECT_EQ(error.message, "`max_tokens` is required.");
    EXPECT_TRUE(std::holds_alternative<CompletionRequest>(ParseCountTokensRequest(body, kLimits)));
  }
  const std::tuple<const char*, const char*, const char*> blocks[] = {
      {"user", R"({"type":"tool_use","id":"a","name":"f","input":{}})", "`messages[0]` has a tool_use block: only "},
      {"assistant", R"({"type":"tool_result","tool_use_id":"a"})", "`messages[0]` has a tool_result block: "},
      {"assistant", R"({"type":"thinking","thinking":3})", "`messages[0]` has a thinking block without `thinking`."}};
  for (const auto& [role, block, says] : blocks) {
    const std::string body =
        StrCat(R"({"max_tokens":9,"messages":[{"role":")", role, R"(","content":[)", block, "]}]}");
    EXPECT_THAT(refused(body.c_str()).message, testing::StartsWith(says));
  }
  const ApiError empty = refused(R"({"max_tokens":9,"messages":[{"role":"user","content":[]}]})");
  EXPECT_EQ(empty.message, "`messages[0]` has an empty `content`.");
  for (const char* input : {"3", "\"x\"", "null", "[]"}) {
    const std::string call = StrCat(R"({"type":"tool_use","id":"a","name":"f","input":)", input, "}");
    const ApiError error =
        refused(StrCat(R"({"max_tokens":9,"messages":[{"role":"assistant","content":[)", call, "]}]}").c_str());
    EXPECT_EQ(error.param, "messages") << input;
    EXPECT_THAT(error.message, HasSubstr("`input` must be an object, got ")) << input;
  }
}

TEST(OtherApis, OfAnAnswersTokensThoseOfItsTextAreKnown) {
  using Found = TextPositions::Found;
  const Found nothing{}, text{true, false}, call{false, true};
  TextPositions positions;
  std::vector<PositionLogprobs> of_text;
  int32_t next = 0;
  const auto take = [&](size_t count, Found found, size_t thoughts = 2) {
    std::vector<PositionLogprobs> tokens(count);
    for (PositionLogprobs& token : tokens) token.chosen.token_id = next++;
    positions.Take(std::move(tokens), thoughts, found, of_text);
  };
  const auto ids = [&] {
    std::vector<int32_t> out;
    for (const PositionLogprobs& token : of_text) out.push_back(token.chosen.token_id);
    return out;
  };
  take(3, nothing);  // two of thoughts, and one that a text may begin with
  EXPECT_THAT(ids(), IsEmpty());
  take(1, text);
  EXPECT_THAT(ids(), ElementsAre(2, 3));
  take(2, nothing);  // a mark, of a call as it turns out
  take(2, call);
  take(1, nothing);
  take(1, text);
  EXPECT_THAT(ids(), ElementsAre(2, 3, 8, 9));
  TextPositions cut = positions;
  take(1, nothing);
  positions.End(nothing, of_text);
  EXPECT_THAT(ids(), ElementsAre(2, 3, 8, 9, 10)) << "what ended the text is of it";
  of_text.clear();
  cut.Take(std::vector<PositionLogprobs>(3), 2, call, of_text);
  cut.Take(std::vector<PositionLogprobs>(1), 2, nothing, of_text);
  cut.End(nothing, of_text);
  EXPECT_THAT(ids(), IsEmpty()) << "and what ended a call is of that";
}

TEST(OtherApis, OllamaAsksForNothingToHaveAModelLoadedOrGone) {
  const std::tuple<Parse, const char*, const char*> cases[] = {
      {ParseOllamaGenerate, R"({"model":"m:latest"})", "load"},
      {ParseOllamaGenerate, R"({"model":"m","prompt":"","keep_alive":"5m","stream":false})", "load"},
      {ParseOllamaGenerate, R"({"model":"m","keep_alive":-1})", "load"},
      {ParseOllamaGenerate, R"({"model":"m","keep_alive":0})", "unload"},
      {ParseOllamaGenerate, R"({"model":"m","keep_alive":"0s"})", "unload"},
      {ParseOllamaChat, R"({"model":"m","messages":[]})", "load"},
      {ParseOllamaChat, R"({"model":"m"})", "load"},
      {ParseOllamaChat, R"({"model":"m","messages":null,"keep_alive":0})", "unload"},
      {ParseOllamaChat, R"({"model":"m","messages":[],"keep_alive":0})", "unload"},
  };
  for (const auto& [parse, body, loads] : cases) {
    auto parsed = parse(body, kLimits);
    ASSERT_TRUE(std::holds_alternative<CompletionRequest>(parsed)) << body;
    const auto& request = std::get<CompletionRequest>(parsed);
    EXPECT_STREQ(request.loads, loads) << body;
    EXPECT_EQ(request.input.model, "m") << body;
  }
  EXPECT_EQ(ReadBody(kBodies[3], R"("keep_alive":0)").loads, nullptr) << "there is something to answer";
  EXPECT_THAT(ReadBody(kBodies[3], R"("keep_alive":0)").unknown_fields, ElementsAre("keep_alive"));
}

TEST(OtherApis, AWrongValueOfAChatsFieldIsRefused) {
  for (const Body& body : kBodies) {
    const auto parsed = body.parse(StrCat(body.before, R"("bad_words":"no")", body.behind), kLimits);
    const auto* error = std::get_if<ApiError>(&parsed);
    ASSERT_NE(error, nullptr) << body.before;
    EXPECT_EQ(error->param, "bad_words");
  }
}

}  // namespace
}  // namespace baton::router
