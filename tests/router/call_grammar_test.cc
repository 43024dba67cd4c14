// Free calls of strict functions: whatever the grammar lets a model write, the calls that are read from it fit, and
// what a model of the family would write is among it.
#include "router/dialect/call_grammar.h"

#include <gmock/gmock.h>

#include <functional>
#include <random>

#include "common/json.h"
#include "common/str_cat.h"
#include "more_tokens.h"
#include "router/dialect/call_reader.h"
#include "text/grammar.h"

namespace baton::router {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr const char* kGo =
    R"({"type":"object","properties":{"city":{"enum":["Rome","New \"York\""]},"days":{"type":"integer"},
  "note":{"type":"string"},"where":{"type":"object","properties":{"far":{"type":"boolean"},"of":{"type":"array","items":{"type":["string","null"]}}},
  "required":["far"],"additionalProperties":false},"next":{"$ref":"#/$defs/day"}},"required":["city","note"],"additionalProperties":false,
  "$defs":{"day":{"type":"object","properties":{"n":{"type":"integer"},"then":{"$ref":"#/$defs/day"}},"required":["n"],"additionalProperties":false}}})";

bool IsDay(const json& day) {
  for (const auto& [key, value] : day.items()) {
    if (key == "n" ? !value.is_number_integer() : key != "then" || !IsDay(value)) return false;
  }
  return day.is_object() && day.contains("n");
}

bool Fits(const json& a) {
  for (const auto& [key, value] : a.items()) {
    const bool good = key == "city"    ? value == "Rome" || value == "New \"York\""
                      : key == "days"  ? value.is_number_integer()
                      : key == "note"  ? value.is_string()
                      : key == "next"  ? IsDay(value)
                      : key == "where" ? value.is_object() && value.contains("far") && value["far"].is_boolean()
                                       : false;
    if (!good) return false;
  }
  return a.is_object() && a.contains("city") && a.contains("note");
}

const std::vector<Callable>& Functions() {
  static const std::vector<Callable> functions = {{"go", kGo, true}, {"any", R"({"type":"object"})", false}};
  return functions;
}

struct Written {
  std::string text;
  std::vector<ToolCallReader::Call> calls;
};
Written ReadAnswer(const CallForm& form, const std::string& answer) {
  const auto reader = ReadFreeCalls(form, {"go", "any"}, /*well_formed=*/true);
  Written all;
  for (ToolCallReader::Piece piece : {reader->Append(answer), reader->Finish(true)}) {
    all.text += piece.text;
    for (auto& call : piece.calls) all.calls.push_back(std::move(call));
  }
  return all;
}

/// A form with a tokenizer whose marks are letters, or special tokens.
class Family {
 public:
  Family(std::string_view form, bool special)
      : form_(*FindCallForm(form)), tokenizer_(TinyWith(Tokens(form_), special)) {
    const auto lark = FreeCallGrammar(form_, Functions(), *tokenizer_);
    EXPECT_TRUE(lark.ok()) << lark.status();
    compiler_ = *GrammarCompiler::Make(*tokenizer_, tokenizer_->eos_ids(), tokenizer_->vocab_size());
    auto start = compiler_->Compile(GrammarKind::kLark, *lark);
    EXPECT_TRUE(start.ok()) << start.status() << "\n" << *lark;
    start_ = *std::move(start);
  }

