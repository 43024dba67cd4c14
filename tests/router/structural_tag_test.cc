// Structural tags of vLLM's newer form: the texts that each format takes, and what is refused by its place.
#include <gtest/gtest.h>

#include "parsed_request.h"
#include "tests/text/gpt2_grammars.h"

namespace baton::router {
namespace {

std::string Field(const std::string& format) {
  return StrCat(R"("response_format":{"type":"structural_tag","format":)", format, "}");
}

class StructuralTag : public Gpt2Grammars {
 protected:
  static bool Takes(const std::string& format, const std::string& text) {
    const auto grammar = Chat(With(Field(format))).input.sampling.grammar;
    return grammar && Gpt2Grammars::Takes(grammar->kind, grammar->text, text);
  }
  /// The same of an answer's tokens, where the format names some.
  static bool TakesTokens(const std::string& format, const std::vector<int32_t>& answer) {
    RequestInput input = Chat(With(Field(format))).input;
    const auto error = WriteTokenRules(input.token_rules, *tokenizer_, input.sampling.grammar);
    EXPECT_FALSE(error) << error->message;
    auto matcher = compiler_->Compile(input.sampling.grammar->kind, input.sampling.grammar->text);
    EXPECT_TRUE(matcher.ok()) << input.sampling.grammar->text << matcher.status();
    return matcher.ok() && (*matcher)->Consume(answer).ok() && (*matcher)->MayEnd();
  }
  static int32_t Token(const std::string& text) {
    const auto ids = *tokenizer_->Encode(text, false);
    EXPECT_EQ(ids.size(), 1U) << text;
    return ids[0];
  }
};

struct Case {
  std::string format;
  std::vector<std::string> taken, refused;
};

const std::string kOneTag =
    R"({"begin":"<f=a>","content":{"type":"json_schema","json_schema":{"enum":[1]}},"end":"</f>"})";
const std::string kTwoTags = StrCat(
    "[", kOneTag, R"(,{"type":"tag","begin":"<f=b>","content":{"type":"regex","pattern":"[a-z]+"},"end":"/f"}])");

std::string Triggered(const std::string& more) {
  return StrCat(R"({"type":"triggered_tags","triggers":["<f"],"tags":)", kTwoTags, more, "}");
}

TEST_F(StructuralTag, EveryFormatTakesTheTextsOfItsLanguage) {
  const std::string word = R"({"type":"regex","pattern":"[a-z]+"})", x = R"({"type":"const_string","value":"x\"\n"})";
  const std::string number = R"({"type":"json_schema","json_schema":{"enum":[1,22]}})";
  const std::string think = R"({"type":"tag","begin":"<t>","content":{"type":"any_text"},"end":"</t>"})";
  const Case cases[] = {
      {x, {"x\"\n"}, {"", "x", "x\"\n "}},
      {R"({"type":"regex","pattern":"a/b|\\/+\\d"})", {"a/b", "//7"}, {"a", "7", "a/b/7"}},
      {number, {"1", "22"}, {"2", "a"}},
      {R"({"type":"json_schema","json_schema":true,"style":"json","any_order":false})", {"[1]", "{}"}, {"x"}},
      {R"({"type":"any_text"})", {"", "a\nb"}, {}},
      {R"({"type":"any_text","excludes":["no","</"]})", {"", "n", "<b>"}, {"no", "a</b>", "piano"}},
      {StrCat(R"({"type":"sequence","elements":[)", word, R"(,{"type":"const_string","value":"end"}]})"),
       {"aend", "endend"},
       {"end", "enden"}},
      {StrCat(R"({"type":"sequence","elements":[)", think, ",", number, ",", word, "]}"),
       {"<t>a<t></t>1a", "<t></t>22bb"},
       {"<t></t>a", "1a", "<t></t></t>1a"}},
      {StrCat(R"({"type":"or","elements":[)", word, ",", number, ",", think, "]}"),
       {"ab", "22", "<t>1</t>"},
       {"ab1", "<t>"}},
      {StrCat(R"({"type":"sequence","elements":[{"type":"optional","content":)", word, "},", number, "]}"),
       {"1", "aa22"},
       {"a", "11"}},
      {StrCat(R"({"type":"plus","content":)", number, "}"), {"1", "122"}, {"", "a"}},
      {StrCat(R"({"type":"star","content":)", word, "}"), {"", "ab"}, {"1"}},
      {StrCat(R"({"type":"repeat","min":2,"max":3,"content":)", number, "}"), {"11", "1221"}, {"1", "1111"}},
      {R"({"type":"repeat","min":0,"max":-1,"content":{"type":"const_string","value":"ab"}})", {"", "ababab"}, {"aba"}},
      {R"({"type":"tag","begin":"<a>","content":{"type":"any_text","excludes":["<a>"]},"end":["</a>","</b>"]})",
       {"<a></a>", "<a>x</b>", "<a>aaa</a>"},
       {"<a>x", "<a></a></a>", "<a><a></b>", "x"}},
      {R"({"type":"tag","begin":"<a>","content":{"type":"any_text"},"end":""})", {"<a>", "<a>x"}, {"<b>"}},
      {StrCat(R"({"type":"tag","begin":"","content":{"type":"sequence","elements":[)", word,
              R"(,{"type":"any_text"}]},"end":"aa"})"),
       {"b1aa", "baa aa"},
       {"aab aa1"}},
      {Triggered(""),
       {"", "free < text", "<f=a>1</f>", "to<f=a>1</f> and <f=b>x/f.", "<f=b>f/f<f=b>f/f"},
       {"<f", "a<f=a>2</f>", "<f=c>", "<f=b>1/f"}},
      {Triggered(R"(,"at_least_one":true)"), {"<f=a>1</f>", "<f=b>a/f and <f=a>1</f>"}, {"", "a", "a<f=a>1</f>"}},
      {Triggered(R"(,"stop_after_first":true)"), {"", "a", "a<f=a>1</f>"}, {"<f=a>1</f>a"}},
      {Triggered(R"(,"stop_after_first":true,"at_least_one":true)"),
       {"<f=a>1</f>", "<f=b>a/f"},
       {"", "<f=a>1</f>a", "a<f=a>1</f>"}},
      {Triggered(R"(,"excludes":["bad"])"),
       {"", "ba", "ba<f=a>1</f>d", "<f=b>bad/f"},
       {"bad", "a bad<f=a>1</f>", "<f=a>1</f>bad"}},
      {StrCat(R"({"type":"tag","begin":"[","content":)", Triggered(""), R"(,"end":"]"})"),
       {"[]", "[a<f=a>1</f>b]", "[a<f=b>x/f]"},
       {"[", "[<f=a>1</f>", "[]]", "[a]<f=a>1</f>"}},
      {StrCat(R"({"type":"tag","begin":"[","content":)", Triggered(R"(,"stop_after_first":true)"), R"(,"end":"]"})"),
       {"[a]", "[a<f=a>1</f>]"},
       {"[<f=a>1</f>b]"}},
      {StrCat(R"({"type":"tags_with_separator","separator":", ","tags":)", kTwoTags, "}"),
       {"", "<f=a>1</f>", "<f=a>1</f>, <f=b>ab/f, <f=b>c/f"},
       {"<f=a>1</f>, ", " ", "<f=a>1</f><f=a>1</f>"}},
      {StrCat(R"({"type":"tags_with_separator","separator":"","at_least_one":true,"tags":)", kTwoTags, "}"),
       {"<f=a>1</f><f=a>1</f>"},
       {""}},
      {StrCat(R"({"type":"tags_with_separator","separator":",","stop_after_first":true,"tags":)", kTwoTags, "}"),
       {"", "<f=b>a/f"},
       {"<f=b>a/f,<f=b>a/f"}},
  };
  for (const auto& [format, taken, refused] : cases) {
    for (const std::string& text : taken) EXPECT_TRUE(Takes(format, text)) << format << "\n" << text;
    for (const std::string& text : refused) EXPECT_FALSE(Takes(format, text)) << format << "\n" << text;
  }
}

