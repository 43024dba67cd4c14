// Numbers under a schema's bounds: what its grammar lets through is within them, as decimals and as the doubles that
// readers of JSON make of them; and no plain decimal within them is left out.
#include <charconv>
#include <cmath>
#include <random>

#include "common/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/text/golden.h"
#include "text/grammar.h"

namespace baton {
namespace {

using nlohmann::json;
using testing::HasSubstr;

struct NumbersModel {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<GrammarCompiler> compiler;
};

NumbersModel LoadGpt2() {
  NumbersModel m;
  m.tokenizer = *Tokenizer::FromHfDirectory(StrCat(golden::kFolder, "gpt2"));
  m.compiler = *GrammarCompiler::Make(*m.tokenizer, m.tokenizer->eos_ids(), m.tokenizer->vocab_size());
  return m;
}

bool Takes(const NumbersModel& m, const GrammarMatcher& start, const std::string& text) {
  const auto matcher = *start.Copy();
  return matcher->Consume(*m.tokenizer->Encode(text, false)).ok() && matcher->MayEnd();
}

/// Refused, or which of `texts` its grammar takes.
std::optional<std::vector<std::string>> Taken(const NumbersModel& m, const json& schema,
                                              const std::vector<std::string>& texts, std::string* why = nullptr) {
  const auto start = m.compiler->Compile(GrammarKind::kJsonSchema, schema.dump());
  if (!start.ok()) {
    if (why != nullptr) *why = std::string(start.status().message());
    return std::nullopt;
  }
  std::vector<std::string> taken;
  for (const std::string& text : texts) {
    if (Takes(m, **start, text)) taken.push_back(text);
  }
  return taken;
}

using Texts = std::vector<std::string>;

TEST(GrammarNumbers, AnExclusiveBoundIsNotLetThrough) {
  const NumbersModel m = LoadGpt2();
  struct Case {
    const char* schema;
    Texts inside, outside;
  };
  for (const Case& c : std::vector<Case>{
           {R"({"type":"number","exclusiveMinimum":0,"maximum":0.5})",
            {"0.5", "0.1", "0.0001", "0.49", "0.4", "0.000000000000001"},
            {"0", "0.0", "-0", "0.51", "0.50000000000000001"}},
           {R"({"type":"number","exclusiveMinimum":2,"maximum":2.001})",
            {"2.001", "2.0001", "2.000999", "2.0009"},
            {"2", "2.0", "2.000", "2.00000000000000000000001", "2.0011"}},
           {R"({"type":"number","minimum":-0.001,"exclusiveMaximum":0})",
            {"-0.001", "-0.0001", "-0.0005"},
            {"0", "-0", "-0.0", "0.0", "-0.0011"}},
           {R"({"type":["number","null"],"exclusiveMinimum":-0.5,"exclusiveMaximum":0})",
            {"-0.4", "-0.49", "-0.1", "null"},
            {"-0.5", "0", "-0", "-0.49999999999999999999", "true"}},
           {R"({"exclusiveMinimum":0,"allOf":[{"maximum":0.25}]})",
            {"0.25", "0.2", "\"a\"", "[]", "null"},
            {"0", "-0"}},
           {R"({"allOf":[{"type":"number","exclusiveMinimum":0},{"exclusiveMaximum":1}]})",
            {"0.9", "0.99", "0.999", "0.1"},
            {"0", "1", "0.99999999999999999999"}},
           {R"({"$ref":"#/$defs/p","exclusiveMaximum":1,"$defs":{"p":{"type":"number","exclusiveMinimum":0}}})",
            {"0.9", "0.5"},
            {"0", "1"}},
           {R"({"type":"number","minimum":0,"exclusiveMinimum":true,"maximum":0.5})", {"0.5", "0.25"}, {"0", "0.0"}},
           {R"({"type":"number","exclusiveMinimum":0,"maximum":0.5,"multipleOf":0.25})", {"0.25", "0.5"}, {"0", "0.3"}},
           {R"({"type":"number","minimum":-12.75,"maximum":12.75})",
            {"12.7", "12", "12.75", "-12.7", "-12", "0"},
            {"12.76", "-12.76", "13"}},
           {R"({"type":"number","minimum":0,"maximum":1.7976931348623157e308})",
            {"0", "1e0", "123456789012.5"},
            {"-1"}},
           {R"({"type":"integer","exclusiveMinimum":0,"exclusiveMaximum":3})", {"1", "2"}, {"0", "3", "-0", "1.5"}},
           {R"({"type":"integer","minimum":1,"maximum":9007199254740995})",
            {"9007199254740994"},
            {"9007199254740996", "0"}},
           {R"({"type":"integer","maximum":18446744073709551615})", {"1000000000000000000"}, {"18446744073709551616"}},
       }) {
    SCOPED_TRACE(c.schema);
    Texts inside = c.inside;
    std::erase(inside, "1e0");
    std::string why;
    const auto taken = Taken(m, json::parse(c.schema), inside, &why);
    ASSERT_TRUE(taken) << why;
    EXPECT_EQ(*taken, inside);
    EXPECT_THAT(*Taken(m, json::parse(c.schema), c.outside), testing::IsEmpty());
  }
}

TEST(GrammarNumbers, ARangeWithoutANumberIsRefusedInTheSchemasOwnNumbers) {
  const NumbersModel m = LoadGpt2();
  const auto says = [&](const char* schema) {
    std::string why;
    EXPECT_FALSE(Taken(m, json::parse(schema), {}, &why)) << schema;
    return why;
  };
  EXPECT_THAT(
      says(
          R"({"type":"object","properties":{"a":{"type":"number","exclusiveMinimum":0.5,"maximum":0.5}},"required":["a"]})"),
      testing::AllOf(HasSubstr("#/properties/a"), HasSubstr("exclusiveMinimum (0.5)"), HasSubstr("maximum (0.5)")));
  EXPECT_THAT(says(R"({"type":"number","minimum":0,"exclusiveMaximum":0})"),
              testing::AllOf(HasSubstr("minimum (0)"), HasSubstr("exclusiveMaximum (0)")));
  EXPECT_THAT(
      says(R"({"items":{"type":"integer","minimum":36893488147419103232}})"),
      testing::AllOf(HasSubstr("#/items/minimum"), HasSubstr("3.6893488147419103e+19: a lower bound is at most 1e18")));
}

TEST(GrammarNumbers, TheSchemasOfAGrammarOfRulesAreReadTheSameWay) {
  const NumbersModel m = LoadGpt2();
  const auto compiled = m.compiler->Compile(GrammarKind::kLark,
                                            R"lark(start: "<" inner ">"
inner: %json {"type":"object","properties":{"p":{"type":"number","exclusiveMinimum":0,"maximum":0.5},"t":{"type":"string","format":"time"}},
  "required":["p","t"],"additionalProperties":false}
)lark");
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  EXPECT_TRUE(Takes(m, **compiled, R"(<{"p":0.5,"t":"23:59:59Z"}>)"));
  EXPECT_FALSE(Takes(m, **compiled, R"(<{"p":0,"t":"23:59:59Z"}>)"));
  EXPECT_FALSE(Takes(m, **compiled, R"(<{"p":0.5,"t":"23:59:60Z"}>)"));
}

double Value(const std::string& text) { return std::strtod(text.c_str(), nullptr); }

/// A bound as schemas have them: few decimals, sometimes tiny, huge, whole or zero.
std::string Bound(std::mt19937& dice) {
  const auto below = [&](uint32_t n) { return static_cast<int>(dice() % n); };
  std::string sign = below(2) ? "-" : "";
  switch (below(6)) {
    case 0: return "0";
    case 1: return StrCat(sign, below(4));
    case 2: return StrCat(sign, below(3), ".", below(10));
    case 3: return StrCat(sign, below(3), ".00", below(1000));
    case 4: return StrCat(sign, below(100000), ".", below(1000), below(10));
    default: return StrCat(sign, 1 + below(9), "e", below(2) ? "-" : "", below(12));
  }
}

std::string Plain(double value) {
  char out[400];
  return {out, std::to_chars(out, out + sizeof out, value, std::chars_format::fixed).ptr};
}

/// Texts about `value`: it, its neighbours, some with more digits than a double keeps.
void AddTexts(std::mt19937& dice, double value, Texts* texts) {
  const std::string text = Plain(value);
  const bool whole = text.find('.') == std::string::npos;
  texts->insert(texts->end(),
                {text, whole ? text + ".0" : text + "0", (whole ? text + "." : text) + "00000000000000000000001",
                 (whole ? text + "." : text) + "3"});
  for (const double by : {1.0, 0.1, 0.001, 1e-9}) {
    texts->push_back(Plain(value + by));
    texts->push_back(Plain(value - by));
  }
  texts->push_back(Plain(std::nextafter(value, HUGE_VAL)));
  texts->push_back(Plain(std::nextafter(value, -HUGE_VAL)));
  texts->push_back(text + std::string(whole ? "." : "") + std::to_string(dice() % 1000));
  if (value != 0) texts->push_back(Plain(value / 3));
}

struct Range {
  json schema;
  std::optional<double> low, high;
  bool low_excluded = false, high_excluded = false, integer = false;

