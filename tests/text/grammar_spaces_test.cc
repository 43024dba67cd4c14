// White space between the parts of a JSON text, and regular expressions in words.
#include <gmock/gmock.h>

#include <functional>

#include "tests/text/gpt2_grammars.h"
#include "text/grammar_form.h"

namespace baton {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class GrammarSpaces : public Gpt2Grammars {
 protected:
  static bool TakesIn(const std::string& schema, const std::string& text) {
    return Takes(GrammarKind::kJsonSchema, schema, text);
  }
  static std::string Refused(GrammarKind kind, const std::string& text) {
    return std::string(compiler_->Compile(kind, text).status().message());
  }
};

/// Objects in lists, so many within one another.
json Nested(int levels) {
  json value = {{"last", {1, true}}};
  for (int i = 0; i < levels; ++i) value = i % 2 == 0 ? json::array({1, value}) : json{{"a", 1}, {"b", value}};
  return value;
}

TEST_F(GrammarSpaces, JsonThatIsLaidOutAsUsualIsTaken) {
  const json value = Nested(10);
  for (const char* schema : {"true", "{}", R"({"$ref":"#/$defs/a","$defs":{"a":true}})"}) {
    for (const int indent : {-1, 0, 1, 2, 4}) EXPECT_TRUE(TakesIn(schema, value.dump(indent))) << schema << indent;
    EXPECT_TRUE(TakesIn(schema, value.dump(1, '\t'))) << schema;
  }
  const char* any = R"({"type":"object"})";
  for (const char* text : {"{\"a\": [1, 2], \"b\": {}}", "{ \"a\" : 1 , \"b\" : [ ] }", "{\r\n    \"a\": 1\r\n}",
                           "{\n\n  \"a\": 1,\n\n  \"b\": 2\n}", "{\"a\":\t1, \n  \"b\":2}"})
    EXPECT_TRUE(TakesIn(any, text)) << text;
}

TEST_F(GrammarSpaces, WhiteSpaceHasAnEnd) {
  const std::string schema = R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})";
  for (const std::string& space : {std::string("\n\n\n"), std::string(5, ' '), StrCat("\n", std::string(65, ' ')),
                                   StrCat("\n", std::string(65, '\t')), std::string(" \n \n ")}) {
    EXPECT_FALSE(TakesIn(schema, StrCat("{", space, "\"a\":1}"))) << json(space);
    EXPECT_FALSE(TakesIn(schema, StrCat("{\"a\":1", space, "}"))) << json(space);
    EXPECT_FALSE(Takes(GrammarKind::kLark, StrCat("start: \"x\" %json ", schema), StrCat("x{\"a\":", space, "1}")))
        << json(space);
    EXPECT_FALSE(Takes(GrammarKind::kLark, StrCat("start: a\na: %lark {\nstart: %json ", schema, "\n}\n"),
                       StrCat("{\"a\":", space, "1}")))
        << json(space);
    EXPECT_TRUE(TakesIn(R"({"x-guidance":{"whitespace_flexible":true},"type":"object"})", StrCat("{", space, "}")))
        << "who asks for it has as much as there is: " << json(space);
  }
  EXPECT_TRUE(TakesIn(R"({"type":"string"})", json(std::string(200, ' ')).dump())) << "a text is no white space";
}

/// Whether `[1,2]` with `space` between its parts fits where white space is what `pattern` says.
TEST_F(GrammarSpaces, AClientSaysWhatWhiteSpaceThereIs) {
  const auto fits = [](const std::string& pattern, const std::string& space) {
    const json schema = {{"x-guidance", {{"whitespace_pattern", pattern}}}, {"type", "array"}};
    const std::string text = StrCat("[", space, "1", space, ",", space, "2", space, "]");
    const bool taken = TakesIn(schema.dump(), text);
    EXPECT_EQ(Takes(GrammarKind::kLark, StrCat("start: \"x\" %json ", schema.dump()), StrCat("x", text)), taken);
    return taken;
  };
  const std::string lines(300, '\n');
  const std::tuple<const char*, std::vector<std::string>, std::vector<std::string>> cases[] = {
      {"", {""}, {" ", "\n"}},
      {"[ ]?", {"", " "}, {"  ", "\n"}},
      {"[\\n ]*", {"", lines, " \n "}, {"\t"}},
      {R"(\s*)", {"", "\r\n\t ", lines}, {"\f", "\u00a0"}},
      {"( |\n\t?)?", {"", " ", "\n", "\n\t"}, {"\t", "\n "}},
      {"(?: ?\n?\t?){2}", {"", " \n\t \n\t", "\t\n", " \t"}, {"\t\t\t"}},
      {"(( ){0,2}\n){0,2}", {"", "  \n", " \n\n"}, {"  ", "\n\n\n"}},
      {".*|x", {"", "  "}, {"\n", "x"}},
      {"[^x]{0,3}|\n{5}", {"", " \n ", "\n\n\n\n\n"}, {"\n\n\n\n", "y"}}};
  for (const auto& [pattern, taken, refused] : cases) {
    for (const std::string& space : taken) EXPECT_TRUE(fits(pattern, space)) << pattern << json(space);
    for (const std::string& space : refused) EXPECT_FALSE(fits(pattern, space)) << pattern << json(space);
  }
}