TEST_F(StructuralTag, TextOfSoManyCharactersAtMost) {
  const Case cases[] = {
      {R"({"type":"any_text","max_chars":3})", {"", "a\u00e9<"}, {"abcd"}},
      {R"({"type":"any_text","max_chars":3,"excludes":["b"]})", {"aaa"}, {"aaaa", "ab"}},
      {R"({"type":"tag","begin":"<a>","content":{"type":"any_text","max_chars":3},"end":"</a>"})",
       {"<a></a>", "<a>abc</a>", "<a></</a>"},
       {"<a>abcd</a>", "<a>a</a>b"}},
  };
  for (const auto& [format, taken, refused] : cases) {
    for (const std::string& text : taken) EXPECT_TRUE(Takes(format, text)) << format << "\n" << text;
    for (const std::string& text : refused) EXPECT_FALSE(Takes(format, text)) << format << "\n" << text;
  }
}

TEST_F(StructuralTag, TriggersWithinTheEndOfTheTagAroundThemAndGrammars) {
  const Case cases[] = {
      {StrCat(R"({"type":"tag","begin":"[","content":)", Triggered(""), R"(,"end":["<fin>","a<f]","<f"]})"),
       {"[<fin>", "[<f=a>1</f> <fin>", "[x a<f]", "[<f", "[<f=b>x/f<f"},
       {"[", "[<f]", "[a<fin", "[<f=a>1</f>", "[<f=c>"}},
      {R"({"type":"grammar","grammar":"root ::= pair (\",\" pair)*\npair ::= [a-z]+ \"=\" [0-9]+"})",
       {"a=1", "ab=12,c=3"},
       {"a", "a=1,", "A=1"}},
      {StrCat(
           R"({"type":"sequence","elements":[{"type":"grammar","grammar":"start: A rule_1?\nA: \"{\"\nrule_1: /[x}]/"},)",
           R"({"type":"tag","begin":"<","content":{"type":"grammar","grammar":"root ::= [ab]*"},"end":">"}]})"),
       {"{<>", "{x<ab>", "{}<b>"},
       {"x<>", "{<c>", "{x"}},
  };
  for (const auto& [format, taken, refused] : cases) {
    for (const std::string& text : taken) EXPECT_TRUE(Takes(format, text)) << format << "\n" << text;
    for (const std::string& text : refused) EXPECT_FALSE(Takes(format, text)) << format << "\n" << text;
  }
}

