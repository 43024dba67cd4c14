// Grammars that become far larger in the compiler than they are, or lead so deep that it would leave its thread's
// stack: each is refused in words before it is compiled, and what applications ask for is not.
#include <gmock/gmock.h>

#include <functional>

#include "tests/text/gpt2_grammars.h"

namespace baton {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class GrammarSizes : public Gpt2Grammars {
 protected:
  static std::string Refused(GrammarKind kind, const std::string& text) {
    const auto compiled = compiler_->Compile(kind, text);
    if (compiled.ok()) return "";
    EXPECT_EQ(compiled.status().code(), absl::StatusCode::kInvalidArgument) << compiled.status();
    return std::string(compiled.status().message());
  }
  static std::string RefusedSchema(const json& schema) { return Refused(GrammarKind::kJsonSchema, schema.dump()); }
};

/// As many definitions, each made of the one before.
template <class Of>
json Definitions(int count, const Of& of) {
  json all = {{"d0", {{"type", "object"}, {"properties", {{"a", {{"type", "integer"}}}}}}}};
  for (int i = 1; i < count; ++i) all[StrCat("d", i)] = of(StrCat("#/$defs/d", i - 1));
  return {{"$defs", all}, {"$ref", StrCat("#/$defs/d", count - 1)}};
}

json ObjectOf(const json& a, const json& b) { return {{"type", "object"}, {"properties", {{"a", a}, {"b", b}}}}; }

// 2.4 KB of these took 8 s and 1.2 GB, and twice as many more than there is.
TEST_F(GrammarSizes, DefinitionsThatDoubleAreRefused) {
  const auto doubled = [](const std::string& before) {
    const json one = {{"$ref", before}, {"minProperties", 0}};
    return ObjectOf(one, one);
  };
  const auto plain = [](const std::string& before) { return ObjectOf({{"$ref", before}}, {{"$ref", before}}); };
  EXPECT_EQ(RefusedSchema(Definitions(6, doubled)), "");
  for (const int count : {14, 40, 200})
    EXPECT_THAT(RefusedSchema(Definitions(count, doubled)), HasSubstr("too large where its parts are put together"));
  EXPECT_EQ(RefusedSchema(Definitions(40, plain)), "") << "a reference alone is no copy";
}

json Choice(int of, int number) {
  json options = json::array();
  for (int i = 0; i < of; ++i) options.push_back(ObjectOf({{"const", i}}, {{"const", number}}));
  return {{"anyOf", options}};
}

TEST_F(GrammarSizes, ChoicesThatMultiplyAreRefused) {
  json all = json::array();
  for (int i = 0; i < 2; ++i) all.push_back(Choice(8, i));
  EXPECT_EQ(RefusedSchema({{"allOf", all}}), "");
  for (int i = 0; i < 2; ++i) all.push_back(Choice(8, i));
  EXPECT_THAT(RefusedSchema({{"allOf", all}}), HasSubstr("too large where its parts are put together"));
  json inner = json::object(), options = json::array();
  for (int i = 0; i < 1500; ++i) inner[StrCat("p", i)] = true;
  for (int i = 0; i < 3000; ++i) options.push_back({{"required", {"a"}}});
  const json nested = {{"type", "object"}, {"properties", {{"a", {{"properties", inner}}}}}, {"anyOf", options}};
  EXPECT_THAT(RefusedSchema(nested), HasSubstr("too large where its parts are put together"))
      << "4.5 million properties";
}

// 9 KB of these took 6 s, and 330 KB of the first left the stack.
TEST_F(GrammarSizes, WhatIsComparedWithEachOtherIsCounted) {
  const auto object = [](int count, const auto& of) {
    json named = json::object();
    for (int i = 0; i < count; ++i) named[StrCat("^a", i, "_")] = of(i);
    return named;
  };
  const auto any = [](int) { return json(true); };
  EXPECT_EQ(RefusedSchema({{"type", "object"}, {"patternProperties", object(40, any)}}), "");
  EXPECT_THAT(RefusedSchema({{"items", {{"type", "object"}, {"patternProperties", object(300, any)}}}}),
              HasSubstr("#/items: it is too costly: 300 patternProperties at one place"));
  for (const int count : {2'500, 60'000}) {
    const json schema = {{"properties", {{"a", {{"type", "object"}, {"properties", object(count, any)}}}}}};
    EXPECT_THAT(RefusedSchema(schema), HasSubstr("#/properties/a: it is too costly: ")) << count;
  }
  json kinds = json::array(), values = json::array();
  for (int i = 0; i < 5'500; ++i) {
    kinds.push_back(ObjectOf({{"const", i}}, true));
    values.push_back(StrCat("2023-01-", i));
  }
  EXPECT_THAT(RefusedSchema({{"oneOf", kinds}}), HasSubstr("#: it is too costly: 5500 schemas of a oneOf"));
  EXPECT_EQ(RefusedSchema({{"type", "string"}, {"enum", values}}), "");
  EXPECT_EQ(RefusedSchema({{"type", "string"}, {"enum", values}, {"pattern", "^2"}}), "");
  EXPECT_EQ(RefusedSchema({{"type", "string"}, {"enum", values}, {"format", "password"}}), "");
  const json elsewhere = {{{"enum", values}}, {{"format", "ipv4"}}};
  EXPECT_THAT(RefusedSchema({{"allOf", elsewhere}}),
              HasSubstr("#: it gives more than 4000 texts that have a pattern or format beside them"));
}

// OpenAPI's keywords, beside which a reference would be a copy for each of the six types.
TEST_F(GrammarSizes, WhatNoDraftKnowsBesideAReferenceCostsNothing) {
  json large = json::object(), uses = json::object();
  for (int i = 0; i < 200; ++i) large[StrCat("p", i)] = {{"type", "string"}};
  for (int i = 0; i < 40; ++i)
    uses[StrCat("u", i)] = {{"$ref", "#/$defs/large"}, {"nullable", true}, {"x-order", i}, {"description", "a"}};
  const json schema = {{"$defs", {{"large", {{"type", "object"}, {"properties", large}}}}},
                       {"type", "object"},
                       {"properties", uses},
                       {"additionalProperties", false}};
  EXPECT_EQ(RefusedSchema(schema), "");
}

// The compiler follows a reference where it comes to it first, within itself: 1,000 of these left the stack.
TEST_F(GrammarSizes, ReferencesThatLeadTooDeepAreRefused) {
  const auto object = [](const std::string& before) { return ObjectOf({{"$ref", before}}, {{"type", "null"}}); };
  const auto any = [](const std::string& before) -> json {
    return {{"anyOf", {{{"$ref", before}}, {{"type", "null"}}}}};
  };
  const auto list = [](const std::string& before) -> json { return {{"items", {{"items", {{"$ref", before}}}}}}; };
  for (const auto& of : std::vector<std::function<json(const std::string&)>>{object, any, list}) {
    EXPECT_EQ(RefusedSchema(Definitions(250, of)), "");
    for (const int count : {900, 8000}) EXPECT_THAT(RefusedSchema(Definitions(count, of)), HasSubstr("it is too deep"));
  }
  const json inside = Definitions(3000, object);
  EXPECT_THAT(Refused(GrammarKind::kLark, StrCat("start: %json ", inside.dump())), HasSubstr("it is too deep"));
}

std::string Chain(int rules, const std::string& first, const char* name, const char* is, const char* around) {
  std::string text = StrCat(first, "\n");
  for (int i = 0; i < rules; ++i) {
    std::string body = around;
    body.replace(body.find('@'), 1, StrCat(name, i + 1));
    absl::StrAppend(&text, name, i, is, body, "\n");
  }
  return StrCat(text, name, rules, is, "\"a\"\n");
}

TEST_F(GrammarSizes, RulesThatLeadTooDeepAreRefused) {
  const char* const deep = "lead too deep into one another";
  for (const char* around : {"@", "\"x\" @ \"y\"", "\"x\" | @"}) {
    EXPECT_EQ(Refused(GrammarKind::kLark, Chain(1000, "start: r0", "r", ": ", around)), "") << around;
    for (const int rules : {1600, 3'000}) {
      EXPECT_THAT(Refused(GrammarKind::kLark, Chain(rules, "start: r0", "r", ": ", around)), HasSubstr(deep));
      EXPECT_THAT(Refused(GrammarKind::kLark, Chain(rules, "start: T0", "T", ": ", around)), HasSubstr(deep));
      EXPECT_THAT(Refused(GrammarKind::kLark, Chain(rules, "root ::= r0", "r", " ::= ", around)), HasSubstr(deep));
    }
  }
  EXPECT_THAT(Refused(GrammarKind::kLark, Chain(300, "start: r0", "r", ": ", "((((((\"x\" @)))))) \"z\"")),
              HasSubstr(deep));
  // Where else a compiler begins, and the order it goes in.
  EXPECT_THAT(Refused(GrammarKind::kLark, Chain(2000, "start: \"b\"\n%ignore T0", "T", ": ", "@ \"x\"")),
              HasSubstr(deep));
  std::string all = "WIDE:";
  for (int i = 2000; i >= 0; --i) absl::StrAppend(&all, " T", i);
  EXPECT_THAT(Refused(GrammarKind::kLark, Chain(2000, StrCat("start[stop=WIDE]: T0\n", all), "T", ": ", "@ \"x\"")),
              HasSubstr(deep));
  EXPECT_THAT(
      Refused(GrammarKind::kLark, StrCat("start: %lark {\n", Chain(2000, "start: r0", "r", ": ", "@ \"x\""), "}")),
      HasSubstr(deep));
  EXPECT_THAT(Refused(GrammarKind::kLark, Chain(2000, "start: r0 // r9", "?r", ": ", "@")),
              testing::Not(testing::IsEmpty()));
  std::string nested;
  for (int i = 0; i < 20'000; ++i) nested += "start: %lark { ";
  EXPECT_THAT(Refused(GrammarKind::kLark, nested), testing::Not(testing::IsEmpty()))
      << "read in time that grows with it";
}

TEST_F(GrammarSizes, MoreTerminalsThanAreLookedForIsRefused) {
  std::string texts = "start:", one = "start: T\nT: \"v\"", optional;
  for (int i = 0; i < 10'001; ++i) {
    absl::StrAppend(&texts, " \"", i, "\"");
    absl::StrAppend(&one, " | \"", i, "\"");
    optional += "a?";
  }
  EXPECT_THAT(Refused(GrammarKind::kLark, texts), HasSubstr("10001 terminals"));
  EXPECT_EQ(Refused(GrammarKind::kLark, one), "") << "these are one";
  EXPECT_EQ(Refused(GrammarKind::kLark, "start: (\"a\" \"b\")* \"a\""), "");
  const char* const empty = "that may be empty follow each other";
  EXPECT_THAT(Refused(GrammarKind::kRegex, optional), HasSubstr(empty));
  EXPECT_THAT(Refused(GrammarKind::kRegex, StrCat("x(", optional, ")y")), HasSubstr(empty));
  EXPECT_THAT(RefusedSchema({{"type", "string"}, {"pattern", optional}}), HasSubstr(empty));
  EXPECT_THAT(Refused(GrammarKind::kLark, StrCat("start: /", optional, "/")), HasSubstr(empty));
  for (const auto& [part, count, says] : std::vector<std::tuple<const char*, int, const char*>>{
           {" a?", 2'001, empty},
           {" a a", 60'000, ""},
           {" (\"a\" | \"b\")+", 20'000, "60002 rules, alternatives, groups"}}) {
    std::string rule = "a: \"x\"\nstart:";
    for (int i = 0; i < count; ++i) rule += part;
    EXPECT_THAT(Refused(GrammarKind::kLark, rule), HasSubstr(says)) << part;
  }
  std::string words = "root ::= \"v\"", names = "root ::= ", rules;
  for (int i = 0; i < 20'000; ++i) {
    absl::StrAppend(&words, " | \"word", i, "\"");
    absl::StrAppend(&names, "r", i, " ");
    absl::StrAppend(&rules, "r", i, " ::= \"a\" [b-z]\n");
  }
  for (const std::string& text : {words, StrCat(names, "\n", rules)})
    EXPECT_THAT(Refused(GrammarKind::kLark, text), HasSubstr("at most 40000 are possible"));
  EXPECT_EQ(Refused(GrammarKind::kLark, StrCat("root ::= \"", std::string(30'000, 'a'), "\"")), "") << "one text";
  std::string parts = "start: T\nT:";
  for (int i = 0; i < 3000; ++i) parts += " \"a\"?";
  EXPECT_THAT(Refused(GrammarKind::kLark, parts), HasSubstr(empty));
  EXPECT_EQ(Refused(GrammarKind::kRegex, "(a?b){1000}([a-z]*[0-9]*){60}"), "");
}

/// `count` texts, each with its number in it.
template <class Of>
json NumberedTexts(int count, const Of& of) {
  json texts = json::array();
  for (int i = 0; i < count; ++i) texts.push_back(of(StrCat(i)));
  return texts;
}

TEST_F(GrammarSizes, TenThousandTextsAreServedWhateverIsInThem) {
  for (const auto& [before, behind] :
       std::vector<std::pair<std::string, std::string>>{{"v", ""},
                                                        {"Größe № ", " щит и меч"},
                                                        {"漢字", "の表"},
                                                        {"😀🎉 ", " 👩‍👩‍👧"},
                                                        {"said \"", "\"\n\tand \\ went\r\n"},
                                                        {"Straße „", "“\t\"так\"\n"},
                                                        {"\x01\x02", "\x7f"},
                                                        {std::string(60, 'x'), "é"}}) {
    const json texts = NumberedTexts(10'000, [&](const std::string& i) { return StrCat(before, i, behind); });
    const std::string schema = json{{"enum", texts}}.dump();
    EXPECT_TRUE(Takes(GrammarKind::kJsonSchema, schema, texts[4711].dump(-1, ' ', before < " "))) << before;
    EXPECT_FALSE(Takes(GrammarKind::kJsonSchema, schema, json(StrCat(before, "10000", behind)).dump())) << before;
    EXPECT_TRUE(Takes(GrammarKind::kChoice, texts.dump(), texts[4711].get<std::string>())) << before;
  }
}

// Of those that are refused these would take more than 64 MiB, or a second.
TEST_F(GrammarSizes, MoreConstantsAndClassesThanCompileAtOnceAreRefused) {
  const auto escapes = [](const std::string& i) { return StrCat(i, "\"\n\t\\\r\b\f\"\n\t\\\r\b\f\"\n\t\\\r\b\f", i); };
  EXPECT_EQ(RefusedSchema({{"enum", NumberedTexts(3'000, escapes)}}), "");
  EXPECT_THAT(RefusedSchema({{"enum", NumberedTexts(15'000, escapes)}}), HasSubstr("too large"));
  const json many = NumberedTexts(50'001, [](const std::string& i) { return i; });
  const char* const values = "there are 50001 values, at most 50000 are possible";
  EXPECT_THAT(RefusedSchema({{"enum", many}}), HasSubstr(values));
  EXPECT_THAT(Refused(GrammarKind::kChoice, many.dump()), HasSubstr(values));
  std::string texts = "start: T\nT: \"v\"", classes, rules = "start: \"a\"";
  for (int i = 0; i < 50'000; ++i) absl::StrAppend(&texts, " | \"", i, "\"");
  EXPECT_THAT(Refused(GrammarKind::kLark, texts), HasSubstr(values));
  for (int i = 0; i < 1'000; ++i) {
    const std::string one = StrCat("[\\p{L}&&[^\\x{", absl::Hex(0x4e00 + i), "}]]");
    absl::StrAppend(&classes, one);
    absl::StrAppend(&rules, " | /", one, "/");
  }
  const char* const ranges = "classes of characters have more than 400000 ranges";
  EXPECT_THAT(Refused(GrammarKind::kRegex, classes), HasSubstr(ranges));
  EXPECT_THAT(RefusedSchema({{"pattern", classes}}), HasSubstr(ranges));
  EXPECT_THAT(Refused(GrammarKind::kLark, rules), HasSubstr(ranges));
  std::string same;
  for (int i = 0; i < 3'000; ++i) absl::StrAppend(&same, "\\p{L}", i, "?");
  EXPECT_EQ(Refused(GrammarKind::kRegex, same), "") << "a class that comes again costs nothing";
}

}  // namespace
}  // namespace baton
