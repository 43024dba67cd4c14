// Calls of functions that a request asks for: the grammar that they become, and the call taken out of an answer's text.
#include "router/http/tool_call.h"

#include <gmock/gmock.h>

#include <functional>

#include "parsed_request.h"

namespace baton::router {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kTools[] =
    R"("tools":[{"type":"function","function":{"name":"get_weather","parameters":{"properties":{"city":{"type":"string"}}}}},)"
    R"({"type":"function","function":{"name":"now"}}])";

TEST(Tools, ARequiredCallIsOneOfAllFunctions) {
  const CompletionRequest r = Chat(With(StrCat(kTools, R"(,"tool_choice":"required")")));
  EXPECT_THAT(r.callable, ElementsAre("get_weather", "now"));
  ASSERT_NE(r.input.sampling.grammar, nullptr);
  EXPECT_EQ(r.input.sampling.grammar->kind, GrammarKind::kLark);
  EXPECT_EQ(r.input.sampling.grammar->text,
            R"(start: call_0 | call_1
call_0: "{\"name\":\"get_weather\",\"arguments\":" args_0 "}"
args_0: %json {"type":"object","properties":{"city":{"type":"string"}}}
call_1: "{\"name\":\"now\",\"arguments\":" args_1 "}"
args_1: %json {"type":"object","properties":{},"additionalProperties":false}
)");
  EXPECT_THAT(std::get<ChatPrompt>(r.prompts[0]).tools_json, HasSubstr("get_weather")) << "the template shows them";
}

TEST(Tools, ANamedFunctionIsTheOnlyOne) {
  const CompletionRequest r =
      Chat(With(StrCat(kTools, R"(,"tool_choice":{"type":"function","function":{"name":"now"}})")));
  EXPECT_THAT(r.callable, ElementsAre("now"));
  EXPECT_THAT(r.input.sampling.grammar->text, Not(HasSubstr("get_weather")));
  const CompletionRequest none = Chat(With(StrCat(kTools, R"(,"tool_choice":"none")")));
  EXPECT_TRUE(none.callable.empty());
  EXPECT_EQ(none.input.sampling.grammar, nullptr);
}

TEST(Tools, WhatIsWrongIsNamed) {
  const auto tool = [](const char* text) { return StrCat(R"("tools":[)", text, R"(],"tool_choice":"required")"); };
  const std::tuple<std::string, const char*, const char*> cases[] = {
      {StrCat(kTools, R"(,"tool_choice":"any")"), "tool_choice", "got \"any\""},
      {StrCat(kTools, R"(,"tool_choice":{"type":"function"})"), "tool_choice", "must be a string or"},
      {StrCat(kTools, R"(,"tool_choice":{"type":"function","function":{"name":"then"}})"), "tool_choice",
       "names then, which is not among"},
      {R"("tool_choice":"required")", "tool_choice", "needs `tools`"},
      {R"("tool_choice":{"function":{"name":"f"}})", "tool_choice", "needs `tools`"},
      {tool(R"({"function":{"name":"f"}})"), "tools", "tools[0].type"},
      {tool(R"({"type":"function"})"), "tools", "tools[0].function.name"},
      {tool(R"({"type":"function","function":{"name":"a b"}})"), "tools", "tools[0].function.name"},
      {tool(R"({"type":"function","function":{"name":"f","parameters":[]}})"), "tools", "tools[0].function.parameters"},
      {tool(R"({"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}})"), "tools",
       "two functions called f"},
      {tool("3"), "tools", "tools[0].type"},
      {StrCat(kTools, R"(,"tool_choice":"required","guided_regex":"a")"), "tool_choice", "`guided_regex` both"},
  };
  for (const auto& [more, param, message] : cases) {
    const ApiError error = ChatError(With(more));
    EXPECT_EQ(error.param, param) << more;
    EXPECT_THAT(error.message, HasSubstr(message)) << more;
  }
}

