// Formats of strings in a schema: which texts each takes.
#include <gmock/gmock.h>

#include "tests/text/gpt2_grammars.h"

namespace baton {
namespace {

class GrammarFormats : public Gpt2Grammars {};

TEST_F(GrammarFormats, TextsAreThoseThatTheirStandardAllows) {
  const auto takes = [&](const char* format, const std::string& text) {
    const nlohmann::json schema = {{"type", "string"}, {"format", format}};
    return Takes(GrammarKind::kJsonSchema, schema.dump(), nlohmann::json(text).dump());
  };
  for (const char* day : {"2024-02-29", "2000-02-29", "0004-02-29", "2023-02-28", "0001-12-31", "1900-03-29",
                          "2023-01-31", "2023-04-30", "2023-10-01", "9999-11-10", "2400-02-29", "1996-02-01"}) {
    EXPECT_TRUE(takes("date", day)) << day;
    EXPECT_TRUE(takes("date-time", StrCat(day, "T10:00:00Z"))) << day;
  }
  for (const char* day :
       {"2023-02-29", "1900-02-29", "2100-02-29", "0000-02-29", "0000-01-01", "2024-02-30", "2023-04-31", "2023-11-31",
        "2023-01-32", "2023-13-01", "2023-00-10", "2023-01-00", "23-01-01"}) {
    EXPECT_FALSE(takes("date", day)) << day;
    EXPECT_FALSE(takes("date-time", StrCat(day, "T10:00:00Z"))) << day;
  }
  for (const char* time : {"23:59:59Z", "00:00:00.5+23:59", "09:30:00.123456789z", "20:00:09-00:00"}) {
    EXPECT_TRUE(takes("time", time)) << time;
    EXPECT_TRUE(takes("date-time", StrCat("2023-04-30T", time))) << time;
    EXPECT_TRUE(takes("date-time", StrCat("2024-02-29t", time))) << time;
  }
  for (const char* time :
       {"24:00:00Z", "12:60:00Z", "12:00:60Z", "00:00:00+24:00", "00:00:00", "0:00:00Z", "00:00:00.Z"}) {
    EXPECT_FALSE(takes("time", time)) << time;
    EXPECT_FALSE(takes("date-time", StrCat("2023-04-30T", time))) << time;
  }
  EXPECT_FALSE(takes("date-time", "2023-04-30 00:00:00Z"));
  EXPECT_TRUE(Takes(GrammarKind::kJsonSchema, R"({"format":"date","enum":["2023-01-31"]})", R"("2023-01-31")"));
  const std::string label(63, 'a'), most = StrCat(label, ".", label, ".", label, ".", std::string(61, 'b'));
  EXPECT_TRUE(takes("email", std::string(64, 'a') + "@b.de"));
  EXPECT_TRUE(takes("email", StrCat("a.b+c@", label, ".", label, ".", label)));
  EXPECT_TRUE(takes("email", "jane.doe@mail.eu.example.co.uk"));
  EXPECT_FALSE(takes("email", "a@ab--c.de"));
  EXPECT_FALSE(takes("email", "a..b@c.de"));
  EXPECT_TRUE(takes("email", "a@[127.0.0.1]"));
  EXPECT_FALSE(takes("email", std::string(65, 'a') + "@b.de"));
  EXPECT_FALSE(takes("email", StrCat("a@", label, "a.de")));
  EXPECT_FALSE(takes("email", StrCat("a@", most, "b")));
  EXPECT_TRUE(takes("hostname", most));
  EXPECT_FALSE(takes("hostname", most + "b"));
  EXPECT_TRUE(takes("hostname", "a.c-d.e1.2.a-b--c"));
  EXPECT_FALSE(takes("hostname", "xn--a.de"));
  for (const char* format : {"email", "hostname"}) {
    for (const char* more :
         {R"({"maxLength":254})", R"({"minLength":6,"maxLength":100})", R"({"pattern":"\\.(com|de)$"})",
          R"({"pattern":"^[a-z.@-]+$","maxLength":30})", R"({"type":["string","null"],"maxLength":40})"}) {
      nlohmann::json schema = {{"type", "string"}, {"format", format}};
      schema.update(nlohmann::json::parse(more));
      const auto compiled = compiler_->Compile(GrammarKind::kJsonSchema, schema.dump());
      EXPECT_TRUE(compiled.ok()) << schema << compiled.status();
    }
  }
}

TEST_F(GrammarFormats, OfValuesThatAreGivenThoseStayThatHaveTheFormat) {
  const char uuid4[] = "6ba7b810-9dad-41d1-80b4-00c04fd430c8", base64[] = "6ba7b8109dad41d180b400c04fd430c8";
  const auto takes = [&](const char* format, const char* text) {
    const nlohmann::json schema = {{"enum", {uuid4, base64, "a?", 1}}, {"format", format}};
    return Takes(GrammarKind::kJsonSchema, schema.dump(), nlohmann::json(text).dump());
  };
  EXPECT_TRUE(takes("uuid4", uuid4));
  EXPECT_FALSE(takes("uuid4", base64));
  EXPECT_TRUE(takes("byte", base64));
  EXPECT_FALSE(takes("byte", uuid4));
  EXPECT_FALSE(takes("byte", "a?"));
  for (const char* format : {"uuid4", "byte"})
    EXPECT_TRUE(Takes(GrammarKind::kJsonSchema, StrCat(R"({"enum":[1,"a?"],"format":")", format, "\"}"), "1"));
  EXPECT_TRUE(takes("password", "a?"));
}

// Nobody who wrote a schema knows the compiler's expressions.
TEST_F(GrammarFormats, ValuesOfWhichNoneHasTheFormatAreRefusedInWords) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"format":"uuid4","type":"string","enum":["a?"]})",
       "#: Unsatisfiable schema: no text fits its enum and format"},
      {R"({"type":"string","enum":["a?","b?"],"format":"date"})", "#: Unsatisfiable schema: no text fits its enum and"},
      {R"({"type":"object","properties":{"a":{"type":"string","const":"a?","format":"ipv4"}},"required":["a"]})",
       "#/properties/a: Unsatisfiable schema: no text fits its const and format together"},
      {R"({"type":"array","items":{"type":"string","pattern":"^a+$","minLength":3,"maxLength":4,"const":"b"},"minItems":1})",
       "#/items: Unsatisfiable schema: no text fits its const, pattern, minLength and maxLength together"},
      {R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string","pattern":"^a$","format":"byte"}],"minItems":2})",
       "#/prefixItems/1: Unsatisfiable schema: no text fits its pattern and format together"},
      {R"({"type":"string","pattern":"a[b&&c]"})", "#: Unsatisfiable schema: no text fits its pattern"},
  };
  for (const auto& [schema, says] : cases) {
    const absl::Status refused = compiler_->Compile(GrammarKind::kJsonSchema, schema).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << schema;
    EXPECT_THAT(std::string(refused.message()), testing::HasSubstr(says)) << schema;
    EXPECT_THAT(std::string(refused.message()), testing::Not(testing::HasSubstr("(And"))) << schema;
  }
}