  bool Has(double v) const {
    return (!low || (low_excluded ? v > *low : v >= *low)) && (!high || (high_excluded ? v < *high : v <= *high)) &&
           (!integer || v == std::floor(v));
  }
};

Range RandomRange(std::mt19937& dice) {
  Range r;
  const auto one_in = [&](uint32_t n) { return dice() % n == 0; };
  r.integer = one_in(4);
  r.schema = {{"type", r.integer ? "integer" : "number"}};
  std::string low = Bound(dice), high = Bound(dice);
  if (one_in(3)) high = json(Value(low) + std::pow(10, -static_cast<int>(dice() % 8))).dump();
  if (Value(low) > Value(high)) std::swap(low, high);
  if (!one_in(5)) {
    r.low = Value(low);
    r.low_excluded = one_in(2);
    r.schema[r.low_excluded ? "exclusiveMinimum" : "minimum"] = json::parse(low);
  }
  if (!one_in(5)) {
    r.high = Value(high);
    r.high_excluded = one_in(2);
    r.schema[r.high_excluded ? "exclusiveMaximum" : "maximum"] = json::parse(high);
  }
  return r;
}

TEST(GrammarNumbers, WhatIsTakenIsWithinTheBoundsAndWhatIsWithinThemIsTaken) {
  const NumbersModel m = LoadGpt2();
  std::mt19937 dice(17);
  int refused = 0, inside = 0, outside = 0;
  for (int i = 0; i < 1500; ++i) {
    const Range range = RandomRange(dice);
    Texts texts = {"0", "-0", "0.0", "-0.0", "1", "-1"};
    for (const auto& bound : {range.low, range.high}) {
      if (bound) AddTexts(dice, *bound, &texts);
    }
    if (range.low && range.high) AddTexts(dice, (*range.low + *range.high) / 2, &texts);
    std::string why;
    const auto taken = Taken(m, range.schema, texts, &why);
    if (!taken) {
      ++refused;
      for (const std::string& text : texts)
        EXPECT_FALSE(text.size() < 20 && range.Has(Value(text)))
            << range.schema << " refuses all, with " << text << ": " << why;
      continue;
    }
    for (const std::string& text : texts) {
      const bool took = std::find(taken->begin(), taken->end(), text) != taken->end();
      const double value = Value(text);
      if (took) {
        EXPECT_TRUE(range.Has(value)) << range.schema << " takes " << text;
        ++inside;
      } else {
        ++outside;
        // Left out: other spellings of a bound, integers with decimals, minus zero, more digits than doubles have.
        const bool plain = text == Plain(value) && value != 0 && text.size() < 17;
        EXPECT_FALSE(plain && range.Has(value)) << range.schema << " does not take " << text;
      }
    }
  }
  EXPECT_LT(refused, 450);
  EXPECT_GT(inside, 2000);
  EXPECT_GT(outside, 2000);
}

/// Whether `text`, a decimal, is a multiple of `step`, another, both with at most nine decimals.
bool IsMultiple(const std::string& text, const std::string& step) {
  const auto scaled = [](const std::string& t) {
    const size_t point = t.find('.');
    const std::string decimals = point == std::string::npos ? "" : t.substr(point + 1);
    return std::stoll(t.substr(0, point) + decimals + std::string(9 - decimals.size(), '0'));
  };
  return scaled(text) % scaled(step) == 0;
}

TEST(GrammarNumbers, MultiplesWithinARangeAreThoseOfDecimals) {
  const NumbersModel m = LoadGpt2();
  std::mt19937 dice(18);
  int refused = 0, taken_ones = 0;
  for (int i = 0; i < 300; ++i) {
    Range range = RandomRange(dice);
    const std::string step =
        std::vector<std::string>{"1", "2", "3", "7", "0.5", "0.25", "0.1", "0.01", "0.05", "2.5"}[dice() % 10];
    range.schema["multipleOf"] = json::parse(step);
    Texts texts;
    const double from = range.low ? *range.low : range.high ? *range.high - 20 * Value(step) : 0;
    for (int k = -3; k < 25; ++k) {
      const double value = std::round(from / Value(step)) * Value(step) + k * Value(step);
      std::string text = Plain(std::round(value * 1e6) / 1e6);
      if (std::abs(value) < 1e6) texts.push_back(text);
    }
    texts.insert(texts.end(), {"0", "0.03", "1.1", "5", "21"});
    const auto taken = Taken(m, range.schema, texts);
    if (!taken) {
      ++refused;
      continue;
    }
    for (const std::string& text : texts) {
      const bool took = std::find(taken->begin(), taken->end(), text) != taken->end();
      const bool fits = range.Has(Value(text)) && IsMultiple(text, step);
      EXPECT_TRUE(!took || fits) << range.schema << " takes " << text;
      const bool other_spelling = text == "-0" || (range.integer && text.find('.') != std::string::npos);
      EXPECT_TRUE(took || !fits || other_spelling) << range.schema << " does not take " << text;
      taken_ones += took;
    }
  }
  EXPECT_LT(refused, 150);
  EXPECT_GT(taken_ones, 500);
}

// The compiler reads a step by multiplying it by ten until nothing is left behind the point: 0.07 comes
// to 7.000000000000001.
TEST(GrammarNumbers, StepsThatProductsOfDoublesMissAreServedButForFew) {
  const NumbersModel m = LoadGpt2();
  Texts refused;
  for (int hundredths = 1; hundredths < 100; ++hundredths) {
    const std::string step = StrCat(hundredths < 10 ? "0.0" : "0.", hundredths);
    Texts multiples, others;
    for (int k : {1, 3, 10, 77, 100, 1001}) {
      for (int off : {0, 1}) {
        const int value = hundredths * k + off;
        std::string text = StrCat(value / 100, ".", value % 100 < 10 ? "0" : "", value % 100);
        text.erase(text.find_last_not_of('0') + 1);
        if (text.back() == '.') text.pop_back();
        (value % hundredths == 0 ? multiples : others).push_back(text);
      }
    }
    const json schema = {{"type", "number"}, {"multipleOf", json::parse(step)}};
    Texts all = multiples;
    all.insert(all.end(), others.begin(), others.end());
    const auto taken = Taken(m, schema, all);
    if (taken) {
      EXPECT_EQ(*taken, multiples) << step;
    } else {
      refused.push_back(step);
    }
  }
  EXPECT_EQ(refused, (Texts{"0.53", "0.57"})) << "no double comes to their digits";
}

}  // namespace
}  // namespace baton