TEST_F(StructuralTag, ParametersAsQwenWritesThemHaveTextsAsTheyAre) {
  const std::string call =
      R"({"type":"tag","begin":"<function=f>","content":{"type":"qwen_xml_parameter","json_schema":{
    "type":"object","required":["name","age"],"$defs":{"Age":{"type":"integer","minimum":0}},"properties":{
      "name":{"type":"string","description":"who"},"kind":{"enum":["a","b<"]},"note":{"type":"string","maxLength":3},
      "age":{"$ref":"#/$defs/Age"},"tags":{"type":"array","items":{"enum":["x"]}},"maybe":{"anyOf":[{"type":"string"},{"type":"null"}]}
    }}},"end":"</function>"})";
  const auto fits = [&](const std::string& inside) {
    return Takes(call, StrCat("<function=f>", inside, "</function>"));
  };
  EXPECT_TRUE(fits("<parameter=name>Bob</parameter><parameter=age>100</parameter>"));
  EXPECT_TRUE(fits("\n<parameter=name>\nBob <\"b\">\n</parameter>\n<parameter=age>\n7\n</parameter>\n"));
  EXPECT_TRUE(
      fits("<parameter=name></parameter><parameter=kind>b<</parameter><parameter=note>abc</parameter><parameter=age>1</"
           "parameter><parameter=tags>[\"x\"]</parameter><parameter=maybe>null or so</parameter>"));
  EXPECT_FALSE(fits("<parameter=name>Bob</parameter>")) << "an age must be there";
  EXPECT_FALSE(fits("<parameter=age>1</parameter><parameter=name>Bob</parameter>")) << "the schema's order";
  EXPECT_FALSE(fits("<parameter=name>Bob</parameter><parameter=age>-1</parameter>"));
  EXPECT_FALSE(fits("<parameter=name>Bob</parameter><parameter=age>x</parameter>"));
  EXPECT_FALSE(fits("<parameter=name>Bob</parameter><parameter=kind>c</parameter><parameter=age>1</parameter>"));
  EXPECT_FALSE(fits("<parameter=name>Bob</parameter><parameter=note>abcd</parameter><parameter=age>1</parameter>"));
  EXPECT_FALSE(fits("<parameter=name>Bob</parameter><parameter=age>1</parameter><parameter=more>1</parameter>"));
  EXPECT_TRUE(Takes(R"({"type":"qwen_xml_parameter","json_schema":{"properties":{}}})", "")) << "no parameters";
}