TEST_F(GrammarFormats, AListOfItemsIsAnOlderDrafts) {
  const std::string list = R"("type":"array","items":[{"const":1},{"const":2}],"additionalItems":false,"minItems":2)";
  const absl::Status refused =
      compiler_->Compile(GrammarKind::kJsonSchema, StrCat(R"({"properties":{"a":{)", list, "}}}")).status();
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("#/properties/a/items is a list: draft 2020-12"));
  const std::string older = StrCat(R"({"$schema":"http://json-schema.org/draft-07/schema#",)", list, "}");
  EXPECT_TRUE(Takes(GrammarKind::kJsonSchema, older, "[1,2]"));
  EXPECT_FALSE(Takes(GrammarKind::kJsonSchema, older, "[1,2,3]"));
  EXPECT_FALSE(Takes(GrammarKind::kJsonSchema, older, "[2,1]"));
  const char* unknown = R"({"type":"array","prefixItems":[{"const":1}],"additionalItems":false,"minItems":1})";
  EXPECT_TRUE(Takes(GrammarKind::kJsonSchema, unknown, "[1,2]")) << "draft 2020-12 knows no additionalItems";
  EXPECT_FALSE(Takes(GrammarKind::kJsonSchema, unknown, "[2]"));
  EXPECT_TRUE(Takes(GrammarKind::kJsonSchema, R"({"const":{"items":[1]}})", R"({"items":[1]})")) << "a value";
}

}  // namespace
}  // namespace baton
