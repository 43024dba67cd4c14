// Grammars of llama.cpp's kind: the texts that they take, and errors with their lines.
#include <random>
#include <tuple>

#include "absl/algorithm/container.h"
#include "common/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/text/gpt2_grammars.h"

namespace baton {
namespace {

using testing::HasSubstr;

// A rule that nobody uses, in which a character does not tell how it goes on: beside it every terminal is one
// character.
constexpr const char* kUntold = "\nuntold ::= \"a\" untold | \"a\"\n";

constexpr const char* kJson = R"gbnf(
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
)gbnf";

class Gbnf : public Gpt2Grammars {
 protected:
  static bool Takes(const std::string& grammar, const std::string& text) {
    return Gpt2Grammars::Takes(GrammarKind::kLark, grammar, text);
  }
  static std::string Refusal(const std::string& grammar) {
    return std::string(compiler_->Compile(GrammarKind::kLark, grammar).status().message());
  }
};

TEST_F(Gbnf, TakesTheTextsOfItsLanguage) {
  const std::tuple<std::string, std::vector<std::string>, std::vector<std::string>> cases[] = {
      {R"(root ::= "yes" | "no")", {"yes", "no"}, {"y", "yesno", ""}},
      {"root ::= [a-c]+ # comment ::= \"x\"\n", {"a", "cab"}, {"d", ""}},
      {R"(root ::= "ab" "c" | [a-z] "bd")", {"abc", "abd", "xbd"}, {"abcd", "ab"}},  // no longest match decides
      {R"(root ::= [a-z]* "x")", {"x", "xx", "axbx"}, {"a", "xa"}},
      {R"(root ::= ([a-z] "x" | "a" "y"))", {"ax", "ay", "bx"}, {"by"}},
      {"root ::= item ( \",\" ws item )*\nitem ::= [0-9]{2,3}\nws ::= \" \"?\n",
       {"12", "12,345", "12, 34"},
       {"1", "1234", "12,"}},
      {"root ::= \"(\" root \")\" | \"\"", {"", "()", "((()))"}, {"(", "())"}},
      {"root ::=\n  a-b |\n  B_2\na-b ::= \"one\"\nB_2 ::= \"two\"", {"one", "two"}, {"three"}},
      {R"(root ::= "\"\n\x41\u00e9\U0001F600\\")", {"\"\nAé😀\\"}, {"\"nAé😀\\"}},
      {R"(root ::= [^"\\\x00-\x1f] [\]\-a] .)", {"é]x", "a-\n", "/aé"}, {"\"aa", "\naa", "xbx"}},
      {R"(root ::= ("a" | "b"){3} "c"{2,} "d"{0,1})", {"abacc", "bbbcccd"}, {"abcc", "abac", "abaccdd"}},
  };
  for (const auto& [grammar, taken, refused] : cases) {
    for (const std::string& text : taken) EXPECT_TRUE(Takes(grammar, text)) << grammar << "\n" << text;
    for (const std::string& text : refused) EXPECT_FALSE(Takes(grammar, text)) << grammar << "\n" << text;
  }
}

TEST_F(Gbnf, TakesJson) {
  for (const char* text : {R"({})", R"({"a": [1, -2.5e3, "x\n\u00e9", {"b": null}], "c": true})", "{\n  \"é\": []}"})
    EXPECT_TRUE(Takes(kJson, text)) << text;
  for (const char* text : {"[]", R"({"a"})", R"({"a": 01})", R"({"a": "\x"})"})
    EXPECT_FALSE(Takes(kJson, text)) << text;
}

// By chance over what one allows: both must allow the same at each token.
void ExpectTheSame(GrammarMatcher& one, GrammarMatcher& other, int32_t vocab_size, const std::string& grammar) {
  const size_t words = (static_cast<size_t>(vocab_size) + 31) / 32;
  std::mt19937 dice(11);
  for (int token = 0; token < 40; ++token) {
    std::vector<uint32_t> mask(words), others(words);
    ASSERT_TRUE(one.Mask(absl::MakeSpan(mask)).ok()) << grammar;
    ASSERT_TRUE(other.Mask(absl::MakeSpan(others)).ok()) << grammar;
    ASSERT_EQ(mask, others) << grammar << " at token " << token;
    ASSERT_EQ(one.MayEnd(), other.MayEnd()) << grammar << " at token " << token;
    std::vector<int32_t> allowed;
    for (int32_t id = 1; id < vocab_size; ++id) {  // 0 ends a text
      if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
    }
    if (allowed.empty()) return;
    const int32_t next = allowed[dice() % allowed.size()];
    ASSERT_TRUE(one.Consume({next}).ok() && other.Consume({next}).ok()) << grammar;
  }
}