TEST_F(StructuralTag, TokensAreToldByTheirIdsOrTheirTexts) {
  const int32_t a = Token("a"), b = Token("b"), in = Token("in"), one = Token("1");
  const std::string begin = StrCat(R"({"type":"token","token":)", a, "}"), end = R"({"type":"token","token":"b"})";
  const auto tag = [&](const std::string& content) {
    return StrCat(R"({"type":"tag","begin":)", begin, R"(,"content":)", content, R"(,"end":)", end, "}");
  };
  EXPECT_TRUE(TakesTokens(begin, {a}));
  EXPECT_FALSE(TakesTokens(begin, {b}));
  const std::string spelled =
      R"({"type":"sequence","elements":[{"type":"token","token":"i"},{"type":"token","token":"n"}]})";
  EXPECT_TRUE(TakesTokens(spelled, {Token("i"), Token("n")}));
  EXPECT_FALSE(TakesTokens(spelled, {in})) << "a text of the same letters is another token";
  const std::string other = StrCat(R"({"type":"exclude_token","exclude_tokens":["in",)", one, "]}");
  EXPECT_TRUE(TakesTokens(other, {b}));
  for (const std::vector<int32_t>& answer : std::vector<std::vector<int32_t>>{{in}, {one}, {}, {a, b}})
    EXPECT_FALSE(TakesTokens(other, answer));
  EXPECT_TRUE(TakesTokens(StrCat(R"({"type":"sequence","elements":[)", other, R"(,{"type":"regex","pattern":"1+"}]})"),
                          {b, one, one}));
  const std::string some = R"({"type":"any_tokens","exclude_tokens":["1"],"max_tokens":2})";
  EXPECT_TRUE(TakesTokens(some, {}));
  EXPECT_TRUE(TakesTokens(some, {in, b}));
  EXPECT_FALSE(TakesTokens(some, {in, b, a})) << "two at most";
  EXPECT_FALSE(TakesTokens(some, {one}));
  EXPECT_TRUE(TakesTokens(tag(some), {a, a, in, b}));
  EXPECT_FALSE(TakesTokens(tag(some), {a, b, b})) << "its end is none of them";
  EXPECT_TRUE(TakesTokens(tag(R"({"type":"any_tokens"})"), {a, in, one, in, a, b}));
  EXPECT_FALSE(TakesTokens(tag(R"({"type":"any_tokens"})"), {a, in}));
  EXPECT_TRUE(TakesTokens(tag(R"({"type":"any_tokens","max_tokens":0})"), {a, b}));
  EXPECT_FALSE(TakesTokens(tag(R"({"type":"any_tokens","max_tokens":0})"), {a, in, b}));
  EXPECT_TRUE(TakesTokens(tag(R"({"type":"json_schema","json_schema":{"enum":[1]}})"), {a, one, b}));
  EXPECT_FALSE(TakesTokens(tag(R"({"type":"json_schema","json_schema":{"enum":[1]}})"), {a, b}));
}

