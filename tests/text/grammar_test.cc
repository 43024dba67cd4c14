// A grammar's masks: what may be drawn from them is an answer that the grammar's words describe, and nothing that could
// be is left out.
#include "text/grammar.h"

#include <chrono>
#include <random>
#include <regex>
#include <set>

#include "common/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/text/golden.h"

namespace baton {
namespace {

using nlohmann::json;
using testing::HasSubstr;

struct Model {
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<int32_t> eos;
  std::unique_ptr<GrammarCompiler> compiler;
};

/// The compiler of a test tokenizer, for a model that scores 70 ids more than the tokenizer has.
Model Load(const std::string& name) {
  Model m;
  m.tokenizer = *Tokenizer::FromHfDirectory(golden::kFolder + name);
  m.eos = m.tokenizer->eos_ids();
  if (m.eos.empty()) m.eos = {0};
  auto compiler = GrammarCompiler::Make(*m.tokenizer, m.eos, m.tokenizer->vocab_size() + 70);
  EXPECT_TRUE(compiler.ok()) << compiler.status();
  m.compiler = *std::move(compiler);
  return m;
}

std::unique_ptr<GrammarMatcher> Compiled(const Model& m, GrammarKind kind, const std::string& text) {
  auto matcher = m.compiler->Compile(kind, text);
  EXPECT_TRUE(matcher.ok()) << matcher.status();
  return *std::move(matcher);
}

std::vector<int32_t> Allowed(GrammarMatcher& matcher, int32_t vocab) {
  std::vector<uint32_t> mask((static_cast<size_t>(vocab) + 31) / 32, 0xABABABAB);
  EXPECT_TRUE(matcher.Mask(absl::MakeSpan(mask)).ok());
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < static_cast<int32_t>(mask.size() * 32); ++id) {
    if (mask[static_cast<size_t>(id / 32)] >> (id % 32) & 1) ids.push_back(id);
  }
  return ids;
}

/// An answer drawn at random from the masks, until it ends; nullopt when it did not in `most` tokens.
std::optional<std::string> Draw(const Model& m, GrammarMatcher& matcher, std::mt19937& dice, int most) {
  std::vector<int32_t> drawn;
  while (static_cast<int>(drawn.size()) < most) {
    const std::vector<int32_t> allowed = Allowed(matcher, m.compiler->vocab_size());
    if (allowed.empty()) {
      ADD_FAILURE() << "nothing may follow " << m.tokenizer->Decode(drawn, false);
      return std::nullopt;
    }
    const bool ends = std::find(allowed.begin(), allowed.end(), m.eos[0]) != allowed.end();
    const int32_t token = ends && dice() % 4 == 0 ? m.eos[0] : allowed[dice() % allowed.size()];
    EXPECT_LT(token, m.tokenizer->vocab_size());
    if (std::find(m.eos.begin(), m.eos.end(), token) != m.eos.end()) return m.tokenizer->Decode(drawn, false);
    const absl::Status taken = matcher.Consume({token});
    EXPECT_TRUE(taken.ok()) << taken;
    drawn.push_back(token);
  }
  return std::nullopt;
}

constexpr const char* kPerson = R"({"type":"object","additionalProperties":false,"required":["name","age"],
  "properties":{"name":{"type":"string","maxLength":8},"age":{"type":"integer","minimum":0,"maximum":150},
                "tags":{"type":"array","items":{"enum":["a","b\n","ü"]},"maxItems":3}}})";

TEST(Grammar, WhatIsDrawnFromASchemasMasksIsOfTheSchema) {
  for (const char* name : {"gpt2", "llama3", "smollm", "qwen2", "spm-bpe"}) {
    SCOPED_TRACE(name);
    const Model m = Load(name);
    const auto start = Compiled(m, GrammarKind::kJsonSchema, kPerson);
    std::mt19937 dice(7);
    int whole = 0;
    for (int i = 0; i < 20; ++i) {
      const auto matcher = *start->Copy();
      const std::optional<std::string> text = Draw(m, *matcher, dice, 400);
      if (!text) continue;
      ++whole;
      const json answer = json::parse(*text, nullptr, /*allow_exceptions=*/false);
      ASSERT_TRUE(answer.is_object()) << *text;
      EXPECT_TRUE(answer["name"].is_string() && answer["age"].is_number_integer()) << *text;
      EXPECT_LE(answer["age"].get<int>(), 150);
      for (const auto& [key, value] : answer.items()) EXPECT_THAT(key, testing::AnyOf("name", "age", "tags"));
      for (const json& tag : answer.value("tags", json::array()))
        EXPECT_TRUE(tag == "a" || tag == "b\n" || tag == "ü") << *text;
    }
    EXPECT_GE(whole, 5) << "too few ended to show anything";
  }
}