TEST_F(GrammarSpaces, APatternThatIsNoneOfWhiteSpaceIsRefusedByName) {
  for (const auto& [pattern, says] : std::vector<std::pair<json, const char*>>{
           {" ", "takes the empty text, too"},
           {"\\s+", "takes the empty text, too"},
           {"x", "takes the empty text, too"},
           {"[ ", "it cannot be read: unclosed character class"},
           {"^ ?$", "boundaries and ends of lines are not supported"},
           {std::string(300, '?'), "has at most 256 bytes, not 300"},
           {std::string(100, '(') + std::string(100, ')'), "it cannot be read: exceed the maximum number of nested"},
           {7, "is a text, not 7"}}) {
    const json schema = {{"x-guidance", {{"whitespace_pattern", pattern}}}, {"type", "array"}};
    EXPECT_THAT(Refused(GrammarKind::kJsonSchema, schema.dump()), HasSubstr("#/x-guidance/whitespace_pattern"));
    EXPECT_THAT(Refused(GrammarKind::kJsonSchema, schema.dump()), HasSubstr(says)) << pattern;
    if (pattern.is_string()) {
      EXPECT_THAT(std::string(CheckJsonSpace(pattern.get<std::string>()).message()), HasSubstr(says));
    }
  }
}

TEST_F(GrammarSpaces, WhatLooksLikeASchemaInALiteralIsNone) {
  const char* lark =
      "start: A \" %json {\\\"type\\\":\\\"null\\\"}\" // %json {\"multipleOf\": 1000003}\nA: /%json \\{\\}/";
  EXPECT_TRUE(Takes(GrammarKind::kLark, lark, "%json {} %json {\"type\":\"null\"}"));
}

TEST_F(GrammarSpaces, WhatARegularExpressionCannotHaveIsNamedWithItsPlace) {
  const std::pair<const char*, const char*> cases[] = {
      {R"(^a\bc)", "a boundary of words is not supported: `\\b` at character 3"},
      {R"(é(x|\B))", "a boundary of words is not supported: `\\B` at character 5"},
      {"a$b", "the end of the text (`$`) before something else is not supported: `$` at character 2"},
      {"ab(c^d)", "the beginning of the text (`^`) behind something else is not supported: `^` at character 5"},
      {"ab(?=c)", "look-around, including look-ahead and look-behind, is not supported: `(?=` at character 3"},
      {R"((a)\1)", "backreferences are not supported: `\\1` at character 4"},
      {"a(b", "unclosed group: `(` at character 2"},
      {R"(x\p{Nothing})", "Unicode property not found: `\\p{Nothing}` at character 2"}};
  for (const auto& [regex, says] : cases) {
    EXPECT_EQ(Refused(GrammarKind::kRegex, regex), StrCat("it cannot be read: ", says)) << regex;
    const json schema = {{"properties", {{"a", {{"type", "string"}, {"pattern", regex}}}}}};
    EXPECT_EQ(Refused(GrammarKind::kJsonSchema, schema.dump()),
              StrCat("the schema's #/properties/a: its pattern cannot be read: ", says));
  }
  EXPECT_THAT(Refused(GrammarKind::kLark, "start: /a/\n  | /\\bx/"),
              HasSubstr("a boundary of words is not supported: /"));
}

