// Formats of strings in a schema: which texts each takes.
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

}  // namespace
}  // namespace baton
