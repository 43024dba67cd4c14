// What stands in a body that no document holds as it is: numbers beyond 64 bits or a double, and names that an object
// has twice. In every API the former keep their spelling, and of the latter the last counts.
#include <gmock/gmock.h>

#include <array>

#include "parsed_request.h"

namespace baton::router {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Parse = std::variant<CompletionRequest, ApiError> (*)(std::string_view, const JsonLimits&);

constexpr std::array<const char*, 4> kGreat = {"123456789012345678901234567890", "-123456789012345678901234567890",
                                               "1e400", "-2.5E+999"};

CompletionRequest RequestOfBody(Parse parse, const std::string& body) {
  auto parsed = parse(body, kLimits);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    ADD_FAILURE() << body << ": " << error->message;
    return {};
  }
  return std::get<CompletionRequest>(std::move(parsed));
}

ApiError ErrorOfBody(Parse parse, const std::string& body) {
  auto parsed = parse(body, kLimits);
  if (auto* error = std::get_if<ApiError>(&parsed)) return *error;
  ADD_FAILURE() << "accepted: " << body;
  return {};
}

const ChatPrompt& ChatInBody(const CompletionRequest& request) { return std::get<ChatPrompt>(request.prompts.at(0)); }

TEST(GreatNumbers, AreOutOfRangeForAFieldAsTheyWereWritten) {
  for (const std::string number : kGreat) {
    for (const std::string field : {"seed", "n", "max_tokens", "min_tokens", "top_k", "priority"}) {
      for (const ApiError& e : {ChatError(With(StrCat("\"", field, "\":", number))),
                                TextError(TextWith(StrCat("\"", field, "\":", number)))}) {
        EXPECT_EQ(e.http_status, 400);
        EXPECT_EQ(e.param, field);
        EXPECT_EQ(e.message, StrCat("`", field, "` is out of range: ", number, "."));
      }
    }
    const std::pair<const char*, const char*> others[] = {
        {"temperature", "`temperature` must be in [0, infinity), got "},
        {"top_p", "`top_p` must be in (0, 1], got "},
        {"stop_token_ids", "`stop_token_ids` is out of range: "}};
    for (const auto& [field, message] : others) {
      const bool list = std::string_view(field) == "stop_token_ids";
      const ApiError e = ChatError(With(StrCat("\"", field, "\":", list ? "[3," : "", number, list ? "]" : "")));
      EXPECT_EQ(e.message, StrCat(message, number, "."));
    }
    EXPECT_EQ(TextError(StrCat(R"({"prompt":[1,)", number, "]}")).message,
              StrCat("`prompt` is out of range: ", number, "."));
    EXPECT_EQ(ErrorOfBody(ParseMessagesRequest,
                          StrCat(R"({"messages":[{"role":"user","content":"a"}],"max_tokens":)", number, "}"))
                  .message,
              StrCat("`max_tokens` is out of range: ", number, "."));
    EXPECT_EQ(ErrorOfBody(ParseResponsesRequest, StrCat(R"({"input":"a","max_output_tokens":)", number, "}")).message,
              StrCat("`max_output_tokens` is out of range: ", number, "."));
    EXPECT_EQ(
        ErrorOfBody(ParseOllamaGenerate, StrCat(R"({"prompt":"a","options":{"num_predict":)", number, "}}")).message,
        StrCat("`num_predict` is out of range: ", number, "."));
  }
  EXPECT_EQ(ChatError(With(R"("max_tokens":18446744073709551615)")).message,
            "`max_tokens` is out of range: 18446744073709551615.");
  EXPECT_EQ(ChatError(With(R"("n":1e300)")).message, "`n` is out of range: 1e+300.");
  EXPECT_EQ(ChatError(With(StrCat(R"("n":)", std::string(10000, '7')))).message,
            StrCat("`n` is out of range: ", std::string(60, '7'), "… (10000 characters)."));
}

TEST(GreatNumbers, AreNoTextsListsOrObjects) {
  EXPECT_EQ(ChatError(With(R"("stop":1e400)")).message, "`stop` must be a string, got a number.");
  EXPECT_EQ(ChatError(With(R"("metadata":1e400)")).message, "`metadata` must be an object, got a number.");
  EXPECT_EQ(ChatError(R"({"messages":[{"role":"user","content":1e400}]})").message,
            "`messages[0].content` must be a string or an array of parts, got a number.");
  EXPECT_EQ(TextError(R"({"prompt":1e999})").param, "prompt");
  EXPECT_EQ(ErrorOfBody(ParseMessagesRequest, "1e400").message, "The body must be a JSON object, got a number.");
}

