// Calls of functions that a request asks for: the grammar that they become, and the call taken out of an answer's text.
#include "router/http/tool_call.h"

#include <gmock/gmock.h>

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
      {StrCat(kTools, R"(,"tool_choice":"auto")"), "tools", "own choice"},
      {kTools, "tools", "own choice"},
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

TEST(ToolCallText, TheCallIsTheSameHoweverItsTextIsCut) {
  const std::string arguments = R"({"city":"{\"name\":}}","more":{"é":{}}})";
  const std::string text = StrCat(ToolCallHead("get"), arguments, "}");
  for (size_t first = 0; first <= text.size(); ++first) {
    for (size_t second = first; second <= text.size(); ++second) {
      ToolCallText call({"get_weather", "get"});
      std::string name, seen;
      for (const std::string& piece :
           {text.substr(0, first), text.substr(first, second - first), text.substr(second)}) {
        const ToolCallText::Piece got = call.Append(piece);
        EXPECT_TRUE(name.empty() || got.name.empty()) << "told once";
        name += got.name;
        seen += got.arguments;
      }
      seen += call.Finish(/*whole=*/true);
      ASSERT_EQ(name, "get");
      ASSERT_EQ(seen, arguments) << first << " " << second;
    }
  }
}

TEST(ToolCallText, OfACutAnswerTheArgumentsAreWhatIsThere) {
  ToolCallText cut({"f"});
  EXPECT_EQ(cut.Append(R"({"name":"f","arg)").name, "");
  EXPECT_EQ(cut.Append(R"(uments":{"a":{})").arguments, R"({"a":{)");
  EXPECT_EQ(cut.Finish(/*whole=*/false), "}");
  ToolCallText unnamed({"f"});
  EXPECT_EQ(unnamed.Append(R"({"name")").arguments, "");
  EXPECT_EQ(unnamed.Finish(/*whole=*/false), "");
}

}  // namespace
}  // namespace baton::router