TEST_F(GrammarSpaces, AGroupMayHaveAnyName) {
  EXPECT_TRUE(Takes(GrammarKind::kRegex, "(?P<start>[0-9]{2})-(?P<stop>[0-9]{2})", "10-20"));
  EXPECT_FALSE(Takes(GrammarKind::kRegex, "(?P<start>[0-9]{2})-(?<stop>[0-9]{2})", "10-"));
  EXPECT_TRUE(TakesIn(R"({"type":"string","pattern":"^(?<stop>a|(?<stop2>b))c$"})", "\"bc\""));
}

TEST_F(GrammarSpaces, OfValuesThatAreGivenThoseStayThatThePatternFits) {
  json values = json::array({1, nullptr, "", "слово"});
  for (int i = 0; i < 10'000; ++i) values.push_back(StrCat("значение номер ", i));
  const json schema = {{"enum", values}, {"pattern", "^значение номер [0-9]*7$"}};
  EXPECT_TRUE(TakesIn(schema.dump(), json("значение номер 4717").dump()));
  EXPECT_FALSE(TakesIn(schema.dump(), json("значение номер 4711").dump()));
  EXPECT_FALSE(TakesIn(schema.dump(), json("слово").dump()));
  EXPECT_TRUE(TakesIn(schema.dump(), "1")) << "a pattern is of texts alone";
  EXPECT_TRUE(TakesIn(schema.dump(), "null"));
  const char* dot = R"({"enum":["a\nb","axb","b"],"pattern":"a.b"})";
  EXPECT_TRUE(TakesIn(dot, R"("axb")"));
  EXPECT_FALSE(TakesIn(dot, R"("a\nb")")) << "a dot is no end of a line";
  EXPECT_TRUE(TakesIn(R"({"enum":["ab","xaby"],"pattern":"ab","minLength":3})", "\"xaby\""));
  EXPECT_FALSE(TakesIn(R"({"enum":["ab","xaby"],"pattern":"ab","minLength":3})", "\"ab\""));
  EXPECT_THAT(Refused(GrammarKind::kJsonSchema, R"({"enum":["a","b"],"pattern":"^c$"})"),
              HasSubstr("#: Unsatisfiable schema: no text fits its enum and pattern together"));
}

TEST_F(GrammarSpaces, OfTenThousandValuesThoseStayThatAreOfTheFormat) {
  const std::tuple<const char*, std::function<std::string(int)>, const char*> cases[] = {
      {"ipv4", [](int i) { return StrCat("10.", i / 250, ".", i % 250, ".1"); }, "10.1.256.1"},
      {"ipv6", [](int i) { return StrCat("fe80::", absl::Hex(i + 1)); }, "fe80::12345"},
      {"uri", [](int i) { return StrCat("https://example.org/", i, "?q=%20"); }, "https://example.org/a b"},
      {"hostname", [](int i) { return StrCat("host-", i, ".example.org"); }, "-host.example.org"},
      {"email", [](int i) { return StrCat("a.b+", i, "@example.org"); }, "a@b@c"},
      {"uuid", [](int i) { return StrCat("00000000-0000-4000-8000-00000000", absl::Dec(i, absl::kZeroPad4)); }, "0-0"},
      {"duration", [](int i) { return StrCat("P", i + 1, "D"); }, "1D"}};
  for (const auto& [format, value, none] : cases) {
    json values = json::array({none, 7, "a \"quoted\"\n", ""});
    for (int i = 0; i < 10'000; ++i) values.push_back(value(i));
    const std::string schema = json{{"enum", values}, {"format", format}}.dump();
    EXPECT_TRUE(TakesIn(schema, json(value(9'999)).dump())) << format;
    EXPECT_TRUE(TakesIn(schema, "7")) << "a format is of texts alone: " << format;
    for (const char* text : {none, "a \"quoted\"\n", ""}) EXPECT_FALSE(TakesIn(schema, json(text).dump())) << format;
    json others = json::array();
    for (int i = 0; i < 10'000; ++i) others.push_back(StrCat(none, " ", i));
    EXPECT_THAT(Refused(GrammarKind::kJsonSchema, json{{"enum", others}, {"format", format}}.dump()),
                HasSubstr("no text fits its enum and format together"));
  }
  EXPECT_THAT(Refused(GrammarKind::kJsonSchema, R"({"enum":["a"],"format":"nothing"})"), HasSubstr("#/format"));
}

}  // namespace
}  // namespace baton
