// Calls of functions that a request asks for, and the grammar that they become.
#include <gmock/gmock.h>

#include "parsed_request.h"

namespace baton::router {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kTools[] =
    R"("tools":[{"type":"function","function":{"name":"get_weather","parameters":{"properties":{"city":{"type":"string"}}}}},)"
    R"({"type":"function","function":{"name":"now"}}])";

std::vector<std::string> Names(const CompletionRequest& r) {
  std::vector<std::string> names;
  for (const Callable& one : r.callable) names.push_back(one.name);
  return names;
}

TEST(Tools, ARequiredCallIsOneOfAllFunctions) {
  const CompletionRequest r = Chat(With(StrCat(kTools, R"(,"tool_choice":"required")")));
  EXPECT_THAT(Names(r), ElementsAre("get_weather", "now"));
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
  EXPECT_THAT(Names(r), ElementsAre("now"));
  EXPECT_THAT(r.input.sampling.grammar->text, Not(HasSubstr("get_weather")));
  const CompletionRequest none = Chat(With(StrCat(kTools, R"(,"tool_choice":"none")")));
  EXPECT_TRUE(none.callable.empty());
  EXPECT_EQ(none.input.sampling.grammar, nullptr);
}

TEST(Tools, AllowedOnesAreTheOnlyOnesAndTheTemplateShowsAll) {
  for (
      const char* shape :
      {R"({"type":"allowed_tools","allowed_tools":{"mode":"MODE","tools":[{"type":"function","function":{"name":"now"}}]}})",
       R"({"type":"allowed_tools","mode":"MODE","tools":[{"type":"function","name":"now"}]})"}) {
    for (const std::string mode : {"auto", "required"}) {
      std::string choice = shape;
      choice.replace(choice.find("MODE"), 4, mode);
      const CompletionRequest r = Chat(With(StrCat(kTools, R"(,"tool_choice":)", choice)));
      EXPECT_THAT(Names(r), ElementsAre("now"));
      EXPECT_EQ(r.must_call, mode == "required");
      EXPECT_THAT(std::get<ChatPrompt>(r.prompts[0]).tools_json, HasSubstr("get_weather"));
    }
  }
}

// Each is compared with all others.
TEST(Tools, MoreThanAThousandAreRefusedBeforeTheyAreLookedAt) {
  const auto list = [](const char* tool, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) absl::StrAppend(&text, text.empty() ? "[" : ",", tool, i, "\"}}");
    return text + "]";
  };
  const std::string tools = StrCat(R"("tools":)", list(R"({"type":"function","function":{"name":"f)", 1025));
  const ApiError many = ChatError(With(StrCat(tools, R"(,"tool_choice":"required")")));
  EXPECT_THAT(many.message, testing::AllOf(HasSubstr("`tools` has 1025"), HasSubstr("at most 1024")));
  const ApiError allowed =
      ChatError(With(StrCat(kTools, R"(,"tool_choice":{"type":"allowed_tools","mode":"auto","tools":)",
                            list(R"({"type":"function","function":{"name":"f)", 1025), "}")));
  EXPECT_THAT(allowed.message, testing::AllOf(HasSubstr("`tool_choice` has 1025"), HasSubstr("at most 1024")));
}

TEST(Tools, WhatIsWrongIsNamed) {
  const auto tool = [](const char* text) { return StrCat(R"("tools":[)", text, R"(],"tool_choice":"required")"); };
  const std::tuple<std::string, const char*, const char*> cases[] = {
      {StrCat(kTools, R"(,"tool_choice":"any")"), "tool_choice", "got \"any\""},
      {StrCat(kTools, R"(,"tool_choice":{"type":"function"})"), "tool_choice", "must be a string,"},
      {StrCat(kTools, R"(,"tool_choice":{"type":"function","function":{"name":"then"}})"), "tool_choice",
       "names then, which is not among"},
      {StrCat(kTools, R"(,"tool_choice":{"type":"allowed_tools","mode":"any","tools":[{"name":"now"}]})"),
       "tool_choice", ".mode`"},
      {StrCat(kTools, R"(,"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[]})"), "tool_choice",
       "not empty"},
      {StrCat(kTools, R"(,"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{}]})"), "tool_choice",
       "`name`"},
      {StrCat(kTools, R"(,"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"name":"then"}]})"),
       "tool_choice", "names then, which is not among"},
      {R"("tool_choice":"required")", "tool_choice", "needs `tools`"},
      {R"("tool_choice":{"function":{"name":"f"}})", "tool_choice", "needs `tools`"},
      {tool(R"({"type":"x","function":{"name":"f"}})"), "tools[0].type", "tools[0].type"},
      {tool(R"({"type":null,"function":{"name":"f"}})"), "tools[0].type", "tools[0].type"},
      {tool(R"({"function":{}})"), "tools[0].function.name", "tools[0].function.name"},
      {tool(R"({"type":"function"})"), "tools[0].function.name", "tools[0].function.name"},
      {tool(R"({"type":"function","function":{"name":"a b"}})"), "tools[0].function.name",
       "`tools[0].function.name` must be 1 to"},
      {tool(R"({"type":"function","function":{"name":"f","parameters":[]}})"), "tools[0].function.parameters",
       "`tools[0].function.parameters` must be a JSON Schema of an object, got an array"},
      {tool(R"({"type":"function","function":{"name":"f","parameters":{"type":"string"}}})"),
       "tools[0].function.parameters.type", "tools[0].function.parameters.type` must be \"object\", got \"string\""},
      {tool(R"({"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}})"), "tools",
       "two functions called f"},
      {tool("3"), "tools[0].type", "`tools[0].type` must be \"function\""},
      {tool(R"({"type":"function","function":{"name":"f"}},{"type":"custom","custom":{"name":"g"}})"), "tools[1].type",
       "`tools[1].type` must be"},
      {tool(StrCat(R"({"type":"function","function":{"name":")", std::string(129, 'f'), R"("}})").c_str()),
       "tools[0].function.name", "tools[0].function.name` must be 1 to 128 letters"},
      {tool(R"({"type":"function","function":{"name":"f","strict":"yes"}})"), "tools[0].function.strict",
       "tools[0].function.strict` must be a boolean, got a string"},
      {tool(R"({"type":"function","function":{"name":"f","description":3}})"), "tools[0].function.description",
       "tools[0].function.description` must be a string, got an integer"},
      {StrCat(kTools, R"(,"tool_choice":"required","guided_regex":"a")"), "tool_choice", "`guided_regex` both"},
  };
  for (const auto& [more, param, message] : cases) {
    const ApiError error = ChatError(With(more));
    EXPECT_EQ(error.param, param) << more;
    EXPECT_THAT(error.message, HasSubstr(message)) << more;
  }
}