TEST_F(Gbnf, LongTerminalsAllowWhatCharactersDo) {
  const std::string grammars[] = {kJson,
                                  R"(root ::= [a-z]+ "1" | "ab" "-")",
                                  R"(root ::= ("- " [^\n]+ "\n")+)",
                                  R"g(root ::= "(" (root ("," root)*)? ")" | [0-9]+ ("." [0-9]+)?)g",
                                  "root ::= a b?\na ::= \"x\"* | \"y\" root \"z\"\nb ::= \"w\" \"x\"*",
                                  R"g(root ::= ("\"al" ("pha" | "ps")? "\"" | "[" root* "]") " "?)g",
                                  R"(root ::= "a" root "b" | [ab]{2,3})",
                                  R"(root ::= ("\u00e9" | [^a-z\u00e9] root){2})"};
  for (const std::string& grammar : grammars) {
    auto one = compiler_->Compile(GrammarKind::kLark, grammar);
    auto other = compiler_->Compile(GrammarKind::kLark, grammar + kUntold);
    ASSERT_TRUE(one.ok() && other.ok()) << grammar << one.status() << other.status();
    ExpectTheSame(**one, **other, compiler_->vocab_size(), grammar);
  }
}

// What may be read in many ways is one terminal's automaton of two states; a row of the parser for each character has
// all the places where a run may have begun.
TEST_F(Gbnf, LongTerminalsCostLess) {
  const std::string grammar = "root ::= ([a-z]+ [a-z]+)+";
  const std::vector<int32_t> letters = *tokenizer_->Encode(std::string(1000, 'x'), false);
  const auto after = [&](const std::string& text) {
    auto matcher = compiler_->Compile(GrammarKind::kLark, text);
    return matcher.ok() ? (*matcher)->Consume(letters) : matcher.status();
  };
  EXPECT_EQ(after(grammar), absl::OkStatus());
  EXPECT_THAT(std::string(after(grammar + kUntold).message()), HasSubstr("too costly"));
}

TEST_F(Gbnf, SaysWhatIsWrongAndWhere) {
  const std::pair<const char*, const char*> cases[] = {
      {"root ::= a", "the rule `a` is used and not defined"},
      {"a ::= \"x\"", "there is no rule `root`"},
      {"root ::= \"x\"\nroot ::= \"y\"", "line 2: the rule `root` is defined twice"},
      {"root ::= \"x", "line 1: a literal or class is not closed"},
      {"root ::=\n [a", "line 2: a literal or class is not closed"},
      {"root ::= (\"a\"", "line 1: `)` is expected"},
      {"root ::= \"a\")", "line 1: `)` is not expected"},
      {"root ::= [z-a]", "the range z-a is empty"},
      {"root ::= []", "an empty class"},
      {"root ::= \"\\q\"", "there is no escape \\q"},
      {"root ::= \"\\uD800\"", "is no character"},
      {"root ::= \"\\x4\"", "is no character"},
      {"root ::= * \"a\"", "`*` is not expected"},
      {"root ::= \"a\" |\n@", "line 2: `@` is not expected"},
      {"root ::= root \"a\"", "no text fits it"},
      {"root ::= \"a\"{2,1}", "line 1: {2,1} is no number of times"},
      {"root ::=\n \"a\"{,}", "line 2: {,} is no number of times"},
      {"root ::= \"a\"{x", "`}` is expected"},
      {"root ::= [^\\x00-\\U0010FFFF]", "an empty class"},
  };
  for (const auto& [grammar, why] : cases) EXPECT_THAT(Refusal(grammar), HasSubstr(why)) << grammar;
  EXPECT_THAT(Refusal(StrCat("root ::= ", std::string(100, '('), "\"a\"", std::string(100, ')'))), HasSubstr("deep"));
}

}  // namespace
}  // namespace baton