TEST_F(StructuralTag, TagsThatATokenBegins) {
  const int32_t a = Token("a"), b = Token("b"), in = Token("in"), one = Token("1"), x = Token("x");
  const auto triggered = [](const std::string& more) {
    return StrCat(
        R"({"type":"token_triggered_tags","trigger_tokens":["a"],"exclude_tokens":["x"],"tags":[{"type":"tag",)",
        R"("begin":{"type":"token","token":"a"},"content":{"type":"regex","pattern":"1+"},"end":{"type":"token","token":"b"}}])",
        more, "}");
  };
  using Answers = std::vector<std::vector<int32_t>>;
  for (const auto& answer : Answers{{}, {in}, {b, in}, {a, one, b}, {in, a, one, one, b, one, a, one, b, b}})
    EXPECT_TRUE(TakesTokens(triggered(""), answer));
  for (const auto& answer : Answers{{x}, {a}, {a, b}, {a, one, b, x}, {a, a, one, b}})
    EXPECT_FALSE(TakesTokens(triggered(""), answer));
  const std::string first = R"(,"stop_after_first":true)", must = R"(,"at_least_one":true)";
  EXPECT_TRUE(TakesTokens(triggered(first), {in, a, one, b}));
  EXPECT_FALSE(TakesTokens(triggered(first), {in, a, one, b, in}));
  EXPECT_TRUE(TakesTokens(triggered(must), {a, one, b, in}));
  EXPECT_FALSE(TakesTokens(triggered(must), {in, a, one, b}));
  EXPECT_FALSE(TakesTokens(triggered(must), {}));
  EXPECT_TRUE(TakesTokens(triggered(must + first), {a, one, b}));
  EXPECT_FALSE(TakesTokens(triggered(must + first), {a, one, b, b}));
}

TEST_F(StructuralTag, ATokenThatThereIsNotIsNamedByItsPlace) {
  const std::string path = "response_format.format";
  const std::tuple<std::string, std::string, std::string> cases[] = {
      {R"({"type":"token","token":99999999})", path + ".token", "99999999"},
      {R"({"type":"token","token":-1})", path + ".token", "-1"},
      {R"({"type":"token","token":"<no such token>"})", path + ".token", "<no such token>"},
      {StrCat(R"({"type":"token","token":)", tokenizer_->eos_ids().at(0), "}"), path + ".token", "ends a text"},
      {R"({"type":"any_tokens","exclude_tokens":["a","<none>"]})", path + ".exclude_tokens[1]", "<none>"},
      {R"({"type":"tag","begin":"a","end":{"type":"token","token":"<none>"},"content":{"type":"any_tokens"}})",
       path + ".end.token", "<none>"},
  };
  for (const auto& [format, param, word] : cases) {
    RequestInput input = Chat(With(Field(format))).input;
    const auto error = WriteTokenRules(input.token_rules, *tokenizer_, input.sampling.grammar);
    ASSERT_TRUE(error) << format;
    EXPECT_EQ(error->http_status, 400);
    EXPECT_EQ(error->param, param) << error->message;
    EXPECT_NE(error->message.find(word), std::string::npos) << error->message;
  }
}

// As xgrammar has it: as many properties as must be there, of those that may be.
TEST_F(StructuralTag, PropertiesInAnyOrder) {
  const std::string format = R"({"type":"json_schema","any_order":true,"json_schema":{
    "type":"object","additionalProperties":false,"required":["name","a.b"],"maxProperties":3,"properties":{
      "name":{"enum":["x"]},"a.b":{"type":"boolean"},
      "in":{"type":"object","additionalProperties":false,"properties":{"p":{"enum":[1]},"q":{"enum":[2]}}}}}})";
  for (const char* text :
       {R"({"name":"x","a.b":true})", R"({"a.b":false,"name":"x"})", R"({"in":{"q":2,"p":1},"a.b":true,"name":"x"})",
        R"({"name":"x","name":"x"})", R"({"in":{},"name":"x"})"})
    EXPECT_TRUE(Takes(format, text)) << text;
  for (const char* text :
       {R"({})", R"({"name":"x"})", R"({"name":true,"a.b":true})", R"({"name":"x","acb":true})",
        R"({"name":"x","other":1})", R"({"in":{"r":1},"name":"x"})", R"({"name":"x","a.b":true,"in":{},"name":"x"})"})
    EXPECT_FALSE(Takes(format, text)) << text;
  EXPECT_TRUE(Takes(R"({"type":"json_schema","any_order":true,"json_schema":{"$defs":{"o":{"type":"object",
    "additionalProperties":false,"properties":{"a":{"enum":[1]},"b":{"enum":[2]}}}},"type":"array","items":{"$ref":"#/$defs/o"}}})",
                    R"([{"b":2,"a":1},{"a":1,"b":2}])"));
}