TEST(Grammar, WhatIsDrawnFromARegexsMasksMatchesIt) {
  const Model m = Load("gpt2");
  const std::string pattern = "(ab|c[0-9]{2,4})+-x?";
  std::mt19937 dice(3);
  int whole = 0;
  for (int i = 0; i < 30; ++i) {
    const auto matcher = Compiled(m, GrammarKind::kRegex, pattern);
    const std::optional<std::string> text = Draw(m, *matcher, dice, 60);
    if (!text) continue;
    ++whole;
    EXPECT_TRUE(std::regex_match(*text, std::regex(pattern))) << *text;
  }
  EXPECT_GE(whole, 10);
}

TEST(Grammar, EveryChoiceCanBeDrawnAndNothingElse) {
  const Model m = Load("gpt2");
  const std::set<std::string> choices = {"red", "reddish", "\"green\"\n", "blau — grün", "\\d"};
  std::set<std::string> seen;
  std::mt19937 dice(5);
  for (int i = 0; i < 400; ++i) {
    const auto matcher = Compiled(m, GrammarKind::kChoice, json(choices).dump());
    const std::optional<std::string> text = Draw(m, *matcher, dice, 60);
    ASSERT_TRUE(text);
    EXPECT_TRUE(choices.contains(*text)) << *text;
    seen.insert(*text);
  }
  EXPECT_EQ(seen, choices);
}

TEST(Grammar, AMaskHasEveryTokenThatCanBeTakenAndNoOther) {
  const Model m = Load("gpt2");
  const auto matcher =
      Compiled(m, GrammarKind::kLark, "start: \"{\" PAIR (\",\" PAIR)* \"}\"\nPAIR: /[a-c]{1,3}=[0-9]+/");
  for (const char* step : {"", "{", "ab", "=1", "2", ",", "c=0", "}"}) {
    const auto ids = *m.tokenizer->Encode(step, false);
    for (const int32_t id : ids) {
      ASSERT_TRUE(matcher->Consume({id}).ok()) << step;
    }
    const std::vector<int32_t> allowed = Allowed(*matcher, m.compiler->vocab_size());
    std::set<int32_t> takes;
    for (int32_t id = 0; id < m.tokenizer->vocab_size(); ++id) {
      if ((*matcher->Copy())->Consume({id}).ok()) takes.insert(id);
    }
    EXPECT_EQ(std::set<int32_t>(allowed.begin(), allowed.end()), takes) << "after " << step;
  }
}

TEST(Grammar, BehindItsEndOnlyTheEndOfTheTextFollows) {
  const Model m = Load("gpt2");
  const auto matcher = Compiled(m, GrammarKind::kChoice, R"(["yes","no"])");
  EXPECT_FALSE(matcher->MayEnd());
  ASSERT_TRUE(matcher->Consume(*m.tokenizer->Encode("yes", false)).ok());
  EXPECT_TRUE(matcher->MayEnd());
  EXPECT_TRUE(matcher->HasEnded());
  EXPECT_EQ(Allowed(*matcher, m.compiler->vocab_size()), m.eos);
}

TEST(Grammar, ATokenThatIsNotAllowedIsNamedAndNotTaken) {
  const Model m = Load("gpt2");
  const auto matcher = Compiled(m, GrammarKind::kRegex, "[0-9]+");
  const int32_t one = m.tokenizer->Encode("1", false)->front(), x = m.tokenizer->Encode("x", false)->front();
  const absl::Status status = matcher->Consume({one, x, one});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the one at 1 of 3"));
  EXPECT_TRUE(matcher->Consume({one}).ok()) << "it stands where it stood";
}