  const CallForm& form() const { return form_; }
  /// Where special tokens in it are read as such.
  bool Takes(const std::string& answer, bool as_tokens = true) {
    const auto matcher = *start_->Copy();
    const std::vector<int32_t> ids = *tokenizer_->Encode(answer, false, as_tokens);
    return matcher->Consume(ids).ok() && matcher->MayEnd();
  }
  /// An answer that begins with `beginning` and goes on at random; nothing if it does not end.
  std::optional<std::string> Draw(const std::string& beginning, std::mt19937& dice) {
    const auto matcher = *start_->Copy();
    std::vector<int32_t> ids = *tokenizer_->Encode(beginning, false);
    EXPECT_TRUE(matcher->Consume(ids).ok()) << beginning;
    std::vector<uint32_t> mask((static_cast<size_t>(tokenizer_->vocab_size()) + 31) / 32);
    while (ids.size() < 300) {
      EXPECT_TRUE(matcher->Mask(absl::MakeSpan(mask)).ok());
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id)
        if (mask[static_cast<size_t>(id / 32)] >> (id % 32) & 1) allowed.push_back(id);
      if (allowed.empty()) return ADD_FAILURE() << tokenizer_->Decode(ids, false), std::nullopt;
      // Rather tokens that close something: long texts hide what comes behind them.
      int32_t chosen = allowed[dice() % allowed.size()];
      for (int tries = 0;
           tries < 3 && tokenizer_->TokenBytes(chosen).find_first_of("\"}])<>,':") == std::string_view::npos; ++tries)
        chosen = allowed[dice() % allowed.size()];
      const auto& eos = tokenizer_->eos_ids();
      if (std::ranges::find(eos, chosen) != eos.end()) return tokenizer_->Decode(ids, false);
      EXPECT_TRUE(matcher->Consume({chosen}).ok());
      ids.push_back(chosen);
    }
    return std::nullopt;
  }

 private:
  static std::vector<std::string> Tokens(const CallForm& form) {
    std::vector<std::string> tokens = {"[ARGS]", "<|python_end|>"};
    for (const std::string_view mark : {form.open, form.close, form.lead, form.quotes.front()})
      if (mark.size() > 1) tokens.emplace_back(mark);
    return tokens;
  }

  const CallForm& form_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<GrammarCompiler> compiler_;
  std::unique_ptr<GrammarMatcher> start_;
};

void ForEveryFamily(const std::function<void(Family&)>& body) {
  for (const CallForm& form : CallForms()) {
    for (const bool special : {false, true}) {
      SCOPED_TRACE(StrCat(form.name, special ? ", marks are tokens" : ""));
      Family family(form.name, special);
      body(family);
    }
  }
}

/// What models of the family write.
std::vector<std::string> UsualCalls(std::string_view form) {
  if (form == "hermes")
    return {
        "<tool_call>\n{\"name\": \"go\", \"arguments\": {\"city\": \"Rome\", \"note\": \"it's <b>\"}}\n</tool_call>",
        "Well. <tool_call>{\"name\": \"any\", \"arguments\": {\"x\": [1]}}</tool_call>\n<tool_call>\n{\"name\": "
        "\"go\", \"arguments\": {\"city\": \"Rome\", \"note\": \"\"}}</tool_call>"};
  if (form == "llama3_json")
    return {
        R"({"name": "go", "parameters": {"city": "Rome", "note": "so }"}})",
        R"(<|python_tag|>{"type": "function", "name": "go", "parameters": {"city": "Rome", "days": 3, "note": ""}})",
        R"({"name": "any", "parameters": {}}; {"name": "go", "parameters": {"city": "Rome", "note": ""}})"};
  if (form == "mistral")
    return {
        R"([TOOL_CALLS] [{"name": "go", "arguments": {"city": "Rome", "note": "]"}}, {"name": "any", "arguments": {"a": {}}}])",
        R"(Well. [TOOL_CALLS]go[ARGS]{"city": "Rome", "note": "so"})",
        R"([TOOL_CALLS]any{"a": 1}[TOOL_CALLS]go{"city": "Rome", "note": ""})"};
  if (form == "pythonic")
    return {
        R"([go(city='Rome', days=-3, note='it\'s "so"'), any(x=[1, 'a', None], y={"k": True})])",
        R"(<|python_start|>[go(city="New \"York\"", note="", where={"far": True, 'of': ["x", None]})]<|python_end|>)",
        "[any()]"};
  const std::string q(form == "gemma" ? "<escape>" : "<|\"|>");
  const std::string open(FindCallForm(form)->open), close(FindCallForm(form)->close);
  return {StrCat(open, "call:go{city:", q, "Rome", q, ",note:", q, "it's \"so\"}", q, ",where:{far:true,of:[", q, "x",
                 q, ",null]}}", close),
          StrCat("Well. ", open, "call:any{x:[1,", q, q, "],y:{z:true}}", close, open, "call:go{city:", q, "Rome", q,
                 ",days:3,note:", q, q, ",next:{\"n\":1}}", close)};
}