TEST(Tools, NamesMayBeAsLongAsAgentsMakeThem) {
  const std::string name(128, 'f');
  const auto chat = Chat(With(StrCat(R"("tools":[{"type":"function","function":{"name":")", name, R"("}}])")));
  EXPECT_EQ(chat.callable.front().name, name);
}

TEST(Tools, OneCallAtATimeIsTheClientsWish) {
  EXPECT_TRUE(Chat(With(kTools)).parallel_calls);
  EXPECT_FALSE(Chat(With(StrCat(kTools, R"(,"parallel_tool_calls":false)"))).parallel_calls);
}

TEST(Tools, ArgumentsOfEarlierCallsAreObjects) {
  const auto calls = [](const char* arguments) {
    const CompletionRequest r = Chat(StrCat(
        R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":)",
        arguments, "}}]}]}"));
    const std::string& messages = std::get<ChatPrompt>(r.prompts[0]).messages_json;
    const size_t at = messages.find("arguments\":") + std::string_view("arguments\":").size();
    return messages.substr(at, messages.find("}}],\"content") - at);
  };
  EXPECT_EQ(calls(R"("{\"b\": [1, \"x\"], \"a\": {}}")"), R"({"b":[1,"x"],"a":{}})");
  EXPECT_EQ(calls(R"({"a":1})"), R"({"a":1})");
  EXPECT_EQ(calls(R"("")"), "{}");
  EXPECT_EQ(calls("null"), "{}");
  EXPECT_EQ(calls(R"("no object")"), R"("no object")");
  EXPECT_EQ(calls(R"("[1]")"), R"("[1]")");
}

TEST(Tools, AnEarlierCallWithoutArgumentsHasNone) {
  const CompletionRequest r =
      Chat(R"({"messages":[{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f"}}]}]})");
  EXPECT_THAT(std::get<ChatPrompt>(r.prompts[0]).messages_json,
              HasSubstr(R"("tool_calls":[{"id":"1","function":{"name":"f","arguments":{}}}])"));
}

TEST(Tools, ByDefaultTheModelMayCall) {
  for (const char* choice : {"", R"(,"tool_choice":"auto")", R"(,"tool_choice":null)"}) {
    const CompletionRequest r = Chat(With(StrCat(kTools, choice, R"(,"guided_regex":"a")")));
    EXPECT_THAT(Names(r), ElementsAre("get_weather", "now"));
    EXPECT_FALSE(r.must_call);
    EXPECT_EQ(r.input.sampling.grammar->text, "a") << "it may fit something as well";
  }
}

}  // namespace
}  // namespace baton::router