TEST(GreatNumbers, StandInSchemasAsTheyWereWritten) {
  const std::string schema =
      R"({"type":"object","properties":{"a":{"maximum":1e400,"minimum":-123456789012345678901234567890}}})";
  const std::string tool = StrCat(R"("name":"f","parameters":)", schema);
  const std::tuple<Parse, std::string> bodies[] = {
      {ParseChatRequest, With(StrCat(R"("guided_json":)", schema))},
      {ParseTextRequest, TextWith(StrCat(R"("structured_outputs":{"json":)", schema, "}"))},
      {ParseChatRequest,
       With(StrCat(R"("response_format":{"type":"json_schema","json_schema":{"schema":)", schema, "}}"))},
      {ParseChatRequest,
       With(StrCat(R"("tool_choice":"required","tools":[{"type":"function","function":{)", tool, "}}]"))},
      {ParseResponsesRequest,
       StrCat(R"({"input":"a","tool_choice":"required","tools":[{"type":"function",)", tool, "}]}")},
      {ParseMessagesRequest,
       StrCat(
           R"({"messages":[{"role":"user","content":"a"}],"max_tokens":1,"output_format":{"type":"json_schema","schema":)",
           schema, "}}")},
      {ParseOllamaGenerate, StrCat(R"({"prompt":"a","format":)", schema, "}")},
  };
  for (const auto& [parse, body] : bodies) {
    const CompletionRequest r = RequestOfBody(parse, body);
    ASSERT_NE(r.input.sampling.grammar, nullptr) << body;
    EXPECT_THAT(r.input.sampling.grammar->text, HasSubstr(schema)) << body;
  }
}

// Their readers have doubles.
TEST(GreatNumbers, ReachTemplatesAsNumbersThatCanBeRead) {
  const CompletionRequest r = Chat(
      R"({"messages":[{"role":"assistant","x":[-1e400],"tool_calls":[{"function":{"name":"f","arguments":"{\"a\":1e400,\"b\":123456789012345678901}"}}]}],)"
      R"("tools":[{"type":"function","function":{"name":"f","parameters":{"maximum":1e400}}}],"chat_template_kwargs":{"k":1e999}})");
  EXPECT_THAT(ChatInBody(r).messages_json,
              AllOf(HasSubstr(R"("x":[-1.7976931348623157e+308])"),
                    HasSubstr(R"("arguments":{"a":1.7976931348623157e+308,"b":123456789012345678901})")));
  EXPECT_THAT(ChatInBody(r).tools_json, HasSubstr(R"({"maximum":1.7976931348623157e+308})"));
  EXPECT_THAT(ChatInBody(r).kwargs_json, HasSubstr(R"({"k":1.7976931348623157e+308})"));
  EXPECT_THAT(
      RequestOfBody(ParseResponsesRequest, R"({"input":[{"role":"user","content":"a","x":1e400}]})").responses->input,
      HasSubstr(R"("x":1.7976931348623157e+308)"));
}

TEST(GreatNumbers, LeaveTextsBesideThemAlone) {
  const CompletionRequest r =
      Text(R"({"x":1e400,"prompt":"1e400 \"123456789012345678901234567890\\","stop":["\\\"-1e999"],"y":[1e5,-0]})");
  EXPECT_EQ(std::get<TextPrompt>(r.prompts[0]).text, R"(1e400 "123456789012345678901234567890\)");
  EXPECT_EQ(r.input.stop, (std::vector<std::string>{R"(\"-1e999)"}));
}

TEST(GreatNumbers, MalformedOnesAreNoJson) {
  for (const char* number : {"01", "1.", "-", "1e", "1e+", "+1", ".5", "1e400e", "00e999", "1e4.5", "--1e400"}) {
    const ApiError e = TextError(StrCat(R"({"prompt":"a","x":1e400,"y":)", number, "}"));
    EXPECT_EQ(e.code, "invalid_json") << number;
  }
}

TEST(GreatNumbers, ManyOfThemAreRefused) {
  std::string list = "1e400";
  for (int i = 0; i < 4096; ++i) list += ",1e400";
  EXPECT_THAT(TextError(TextWith(StrCat(R"("x":[)", list, "]"))).message, HasSubstr("more than 4096 numbers"));
}