TEST(CallGrammar, HasWhatModelsOfTheFamilyWrite) {
  ForEveryFamily([](Family& family) {
    for (const std::string& answer : UsualCalls(family.form().name)) {
      EXPECT_TRUE(family.Takes(answer)) << answer;
      const Written read = ReadAnswer(family.form(), answer);
      EXPECT_FALSE(read.calls.empty()) << answer;
      EXPECT_THAT(read.text, testing::AnyOf("", "Well. ")) << answer;
      for (const auto& call : read.calls)
        EXPECT_TRUE(call.name == "any" || Fits(json::parse(call.arguments))) << call.arguments;
    }
  });
}

TEST(CallGrammar, HasTextThatIsNoCall) {
  ForEveryFamily([](Family& family) {
    for (const char* answer : {"", "Well, {\"a\": 1} and [2] or so.", "  {\"city\": \"Rome\"}", "[1, 2]", "{",
                               "[gone(1)]", "a < b", "{\"names\": 1}"})
      EXPECT_TRUE(family.Takes(answer)) << answer;
  });
}

/// Calls of go whose arguments do not fit, in every way that the family's reader knows.
std::vector<std::string> Misfits(std::string_view form) {
  if (form == "hermes")
    return {R"(<tool_call>{"name":"go","arguments":{}}</tool_call>)",
            R"(<tool_call>{"arguments":{},"name":"go"}</tool_call>)",
            R"(<tool_call>{"name":"any","arguments":{}}</tool_call><tool_call>{"name":"go"}</tool_call>)",
            R"(<tool_call>{"name":"go","parameters":{"city":1}}</tool_call>)", R"(<tool_call>{"name":"go"})"};
  if (form == "llama3_json")
    return {R"({"name": "go", "parameters": {}})",
            R"(  {"name":"go"})",
            R"({"parameters":{},"name":"go"})",
            R"(<|python_tag|>{"name":"go"})",
            "\t{\"type\":\"function\",\"name\":\"go\",\"arguments\":{}}",
            R"({"name":"any","parameters":{}};{"name":"go"})"};
  if (form == "mistral")
    return {R"([TOOL_CALLS]go{})",
            R"([TOOL_CALLS][{"name":"go"}])",
            R"([TOOL_CALLS]go[CALL_ID]1[ARGS]{})",
            R"(so [TOOL_CALLS] go {"city":"Rome"})",
            R"([TOOL_CALLS][{"name":"any","arguments":{}},{"name":"go","arguments":{"city":"Rome"}}])",
            R"([TOOL_CALLS]any{}[TOOL_CALLS]go{})"};
  if (form == "pythonic")
    return {"[go()]",
            " [ go()]",
            "[any(), go(city='Rome')]",
            "[go(city='Oslo', note='')]",
            "[go(city='Rome', note=1)]",
            "<|python_start|>[go()]<|python_end|>",
            "[go(city='Rome', note='', more=1)]",
            "[go(city='Rome', note='', where={'far': 1})]",
            "[any(x=')'), go(x=')')]"};
  const std::string open(FindCallForm(form)->open), close(FindCallForm(form)->close);
  std::vector<std::string> all;
  for (const char* call :
       {"call:go{}", "call:go{city:\"Oslo\",note:\"\"}", "call:go{city:\"Rome\",note:1}", " call:go{}", "call:go {}",
        "call:go{city:\"Rome\",note:\"\",\"x\":1}", "call:go{city:\"Rome\",note:\"\",next:{\"n\":1,\"then\":{}}}"})
    all.push_back(StrCat(open, call, close));
  all.push_back(StrCat(open, "call:go{}"));
  return all;
}

