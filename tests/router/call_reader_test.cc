// Calls of functions in the text of an answer: in every family's form, however the text is cut.
#include "router/dialect/call_reader.h"

#include <gmock/gmock.h>

#include <functional>
#include <set>

#include "common/str_cat.h"

namespace baton::router {
namespace {

using testing::IsNull;

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

// A client's stop string or stop token may end the text anywhere.
TEST(ForcedCall, IsWholeWhereItsArgumentsAre) {
  const std::tuple<std::string, bool, std::string, bool> cases[] = {
      {R"({"a":"}\""}})", true, R"( | f {"a":"}\""})", true}, {R"({"a":1}})", false, R"( | f {"a":1})", true},
      {R"({"a":1})", false, R"( | f {"a":1})", true},         {R"({"a":{})", true, R"( | f {"a":{})", false},
      {R"({"a":"})", true, R"( | f {"a":"})", false},         {R"({"a")", true, R"( | f {"a")", false},
      {R"({"a":1e400}})", true, R"( | f {"a":1e400})", true}, {"", true, " | f ", false}};
  for (const auto& [arguments, by_model, seen, is_whole] : cases) {
    const auto reader = ReadForcedCall({"f"});
    EXPECT_EQ(Seen(*reader, {StrCat(ToolCallHead("f"), arguments)}, by_model), seen) << arguments;
    EXPECT_EQ(reader->HasWholeCall(), is_whole) << arguments;
  }
  EXPECT_FALSE(ReadForcedCall({"f"})->HasWholeCall());
}

TEST(MarkedCalls, OneThatIsCutIsNotWholeAndOneBeforeItIs) {
  const auto make = [] { return ReadFreeCalls(*FindCallForm("hermes"), {"f"}); };
  const auto cut = make(), second = make();
  Seen(*cut, {R"(<tool_call>{"name":"f")"}, false);
  EXPECT_FALSE(cut->HasWholeCall());
  Seen(*second, {R"(<tool_call>{"name":"f"}</tool_call><tool_call>{"name")"}, false);
  EXPECT_TRUE(second->HasWholeCall());
}