TEST_F(StructuralTag, TagsInTagsAreServedAsDeepAsABodyMayBe) {
  std::string format = R"({"type":"json_schema","json_schema":{"enum":[1]}})", text = "1";
  for (int i = 0; i < 50; ++i) {
    format = StrCat(R"({"type":"tag","begin":"[","content":)", format, R"(,"end":"]"})");
    text = StrCat("[", text, "]");
  }
  EXPECT_TRUE(Takes(format, text));
  EXPECT_FALSE(Takes(format, text.substr(1)));
}

// A path is made of each member: with names as long as bodies, of many, nothing else would be done.
TEST_F(StructuralTag, APathHasOnlyTheBeginningOfALongName) {
  const std::string name(100'000, 'n');
  const ApiError error =
      ChatError(With(Field(StrCat(R"({"type":"json_schema","any_order":true,"json_schema":{"properties":{")", name,
                                  R"(":{"properties":{"a":{"properties":{},"patternProperties":{}}}}}}})"))));
  EXPECT_NE(error.message.find("(100000 bytes).properties.a.patternProperties"), std::string::npos) << error.message;
  EXPECT_LT(error.message.size(), 1000u);
}

TEST_F(StructuralTag, WhatIsRefusedIsNamedByItsPlace) {
  const std::string any = R"({"type":"any_text"})", path = "response_format.format";
  const std::tuple<std::string, std::string, std::string> cases[] = {
      {"1", path, "object"},
      {"{}", path + ".type", "string"},
      {R"({"type":"xml"})", path + ".type", "\"xml\""},
      {R"({"type":"qwen_xml_parameter","json_schema":true})", path + ".json_schema", "object"},
      {R"({"type":"qwen_xml_parameter","json_schema":{"anyOf":[]}})", path + ".json_schema.anyOf", "keyword"},
      {R"({"type":"qwen_xml_parameter","json_schema":{"required":["a"]}})", path + ".json_schema.required", "names"},
      {R"({"type":"qwen_xml_parameter","json_schema":{"properties":{"a":{"type":"string","pattern":"x"}}}})",
       path + ".json_schema.properties.a.pattern", "keyword"},
      {R"({"type":"qwen_xml_parameter","json_schema":{"properties":{"a":{"items":{"$ref":"#"}}}}})",
       path + ".json_schema.properties.a", "reference #"},
      {R"({"type":"grammar"})", path + ".grammar", "string"},
      {R"({"type":"grammar","grammar":"root ::= x"})", path + ".grammar", "`x` is used and not defined"},
      {R"({"type":"grammar","grammar":"%ignore / /\nstart: \"a\""})", path + ".grammar", "%ignore"},
      {R"({"type":"const_string"})", path + ".value", "string"},
      {R"({"type":"regex","pattern":1})", path + ".pattern", "string"},
      {R"({"type":"json_schema"})", path + ".json_schema", "JSON Schema"},
      {R"({"type":"json_schema","json_schema":false})", path + ".json_schema", "false"},
      {R"({"type":"json_schema","json_schema":{},"style":"glm_xml"})", path + ".style", "glm_xml"},
      {R"({"type":"json_schema","json_schema":{"items":{"properties":{"a":true},"patternProperties":{"b":true}}},"any_order":true})",
       path + ".json_schema.items.patternProperties", "any order"},
      {R"({"type":"any_text","max_tokens":3})", path + ".max_tokens", "max_tokens"},
      {R"({"type":"any_text","max_chars":10001})", path + ".max_chars", "from 0 to 10000"},
      {R"({"type":"any_text","excludes":"a"})", path + ".excludes", "array"},
      {R"({"type":"or","elements":[]})", path + ".elements", "array"},
      {StrCat(R"({"type":"sequence","elements":[)", any, ",", any, "]}"), path + ".elements[0]", "last"},
      {StrCat(R"({"type":"star","content":)", any, "}"), path + ".content", "last"},
      {R"({"type":"repeat","min":2,"max":1,"content":{"type":"const_string","value":"a"}})", path + ".max", "min"},
      {R"({"type":"repeat","min":-1,"max":1,"content":{}})", path + ".min", "10000"},
      {R"({"type":"tag","begin":"a","end":"b"})", path + ".content", "format"},
      {StrCat(R"({"type":"tag","begin":"a","end":[],"content":)", any, "}"), path + ".end", "array"},
      {StrCat(R"({"type":"tag","begin":{"type":"tokens","token":1},"end":"","content":)", any, "}"), path + ".begin",
       "token"},
      {R"({"type":"token"})", path + ".token", "id"},
      {R"({"type":"token","token":[1]})", path + ".token", "id"},
      {R"({"type":"exclude_token","exclude_tokens":[1,1.5]})", path + ".exclude_tokens[1]", "id"},
      {R"({"type":"any_tokens","max_tokens":-1})", path + ".max_tokens", "at least 0"},
      {R"({"type":"star","content":{"type":"any_tokens"}})", path + ".content", "last"},
      {R"({"type":"tag","begin":"a","end":"b","content":{"type":"any_tokens"}})", path + ".content", "a token ends"},
      {StrCat(R"({"type":"tag","begin":"a","end":{"type":"token","token":1},"content":)", any, "}"), path + ".content",
       "last"},
      {StrCat(R"({"type":"token_triggered_tags","trigger_tokens":[1],"tags":)", kTwoTags, "}"), path + ".tags[0].begin",
       "token"},
      {R"({"type":"token_triggered_tags","tags":[]})", path + ".trigger_tokens", "array"},
      {R"({"type":"triggered_tags","triggers":["x"],"tags":[{"begin":{"type":"token","token":1},"content":{"type":"any_text"},"end":"x"}]})",
       path + ".tags[0].begin", "string"},
      {R"({"type":"dispatch","rules":[]})", path + ".type", "dispatch"},
      {R"({"type":"triggered_tags","triggers":["x"],"tags":[]})", path + ".tags", "array"},
      {StrCat(R"({"type":"triggered_tags","triggers":[],"tags":)", kTwoTags, "}"), path + ".triggers", "array"},
      {StrCat(R"({"type":"triggered_tags","triggers":["<g"],"tags":)", kTwoTags, "}"), path + ".triggers[0]", "<g"},
      {StrCat(R"({"type":"triggered_tags","triggers":["<f=b"],"tags":)", kTwoTags, "}"), path, "<f=a>"},
      {StrCat(R"({"type":"triggered_tags","triggers":["<f","y"],"tags":)", kTwoTags, "}"), path + ".triggers[1]", "y"},
      {StrCat(R"({"type":"tags_with_separator","tags":)", kTwoTags, "}"), path + ".separator", "string"},
      {StrCat(R"({"type":"sequence","elements":[{"type":"or","elements":[{"type":"token_dispatch","rules":[]}]},)", any,
              "]}"),
       path + ".elements[0].elements[0].type", "token_dispatch"},
  };
  for (const auto& [format, param, word] : cases) {
    const ApiError error = ChatError(With(Field(format)));
    EXPECT_EQ(error.http_status, 400) << format;
    EXPECT_EQ(error.param, param) << format << "\n" << error.message;
    EXPECT_NE(error.message.find(word), std::string::npos) << format << "\n" << error.message;
  }
}

TEST(StructuralTags, AGrammarGrowsAsItsFormatDoes) {
  std::string triggers, tags;
  for (int i = 100; i < 300; ++i) {
    absl::StrAppend(&triggers, i > 100 ? "," : "", "\"", i, "\"");
    absl::StrAppend(&tags, i > 100 ? "," : "", R"({"begin":")", i, R"(","content":{"type":"any_text"},"end":"x"})");
  }
  const std::string format = StrCat(R"({"type":"triggered_tags","triggers":[)", triggers, R"(],"tags":[)", tags,
                                    R"(],"excludes":[")", std::string(20000, 'e'), R"("]})");
  const auto grammar = Chat(With(Field(format))).input.sampling.grammar;
  ASSERT_TRUE(grammar);
  EXPECT_LT(grammar->text.size(), 3 * format.size());
}

}  // namespace
}  // namespace baton::router