TEST(Grammar, ACopyGoesItsOwnWay) {
  const Model m = Load("gpt2");
  const auto matcher = Compiled(m, GrammarKind::kRegex, "ab|cd");
  const auto copy = *matcher->Copy();
  ASSERT_TRUE(copy->Consume(*m.tokenizer->Encode("a", false)).ok());
  EXPECT_TRUE(matcher->Consume(*m.tokenizer->Encode("c", false)).ok());
  EXPECT_FALSE(copy->Consume(*m.tokenizer->Encode("d", false)).ok());
  EXPECT_TRUE(copy->Consume(*m.tokenizer->Encode("b", false)).ok());
}

TEST(Grammar, SpecialTokensAreNoText) {
  const Model m = Load("smollm");
  const auto matcher = Compiled(m, GrammarKind::kRegex, "(.|\\n)*");
  for (const int32_t id : Allowed(*matcher, m.compiler->vocab_size())) {
    const bool ends = std::find(m.eos.begin(), m.eos.end(), id) != m.eos.end();
    EXPECT_FALSE(!ends && m.tokenizer->IsSpecial(id)) << m.tokenizer->IdToToken(id);
  }
}

struct Wrong {
  GrammarKind kind;
  const char* text;
  const char* says;
};

TEST(Grammar, AGrammarThatIsWrongIsRefusedWithThePlace) {
  const Model m = Load("gpt2");
  for (
      const Wrong& wrong : std::vector<Wrong>{
          {GrammarKind::kJsonSchema, R"({"type":"object","properties":{"a":{"type":"array","uniqueItems":true}}})",
           "#/properties/a/uniqueItems is not supported"},
          {GrammarKind::kJsonSchema, R"({"properties":{"not":{"not":{}},"b":{"not":{}}}})",
           "#/properties/not/not, #/properties/b/not are not supported"},
          {GrammarKind::kLark, R"(start: %json {"properties":{"a":{"unevaluatedItems":false}}})",
           "#/properties/a/unevaluatedItems is not supported"},
          {GrammarKind::kJsonSchema, R"({"properties":{"a":{"oneOf":[{"type":"integer"},{"type":"number"}]}}})",
           "#/properties/a/oneOf: "},
          {GrammarKind::kJsonSchema, R"({"properties":{"a":{"format":"none"}}})", "#/properties/a/format: Unknown"},
          {GrammarKind::kJsonSchema, R"({"properties":{"a":{"anyOf":[{"type":"integer"},{"type":"numer"}]}}})",
           "#/properties/a/anyOf/1: Invalid type: numer"},
          {GrammarKind::kJsonSchema,
           R"({"items":{"$ref":"#/$defs/b"},"$defs":{"b":{"type":"string","minLength":"3"}}})", "#/items: Expected"},
          {GrammarKind::kJsonSchema, R"({"items":{"properties":{"a":{"$ref":"#here"}}}})", "#/items/properties/a: "},
          {GrammarKind::kJsonSchema, R"({"enum":["a",{"b":9007199254740993}]})", "#/enum/1 is 9007199254740993"},
          {GrammarKind::kJsonSchema, R"({"items":{"type":"number","multipleOf":0.53}})", "#/items/multipleOf is 0.53"},
          {GrammarKind::kJsonSchema, R"({"oneOf":[{"const":1},{"const":1.0}]})", "#/oneOf: it is supported where"},
          {GrammarKind::kJsonSchema,
           R"({"type":"object","properties":{"a":{"format":"uuid4"},"b":{"uniqueItems":false}},"required":["a","zz"],"additionalProperties":false})",
           "#: Unsatisfiable schema: required property 'zz'"},
          {GrammarKind::kJsonSchema,
           R"({"type":"object","properties":{"a":{"minItems":2,"maxItems":1,"uniqueItems":false,"type":"array"}},"required":["a"]})",
           "#/properties/a: Unsatisfiable schema: minItems (2)"},
          {GrammarKind::kJsonSchema, R"({"x-guidance":{"lenient":true},"not":{}})", "#/not is not supported"},
          {GrammarKind::kJsonSchema, R"({"oneOf":[{"minimum":1},{"maximum":2}]})", "#/oneOf: it is supported where"},
          {GrammarKind::kJsonSchema, "{\"type\":", "not JSON"},
          {GrammarKind::kJsonSchema, R"({"type":"text"})", "text"},
          {GrammarKind::kRegex, "(a", "unclosed"},
          {GrammarKind::kLark, "start: a", "a"},
          {GrammarKind::kLark, "begin: \"a\"", "start"},
          {GrammarKind::kChoice, "[]", "no choice"},
          {GrammarKind::kChoice, R"(["a",1])", "not 1"},
          {GrammarKind::kChoice, R"({"a":1})", "array of strings"},
      }) {
    const auto matcher = m.compiler->Compile(wrong.kind, wrong.text);
    EXPECT_EQ(matcher.status().code(), absl::StatusCode::kInvalidArgument) << wrong.text;
    EXPECT_THAT(std::string(matcher.status().message()), HasSubstr(wrong.says)) << wrong.text;
  }
}

TEST(Grammar, SchemasOfTheDraftAreCompiled) {
  const Model m = Load("gpt2");
  for (const char* schema :
       {R"({"$defs":{"n":{"type":"object","properties":{"next":{"$ref":"#/$defs/n"}}}},"$ref":"#/$defs/n"})",
        R"({"anyOf":[{"type":"string","format":"date-time"},{"type":"null"}]})",
        R"({"type":"object","patternProperties":{"^x-":{"type":"number"}},"additionalProperties":false})",
        R"({"type":"array","prefixItems":[{"const":1},{"enum":["a",null]}],"items":false})",
        R"({"type":"string","pattern":"^[a-z]{3}$"})", R"({"allOf":[{"type":"integer"},{"minimum":3}]})", "true",
        "{}"}) {
    EXPECT_TRUE(m.compiler->Compile(GrammarKind::kJsonSchema, schema).ok())
        << schema << m.compiler->Compile(GrammarKind::kJsonSchema, schema).status();
  }
}

TEST(Grammar, SchemasMeanWhatTheDraftSays) {
  const Model m = Load("gpt2");
  const auto takes = [&](const char* schema, const char* answer) {
    const auto matcher = Compiled(m, GrammarKind::kJsonSchema, schema);
    return matcher->Consume(*m.tokenizer->Encode(answer, false)).ok() && matcher->MayEnd();
  };
  const char* escaped = R"({"$ref":"#/$defs/List%3Cint%3E~0","$defs":{"List<int>~":{"type":"boolean"}}})";
  EXPECT_TRUE(takes(escaped, "true"));
  EXPECT_FALSE(takes(escaped, "1"));
  EXPECT_TRUE(takes(R"({"const":{"$ref":"#/a%20b"}})", R"({"$ref":"#/a%20b"})")) << "what is a value stays as it is";
  EXPECT_TRUE(takes(R"({"type":"string","minLength":1.0,"maxLength":2.0})", R"("ab")"));
  EXPECT_TRUE(takes(R"({"const":9007199254740992})", "9007199254740992"));
  EXPECT_TRUE(takes(R"({"oneOf":[{"const":1},{"enum":[2,"1",null]},{"const":3.5}]})", "2"));
  EXPECT_TRUE(takes(R"({"uniqueItems":false,"items":{"format":"password"}})", R"(["a b"])"));
  EXPECT_TRUE(takes(R"({"type":"string","format":"base64"})", R"("aGk=")"));
  EXPECT_FALSE(takes(R"({"type":"string","format":"byte"})", R"("aGk")"));
  EXPECT_TRUE(takes(R"({"format":"uuid4"})", R"("6ba7b810-9dad-41d1-80b4-00c04fd430c8")"));
  EXPECT_FALSE(takes(R"({"format":"uuid4"})", R"("6ba7b810-9dad-11d1-80b4-00c04fd430c8")"));
  const char* compact = R"({"x-guidance":{"whitespace_flexible":false},"type":"array","items":{"enum":[1,{"a":2}]}})";
  EXPECT_TRUE(takes(compact, R"([1,{"a":2}])"));
  EXPECT_FALSE(takes(compact, "[ 1]"));
  for (const char* schema : {R"({"type":["string","null"],"format":"time"})", R"({"format":"time"})",
                             R"({"properties":{"format":true},"format":"time","allOf":[{"minLength":3}]})"}) {
    EXPECT_TRUE(takes(schema, R"("23:59:59Z")")) << schema;
    EXPECT_TRUE(takes(schema, "null")) << schema;
    EXPECT_FALSE(takes(schema, R"("19:41:60-01:19")")) << schema << ": no leap second comes then";
  }
  EXPECT_FALSE(takes(R"({"type":"string","format":"date-time"})", R"("2041-04-02T00:40:60+06:26")"));
  EXPECT_TRUE(takes(R"({"type":"string","format":"date-time"})", R"("2041-04-02T00:40:06+06:26")"));
}

TEST(Grammar, WhatStandsInASchemaManyTimesMeansTheSameAsOnce) {
  const Model m = Load("gpt2");
  const auto takes = [&](const json& schema, const json& answer) {
    const auto matcher = Compiled(m, GrammarKind::kJsonSchema, schema.dump());
    return matcher->Consume(*m.tokenizer->Encode(answer.dump(), false)).ok() && matcher->MayEnd();
  };
  const json day{{"type", "string"}, {"format", "date"}, {"description", "a day"}};
  const json word{{"type", "string"}, {"pattern", "^[a-z]+$"}, {"maxLength", 3}};
  const json given{{"type", "string"}, {"format", "date"}, {"const", "2024-02-29"}};
  json schema{{"type", "object"},
              {"additionalProperties", false},
              {"required", {"a", "b", "c"}},
              {"$defs", {{"repeated0", word}, {"d", day}}},
              {"properties",
               {{"a", day},
                {"b", {{"type", "array"}, {"items", day}}},
                {"c", {{"$ref", "#/$defs/d"}}},
                {"d", word},
                {"e", {{"$ref", "#/$defs/repeated0"}}},
                {"f", {{"type", "string"}, {"format", "date"}, {"maxLength", 9}}},
                {"g", given}}}};
  const json fits{{"a", "2024-02-29"}, {"b", {"0001-01-01"}}, {"c", "1999-12-31"}, {"d", "abc"},
                  {"e", "x"},          {"g", "2024-02-29"}};
  EXPECT_TRUE(takes(schema, fits));
  for (const auto& [name, wrong] : std::vector<std::pair<const char*, json>>{{"a", "2023-02-29"},
                                                                             {"a", 1},
                                                                             {"b", {"2023-04-31"}},
                                                                             {"c", "2023-13-01"},
                                                                             {"d", "abcd"},
                                                                             {"d", "A"},
                                                                             {"e", "abcd"},
                                                                             {"g", "2024-02-28"}}) {
    json other = fits;
    other[name] = wrong;
    EXPECT_FALSE(takes(schema, other)) << other;
  }
  schema["properties"]["a"]["not"] = {{"type", "null"}};
  const auto refused = m.compiler->Compile(GrammarKind::kJsonSchema, schema.dump()).status();
  EXPECT_THAT(std::string(refused.message()), HasSubstr("#/properties/a/not"));
}

TEST(Grammar, WhatTakesTooLongToCompileIsRefusedAtOnce) {
  const Model m = Load("gpt2");
  std::string many = "[", more = "[";
  for (int i = 0; i < 80000; ++i)
    (i < 10000 ? many : more) += StrCat(i == 0 || i == 10000 ? "" : ",", "\"value ", i * 7, "\"");
  EXPECT_TRUE(m.compiler->Compile(GrammarKind::kChoice, many + "]").ok());
  EXPECT_TRUE(m.compiler->Compile(GrammarKind::kJsonSchema, StrCat("{\"enum\":", many, "]}")).ok());
  const auto say = [&](GrammarKind kind, const std::string& text, const char* why) {
    const auto start = std::chrono::steady_clock::now();
    const auto compiled = m.compiler->Compile(kind, text);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(compiled.status().code(), absl::StatusCode::kInvalidArgument) << text.substr(0, 100);
    EXPECT_THAT(std::string(compiled.status().message()), HasSubstr(why));
    EXPECT_LT(took.count(), 5) << text.substr(0, 100) << ": well under 1 s on a machine that has nothing else to do";
  };
  say(GrammarKind::kChoice, more + "]", "70000 values");
  const char* divisors = "least common multiple";
  say(GrammarKind::kJsonSchema, R"({"multipleOf":1000003})", divisors);
  say(GrammarKind::kJsonSchema, R"({"allOf":[{"multipleOf":9973},{"multipleOf":0.9967}]})", divisors);
  say(GrammarKind::kLark, R"(start: %json {"multipleOf":1000003})", divisors);
  say(GrammarKind::kLark, R"(start: "a" %json {"\u006dultipleOf":1000003})", divisors);
  EXPECT_TRUE(m.compiler->Compile(GrammarKind::kJsonSchema, R"({"type":"number","multipleOf":0.01})").ok());
  say(GrammarKind::kJsonSchema, R"({"$ref":"#"})", "no text fits it");
  say(GrammarKind::kLark, R"(start: start "a")", "no text fits it");
  std::string properties;
  for (int i = 0; i < 2000; ++i) properties += StrCat(i == 0 ? "" : ",", "\"p", i, "\":{}");
  say(GrammarKind::kJsonSchema, StrCat("{\"type\":\"object\",\"properties\":{", properties, "}}"), "too costly");
}

TEST(Grammar, ASchemaWithoutAnEndIsRefusedAndOneWithAWayOutIsNot) {
  const Model m = Load("gpt2");
  const auto in_a = [](const char* a) {
    return StrCat(
        R"({"type":"object","required":["a"],"properties":{"a":)", a, R"(},"$defs":{"x":{"$ref":"#/$defs/y"},)",
        R"("y":{"type":"array","items":{"$ref":"#/$defs/x"},"minItems":1},"end":{"anyOf":[{"$ref":"#"},{"type":"null"}]}}})");
  };
  for (const char* endless : {R"({"$ref":"#"})", R"({"type":"array","items":{"$ref":"#"},"minItems":2})",
                              R"({"anyOf":[{"$ref":"#"},{"$ref":"#/$defs/x"}]})", R"({"allOf":[{"$ref":"#"},{}]})"}) {
    for (const auto& [kind, text] : {std::pair{GrammarKind::kJsonSchema, in_a(endless)},
                                     std::pair{GrammarKind::kLark, StrCat("start: %json ", in_a(endless))}}) {
      const auto status = m.compiler->Compile(kind, text).status();
      EXPECT_THAT(std::string(status.message()), HasSubstr("within itself, without an end")) << text;
    }
  }
  for (const char* ends : {R"({"$ref":"#/$defs/end"})", R"({"type":"array","items":{"$ref":"#"}})",
                           R"({"type":["object","null"],"required":["b"],"properties":{"b":{"$ref":"#"}}})",
                           R"({"type":"object","properties":{"b":{"$ref":"#"}}})"}) {
    const auto compiled = m.compiler->Compile(GrammarKind::kJsonSchema, in_a(ends));
    EXPECT_TRUE(compiled.ok()) << ends << compiled.status();
  }
}

TEST(Grammar, TheDigestSaysWhetherTwoCompilersSeeTheSame) {
  const Model one = Load("gpt2"), again = Load("gpt2"), other = Load("qwen2");
  EXPECT_EQ(one.compiler->digest().size(), 32u);
  EXPECT_EQ(one.compiler->digest(), again.compiler->digest());
  EXPECT_NE(one.compiler->digest(), other.compiler->digest());
  const int32_t size = one.tokenizer->vocab_size();
  const auto digest = [&](std::vector<int32_t> eos, int32_t ids) {
    return (*GrammarCompiler::Make(*one.tokenizer, eos, ids))->digest();
  };
  EXPECT_EQ(digest({1, 2}, size), digest({2, 1}, size + 70)) << "ids that the tokenizer has not do not count";
  EXPECT_NE(digest({1, 2}, size), digest({1}, size)) << "what ends a text does";
}

TEST(Grammar, ATokenizerWithoutBytesOrAModelWithoutAnEndIsRefused) {
  const auto words = *Tokenizer::FromHfDirectory(StrCat(golden::kFolder, "wordpiece"));
  EXPECT_THAT(std::string(GrammarCompiler::Make(*words, {0}, words->vocab_size()).status().message()),
              HasSubstr("tokens are bytes"));
  const auto bytes = *Tokenizer::FromHfDirectory(StrCat(golden::kFolder, "gpt2"));
  EXPECT_THAT(std::string(GrammarCompiler::Make(*bytes, {}, bytes->vocab_size()).status().message()),
              HasSubstr("end-of-text"));
}

}  // namespace
}  // namespace baton