TEST(Tools, ByDefaultTheModelMayCall) {
  for (const char* choice : {"", R"(,"tool_choice":"auto")", R"(,"tool_choice":null)"}) {
    const CompletionRequest r = Chat(With(StrCat(kTools, choice, R"(,"guided_regex":"a")")));
    EXPECT_THAT(r.callable, ElementsAre("get_weather", "now"));
    EXPECT_FALSE(r.must_call);
    EXPECT_EQ(r.input.sampling.grammar->text, "a") << "it may fit something as well";
  }
}

/// Text and calls of an answer that comes in these pieces; told once means that each call's name came once.
std::string Seen(ToolCallReader& reader, const std::vector<std::string>& pieces, bool whole) {
  std::string text;
  std::vector<std::string> calls;
  const auto take = [&](const ToolCallReader::Piece& piece) {
    text += piece.text;
    for (const ToolCallReader::Call& call : piece.calls) {
      if (!call.name.empty()) {
        EXPECT_EQ(call.index, static_cast<int32_t>(calls.size()));
        calls.push_back(StrCat(call.name, " "));
      }
      if (calls.empty()) return ADD_FAILURE() << "arguments of no call: " << call.arguments;
      calls.back() += call.arguments;
    }
  };
  for (const std::string& piece : pieces) take(reader.Append(piece));
  take(reader.Finish(whole));
  std::string all = text;
  for (const std::string& call : calls) all += StrCat(" | ", call);
  return all;
}

void ExpectHoweverCut(const std::function<std::unique_ptr<ToolCallReader>()>& make, const std::string& text, bool whole,
                      const std::string& seen) {
  for (size_t first = 0; first <= text.size(); ++first) {
    for (size_t second = first; second <= text.size(); ++second) {
      const auto reader = make();
      ASSERT_EQ(Seen(*reader, {text.substr(0, first), text.substr(first, second - first), text.substr(second)}, whole),
                seen)
          << first << " " << second;
    }
  }
}

TEST(ForcedCall, IsTheSameHoweverItsTextIsCut) {
  const auto make = [] { return ReadForcedCall({"get_weather", "get"}); };
  const std::string arguments = R"({"city":"{\"name\":}}","more":{"é":{}}})";
  ExpectHoweverCut(make, StrCat(ToolCallHead("get"), arguments, "}"), true, StrCat(" | get ", arguments));
  ExpectHoweverCut(make, StrCat(ToolCallHead("get"), R"({"a":{})"), false, R"( | get {"a":{})");
  ExpectHoweverCut(make, R"({"name")", false, "");
}

TEST(TaggedCalls, AreTheSameHoweverTheTextIsCut) {
  const auto make = [] { return ReadTaggedCalls({"f", "g"}); };
  const char* call = R"(<tool_call>
{"name": "f", "arguments": {"b": [1, 2.5], "a": "</tool"}}
</tool_call>)";
  const char* seen = R"( | f {"b":[1,2.5],"a":"</tool"})";
  ExpectHoweverCut(make, call, true, seen);
  ExpectHoweverCut(make, StrCat("Well <tool> ", call, "\n"), true, StrCat("Well <tool> ", seen));
  ExpectHoweverCut(make, StrCat(call, "\n<tool_call>{\"name\":\"g\"}</tool_call> so"), true,
                   StrCat("so", seen, " | g {}"));
  ExpectHoweverCut(make, R"(<tool_call>{"name":"g","arguments":{}})", true, " | g {}");
}

TEST(TaggedCalls, WhatIsNoCallStaysText) {
  const auto make = [] { return ReadTaggedCalls({"f"}); };
  for (const std::string text :
       {R"(<tool_call>{"name":"other","arguments":{}}</tool_call>)", "<tool_call>{</tool_call> <", "a < b <tool_cal",
        R"(<tool_call>{"name":"f","arguments":"x"}</tool_call>)", R"(<tool_call>["f"]</tool_call>)", "</tool_call>"}) {
    ExpectHoweverCut(make, text, true, text);
  }
  ExpectHoweverCut(make, R"(<tool_call>{"name":"f")", false, R"(<tool_call>{"name":"f")");
  const std::string deep = StrCat(R"(<tool_call>{"name":"f","arguments":)", std::string(100000, '['), "</tool_call>");
  const auto reader = make();
  EXPECT_EQ(Seen(*reader, {deep}, true), deep);
}

}  // namespace
}  // namespace baton::router