TEST(MarkedCalls, AreTheSameHoweverTheTextIsCut) {
  const auto make = [] { return ReadFreeCalls(*FindCallForm("hermes"), {"f", "g"}); };
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

TEST(MarkedCalls, AreWhereTheyWereWritten) {
  const auto reader = ReadFreeCalls(*FindCallForm("hermes"), {"f", "g"});
  const std::string f = R"(<tool_call>{"name":"f"}</tool_call>)", g = R"(<tool_call>{"name":"g"}</tool_call>)";
  const ToolCallReader::Piece piece = reader->Append(StrCat("one", f, "three", g, "\n", f));
  EXPECT_EQ(piece.text, "onethree");
  ASSERT_EQ(piece.calls.size(), 3u);
  EXPECT_EQ(piece.calls[0].at, 3u);
  EXPECT_EQ(piece.calls[1].at, 8u);
  EXPECT_EQ(piece.calls[2].at, 8u);
}

TEST(MarkedCalls, WhatIsNoCallStaysText) {
  const auto make = [] { return ReadFreeCalls(*FindCallForm("hermes"), {"f"}); };
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

std::function<std::unique_ptr<ToolCallReader>()> In(const char* form) {
  return [form] { return ReadFreeCalls(*FindCallForm(form), {"f", "get_more"}); };
}

TEST(CallForms, EveryFamilysCallsAreRead) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"hermes", R"(So <tool_call>{"name":"f","arguments":"{\"a\": 1}"}</tool_call>)", R"(So  | f {"a":1})"},
      {"llama3_json", R"({"name": "f", "parameters": {"a": "}"}})", R"( | f {"a":"}"})"},
      {"llama3_json", R"( <|python_tag|>{"name": "f", "parameters": {}}; {"parameters": {"b": 2}, "name": "get_more"})",
       R"( | f {} | get_more {"b":2})"},
      {"llama3_json", R"({"type": "function", "name": "f"})", " | f {}"},
      {"llama3_json", R"({"name": "f", "parameters": null})", " | f {}"},
      {"hermes", R"(<tool_call>{"name":"f","arguments":null}</tool_call>)", " | f {}"},
      {"mistral", R"([TOOL_CALLS][{"name":"f","arguments":""}])", " | f {}"},
      {"hermes",
       R"(<tool_call>{"name":"f","arguments":{"a":[1000000000000000000001, -0.5e3, {"b\"é":18446744073709551615}]}}</tool_call>)",
       R"( | f {"a":[1000000000000000000001,-500.0,{"b\"é":18446744073709551615}]})"},
      {"hermes",
       R"(<tool_call>{"name":"f","arguments":"{\"a\":-123456789012345678901234567890,\"a\":123456789012345678901234567891}"}</tool_call>)",
       R"( | f {"a":123456789012345678901234567891})"},
      {"pythonic", "[f(a=1_000_000_000_000_000_000_001, b=-18446744073709551616)]",
       R"( | f {"a":1000000000000000000001,"b":-18446744073709551616})"},
      {"gemma", "<start_function_call>call:f{a:1000000000000000000001}<end_function_call>",
       R"( | f {"a":1000000000000000000001})"},
      {"mistral", R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": [1]}}, {"name": "get_more", "arguments": {}}])",
       R"( | f {"a":[1]} | get_more {})"},
      {"mistral", R"(So.[TOOL_CALLS]f{"a":"["}[TOOL_CALLS]get_more[ARGS]{"b":{}})",
       R"(So. | f {"a":"["} | get_more {"b":{}})"},
      {"mistral", R"([TOOL_CALLS]f[CALL_ID]123456789[ARGS]{})", " | f {}"},
      {"pythonic", "[f(a=1, b='it\\'s', c=None), get_more()]", R"( | f {"a":1,"b":"it's","c":null} | get_more {})"},
      {"pythonic", R"(<|python_start|>[f(a=[True, -2.5e3], b={"k": ("x", "\u00e9")}),]<|python_end|>)",
       R"( | f {"a":[true,-2500.0],"b":{"k":["x","é"]}})"},
      {"gemma", "So <start_function_call>call:f{a:<escape>it's }<escape>,b:{c:[1,true]}}<end_function_call>",
       R"(So  | f {"a":"it's }","b":{"c":[1,true]}})"},
      {"gemma4", R"(<|tool_call>call:f{a:<|"|>x<|"|>,b:null}<tool_call|><|tool_call>call:get_more{}<tool_call|>)",
       R"( | f {"a":"x","b":null} | get_more {})"},
  };
  for (const auto& [form, text, seen] : cases) {
    SCOPED_TRACE(StrCat(form, ": ", text));
    ExpectHoweverCut(In(form), text, true, seen);
  }
}

TEST(CallForms, WhatIsNoCallStaysText) {
  const std::pair<const char*, const char*> cases[] = {
      {"llama3_json", R"({"name": "other", "parameters": {}})"},
      {"llama3_json", R"({"name": "f", "parameters": {}} so)"},
      {"llama3_json", R"({"city": 1})"},
      {"llama3_json", "{"},
      {"llama3_json", "  so {"},
      {"llama3_json", R"({"name": "f", "parameters": 1})"},
      {"mistral", "[TOOL_CALLS] nothing"},
      {"mistral", R"([TOOL_CALLS][{"name": "other", "arguments": {}}])"},
      {"mistral", R"([TOOL_CALL)"},
      {"mistral", R"([TOOL_CALLS][])"},
      {"pythonic", "[f(a=1)] so"},
      {"pythonic", "[1, 2]"},
      {"pythonic", "[other(a=1)]"},
      {"pythonic", "[f(1)]"},
      {"pythonic", "[f(a=1, a=2)]"},
      {"pythonic", "[f(a=b)]"},
      {"pythonic", "[f(a='"},
      {"gemma", "<start_function_call>call:f{a:<escape>x}<end_function_call>"},
      {"gemma", "<start_function_call>call:other{}<end_function_call>"},
      {"gemma4", "<|tool_call>f{}<tool_call|>"},
  };
  for (const auto& [form, text] : cases) {
    SCOPED_TRACE(StrCat(form, ": ", text));
    ExpectHoweverCut(In(form), text, true, text);
  }
}

TEST(CallForms, AnAnswerThatCannotBeCallsIsNotHeld) {
  EXPECT_EQ(In("llama3_json")()->Append("{\"answer").text, "{\"answer");
  EXPECT_EQ(In("pythonic")()->Append(" [get_less").text, " [get_less");
  EXPECT_EQ(In("pythonic")()->Append("[get_m").text, "");
  EXPECT_EQ(In("mistral")()->Append("[TOOL box").text, "[TOOL box");
}

TEST(CallForms, ACutCallIsText) {
  for (const auto& [form, text] : {std::pair{"llama3_json", R"({"name": "f", "parameters": {}})"},
                                   {"pythonic", "[f()]"},
                                   {"mistral", "[TOOL_CALLS]f{}"}}) {
    ExpectHoweverCut(In(form), text, false, text);
  }
}

TEST(CallForms, DeepValuesAreText) {
  const std::string deep = StrCat("[f(a=", std::string(100000, '['), ")]");
  EXPECT_EQ(Seen(*In("pythonic")(), {deep}, true), deep);
}

TEST(CallForms, TheChatTemplateSaysWhichItIs) {
  const std::pair<const char*, const char*> cases[] = {
      {"hermes", R"({% if tools %}return <tool_call>\n{\"name\": <function-name>}\n</tool_call>{% endif %})"},
      {"llama3_json", R"({{ '<|start_header_id|>' }} answer with {"name": …, "parameters": …})"},
      {"llama3_json", "{{ '<|python_tag|>' }}"},
      {"mistral", "{{ '[TOOL_CALLS]' }}"},
      {"pythonic", "{{ 'Answer as [func_name1(a=1), func_name2()]' }}"},
      {"gemma", "{{ '<start_function_call>call:' }}"},
      {"gemma4", "{{ '<|tool_call>call:' }}"},
  };
  for (const auto& [form, source] : cases) {
    ASSERT_NE(CallFormOf(source), nullptr) << source;
    EXPECT_EQ(CallFormOf(source)->name, form);
  }
  EXPECT_THAT(CallFormOf("{{ messages[0].content }}"), IsNull());
  EXPECT_THAT(CallFormOf("<tool_call>\n<function=name>"), IsNull());
  EXPECT_THAT(CallFormOf("<tool_call>name<arg_key>"), IsNull());
}

TEST(CallForms, IdsAreUnlikeEachOther) {
  std::set<std::string> ids;
  for (int i = 0; i < 1000; ++i) {
    ids.insert(NewCallId(nullptr));
    ids.insert(NewCallId(FindCallForm("mistral")));
  }
  EXPECT_EQ(ids.size(), 2000u);
  EXPECT_EQ(NewCallId(FindCallForm("mistral")).size(), 9u);
}

}  // namespace
}  // namespace baton::router