TEST(CallGrammar, HasNoCallThatDoesNotFit) {
  ForEveryFamily([](Family& family) {
    for (const std::string& answer : Misfits(family.form().name)) {
      const Written read = ReadAnswer(family.form(), answer);
      EXPECT_FALSE(read.calls.empty()) << "this shows nothing: " << answer;
      EXPECT_FALSE(family.Takes(answer)) << answer;
      EXPECT_FALSE(family.Takes(answer, /*as_tokens=*/false)) << "letter by letter: " << answer;
    }
  });
}

TEST(CallGrammar, CallsThatAreDrawnAtRandomFit) {
  ForEveryFamily([](Family& family) {
    std::mt19937 dice(17);
    std::string beginning = UsualCalls(family.form().name)[0];
    beginning.resize(beginning.find("go") + 3);
    int seen = 0;
    for (int i = 0; i < 24; ++i) {
      const std::optional<std::string> answer = family.Draw(i % 3 == 0 ? "" : beginning, dice);
      if (!answer) continue;
      for (const auto& call : ReadAnswer(family.form(), *answer).calls) {
        if (call.name != "go") continue;
        ++seen;
        EXPECT_TRUE(Fits(json::parse(call.arguments))) << *answer;
      }
    }
    EXPECT_GT(seen, 0) << "nothing is shown";
  });
}

TEST(CallGrammar, AMarkWithinAStringOfACallIsNone) {
  for (const CallForm& form : CallForms()) {
    if (form.open.empty()) continue;
    SCOPED_TRACE(form.name);
    Family family(form.name, false);
    const bool gemma = form.writing == CallWriting::kGemma;
    const std::string inner = StrCat(form.close, form.open,
                                     gemma                    ? "call:go{}"
                                     : form.name == "mistral" ? "go{}"
                                                              : R"({\"name\":\"go\"})",
                                     form.close, form.close.empty() ? form.open : "");
    const std::string quote = gemma ? std::string(form.quotes.front()) : "\"";
    const std::string arguments = gemma ? StrCat("{city:", quote, "Rome", quote, ",note:", quote, inner, quote, "}")
                                        : StrCat(R"({"city":"Rome","note":")", inner, "\"}");
    const std::string answer = StrCat(form.open,
                                      gemma                    ? StrCat("call:go", arguments)
                                      : form.name == "mistral" ? StrCat("go", arguments)
                                                               : StrCat(R"({"name":"go","arguments":)", arguments, "}"),
                                      form.close);
    EXPECT_TRUE(family.Takes(answer)) << answer;
    const Written read = ReadAnswer(form, answer);
    ASSERT_EQ(read.calls.size(), 1u) << answer;
    EXPECT_EQ(json::parse(read.calls[0].arguments)["note"],
              gemma || form.name == "mistral" ? inner : StrCat(form.close, form.open, R"({"name":"go"})", form.close));
    EXPECT_EQ(read.text, "");
  }
}

TEST(CallGrammar, ASchemaThatAFormHasNoWayForIsRefusedWithThePlace) {
  const auto tokenizer = TinyWith({}, false);
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"pythonic", R"({"type":"object","anyOf":[{}]})", "the schema of f has #/anyOf"},
      {"gemma", R"({"type":"object","minProperties":1})", "#/minProperties"},
      {"gemma4", R"({"type":["object","null"]})", "#/type"},
      {"pythonic", R"({"type":"object","properties":{"a b":{}}})", "\"a b\""},
      {"pythonic", R"({"type":"object","required":["a"]})", "#/required"},
  };
  for (const auto& [form, schema, why] : cases) {
    const auto made = FreeCallGrammar(*FindCallForm(form), {{"f", schema, true}}, *tokenizer);
    EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument) << schema;
    EXPECT_THAT(std::string(made.status().message()), HasSubstr(why));
  }
  EXPECT_EQ(*FreeCallGrammar(*FindCallForm("hermes"), {{"f", "{}", false}}, *tokenizer), "") << "nothing to hold";
}

}  // namespace
}  // namespace baton::router