TEST(NamesTwice, TheLastCountsWhoeverReadsThem) {
  const CompletionRequest chat = Chat(
      R"({"messages":[{"role":"user","content":"no"}],"n":1,"model":"a","messages":[{"role":"system","role":"user","content":"a","content":"b"}],"model":"m","n":2})");
  EXPECT_EQ(chat.input.model, "m");
  EXPECT_EQ(chat.input.sampling.n, 2);
  EXPECT_EQ(ChatInBody(chat).messages_json, R"([{"role":"user","content":"b"}])");
  const CompletionRequest messages = RequestOfBody(
      ParseMessagesRequest,
      R"({"system":"no","messages":3,"max_tokens":1,"messages":[{"role":"user","content":[{"type":"image","type":"text","text":"a","text":"b"}]}],"system":"yes","max_tokens":5})");
  EXPECT_EQ(ChatInBody(messages).messages_json, R"([{"role":"system","content":"yes"},{"role":"user","content":"b"}])");
  EXPECT_EQ(messages.input.sampling.max_tokens, 5);
  const CompletionRequest responses = RequestOfBody(
      ParseResponsesRequest, R"({"input":3,"tools":[{}],"input":"b","tools":[],"metadata":{"a":1,"a":2}})");
  EXPECT_EQ(ChatInBody(responses).messages_json, R"([{"role":"user","content":"b"}])");
  EXPECT_THAT(responses.responses->echo, HasSubstr(R"("metadata":{"a":2})"));
  const CompletionRequest ollama = RequestOfBody(
      ParseOllamaChat, R"({"messages":[],"model":"a","messages":[{"role":"user","content":"b"}],"model":"m"})");
  EXPECT_EQ(ChatInBody(ollama).messages_json, R"([{"role":"user","content":"b"}])");
  EXPECT_EQ(ollama.input.model, "m");
  EXPECT_EQ(std::get<TextPrompt>(Text(R"({"prompt":"a","prompt":"b"})").prompts[0]).text, "b");
}

TEST(NamesTwice, ASchemasMemberStandsWhereItStoodFirstWithTheValueThatItHadLast) {
  const CompletionRequest r = Chat(With(
      R"("guided_json":{"type":"array","properties":{"b":{"maximum":1e400},"a":{},"b":{"const":1,"const":2}},"type":"object"})"));
  EXPECT_EQ(r.input.sampling.grammar->text, R"({"type":"object","properties":{"b":{"const":2},"a":{}}})");
  const CompletionRequest tools = Chat(With(
      R"("tool_choice":"required","tools":[{"type":"function","function":{"name":"a","name":"f","parameters":{"type":"string","type":"object"}}}])"));
  EXPECT_EQ(tools.callable.at(0).name, "f");
  EXPECT_EQ(tools.callable.at(0).schema, R"({"type":"object"})");
  EXPECT_THAT(ChatInBody(tools).tools_json, HasSubstr(R"({"name":"f","parameters":{"type":"object"}})"));
}

TEST(NamesTwice, AreFoundInArgumentsThatAreTextAndAmongMany) {
  const CompletionRequest r = Chat(
      R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"a\":1,\"b\":2,\"a\":3}"}}]}]})");
  EXPECT_THAT(ChatInBody(r).messages_json, HasSubstr(R"("arguments":{"a":3,"b":2})"));
  std::string many = R"("guided_json":{"k0":-1)";
  for (int i = 0; i < 100; ++i) absl::StrAppend(&many, ",\"k", i, "\":", i);
  EXPECT_THAT(Chat(With(many + "}")).input.sampling.grammar->text, HasSubstr(R"({"k0":0,"k1":1,)"));
}

TEST(NamesTwice, TwoFieldsOfTheClientsThatMeanOneThingAreStillTwo) {
  const ApiError e = ErrorOfBody(
      ParseOllamaChat,
      R"({"messages":[{"role":"user","content":"a"}],"format":"json","response_format":{"type":"json_object"}})");
  EXPECT_THAT(e.message, HasSubstr("both say what the answer must fit"));
}

TEST(NamesTwice, LongListsOfThemTakeNoSquares) {
  std::string names = R"({"prompt":"a","x":{"k":0)";
  for (int i = 0; i < 300'000; ++i) absl::StrAppend(&names, ",\"k", i % 150'000, "\":0");
  EXPECT_EQ(std::get<TextPrompt>(Text(names + "}}").prompts[0]).text, "a");
}

}  // namespace
}  // namespace baton::router
