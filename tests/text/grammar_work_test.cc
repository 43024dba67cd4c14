// What an answer's grammar may cost is counted, not timed: whoever follows the same tokens ends at the same one.
#include <functional>
#include <random>

#include "absl/algorithm/container.h"
#include "common/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/text/golden.h"
#include "text/grammar.h"

namespace baton {
namespace {

using nlohmann::json;
using testing::HasSubstr;

struct WorkModel {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<GrammarCompiler> compiler;
};

WorkModel LoadWorkModel() {
  WorkModel m;
  m.tokenizer = *Tokenizer::FromHfDirectory(StrCat(golden::kFolder, "gpt2"));
  m.compiler = *GrammarCompiler::Make(*m.tokenizer, m.tokenizer->eos_ids(), m.tokenizer->vocab_size());
  return m;
}

struct Walked {
  int tokens = 0;
  uint64_t work = 0;
  std::string ends;  ///< what was said where it was too costly, else nothing
};

// By chance over what the masks allow but the end, letters where they may come, at most 400 tokens.
Walked Walk(const WorkModel& m, GrammarKind kind, const std::string& text) {
  Walked walked;
  auto compiled = m.compiler->Compile(kind, text);
  walked.ends = std::string(compiled.status().message());
  if (!compiled.ok()) return walked;
  GrammarMatcher& matcher = **compiled;
  std::vector<uint32_t> mask((static_cast<size_t>(m.compiler->vocab_size()) + 31) / 32);
  const std::vector<int32_t> letters = *m.tokenizer->Encode("abcdefghilmnouxy", false);
  std::mt19937 dice(7);
  for (; walked.tokens < 400 && walked.ends.empty() && !matcher.HasEnded(); ++walked.tokens) {
    walked.ends = std::string(matcher.Mask(absl::MakeSpan(mask)).message());
    if (!walked.ends.empty()) break;
    const auto may = [&](int32_t id) { return (mask[static_cast<size_t>(id / 32)] >> (id % 32) & 1) != 0; };
    std::vector<int32_t> allowed;
    absl::c_copy_if(letters, std::back_inserter(allowed), may);
    for (int32_t id = 0; id < m.compiler->vocab_size() && allowed.empty(); ++id) {
      if (may(id) && absl::c_find(m.tokenizer->eos_ids(), id) == m.tokenizer->eos_ids().end()) allowed.push_back(id);
    }
    if (allowed.empty()) break;
    walked.ends = std::string(matcher.Consume({allowed[dice() % allowed.size()]}).message());
  }
  walked.work = matcher.Work();
  return walked;
}

// As many rules as `count`, each of `of` its number, and all of them as alternatives of d.
std::string Alternatives(int count, const std::function<std::string(int)>& of) {
  std::string any = "d: r0", rules;
  for (int i = 0; i < count; ++i) {
    if (i > 0) any += StrCat(" | r", i);
    rules += StrCat("r", i, ": ", of(i), "\n");
  }
  return StrCat(any, "\n", rules);
}

// Of these one mask costs little at first and all of them a lot: where only states are counted, such a regular
// expression takes 3.6 s of a core, and 400 tokens of the first ambiguous grammar 100 s. Beside many short rows a few
// long ones are not seen in their average (7.6 s), and a state costs as much as it has terminals (11 s for 1,000).
TEST(GrammarWork, WhatGrowsTooCostlyEndsByCountedWork) {
  const WorkModel m = LoadWorkModel();
  using enum GrammarKind;
  const std::string short_rows = Alternatives(200, [](int i) { return StrCat("\"[", i, "\" \"]\""); });
  const std::string loops = Alternatives(1900, [](int i) { return StrCat("/[a-z]*", 1000 + i, "/"); });
  for (const auto& [kind, text] : std::vector<std::pair<GrammarKind, std::string>>{
           {kRegex, R"(((.*\sa+|((?i:e)+[a-z]{1,60}(the|of|and|to)+){20}|([a-z]|.{150}|\w+){1,30})){2,60}z)"},
           {kLark, "start: x+\nx: \"a\" | \"ab\" | x x"},
           {kLark, "start: x\nx: x x | /[a-z]/"},
           {kLark, "start: t*\nt: u v\nu: \"x\"+\nv: \"x\"+"},
           {kLark, StrCat("start: x+ d*\nx: \"a\" | \"ab\" | x x\n", short_rows)},
           {kLark, StrCat("start: t*\nt: g | d\ng: /[a-z]*a[a-z]{40}7/\n", loops)}}) {
    const Walked walked = Walk(m, kind, text);
    EXPECT_THAT(walked.ends, HasSubstr("too costly here")) << text.substr(0, 80) << " " << walked.work;
    EXPECT_LT(walked.tokens, 300) << text.substr(0, 80);
    EXPECT_LT(walked.work, GrammarMatcher::kMostWork + 700'000)
        << text.substr(0, 80) << ": no more than one mask beyond";
  }
}

// llguidance bounds what it seeks in a terminal, but not behind its first byte, where these end 223 million bytes
// later.
TEST(GrammarWork, TerminalsThatAreCostlyBehindTheirFirstByteAreRefused) {
  const WorkModel m = LoadWorkModel();
  const std::string counts = "/(.{2})*/ & /(.{3})*/ & /(.{5})*/ & /(.{7})*/ & /(.{11})*/ & /(.{13})*/";
  const std::string text = StrCat("start: T\nT: ", counts, " & /(.{17})*/ & /(.{19})*/ & /(.{23})*/");
  EXPECT_THAT(Walk(m, GrammarKind::kLark, text).ends, HasSubstr("too costly behind their first bytes"));
  EXPECT_EQ(Walk(m, GrammarKind::kLark, "start: T\nT: /(.{2})*/ & /(.{3})*/").ends, "");
}

TEST(GrammarWork, WhatApplicationsAskForIsFarFromTooCostly) {
  const WorkModel m = LoadWorkModel();
  using enum GrammarKind;
  json optional = json::object(), values = json::array();
  for (int i = 0; i < 480; ++i) optional[StrCat("p", i)] = {{"type", "string"}, {"maxLength", 9}};
  for (int i = 0; i < 10000; ++i) values.push_back(StrCat("v", 4711 + i));
  std::string fields;
  for (int i = 0; i < 60; ++i) fields += StrCat(" (\"f", i, "=\" N \";\")?");
  const json object = {{"type", "object"}, {"properties", optional}, {"additionalProperties", false}};
  const json several = {{"type", "array"}, {"items", {{"enum", values}}}, {"minItems", 50}};
  const json texts = {{"type", "array"}, {"items", {{"type", "string"}, {"maxLength", 200}}}, {"minItems", 40}};
  for (const auto& [kind, text] : std::vector<std::pair<GrammarKind, std::string>>{
           {kJsonSchema, object.dump()},
           {kJsonSchema, several.dump()},
           {kJsonSchema, texts.dump()},
           {kJsonSchema, R"({"type":"integer","multipleOf":20000})"},
           {kRegex, "[A-Za-z ,.]{600,900}"},
           {kRegex, "([a-z]{1,12} ){100,200}[.]"},
           {kLark, StrCat("start: o+\no: \"<\" ", fields, " \">\"\nN: /[0-9]+/")},
           {kRegex, R"([^\n]{10,2000}\n)"},
           {kLark, "start: sum\nsum: sum \"+\" one | one\none: /[0-9]+/ | \"(\" sum \")\""}}) {
    const Walked walked = Walk(m, kind, text);
    EXPECT_LT(walked.work, GrammarMatcher::kMostWork / 3) << text.substr(0, 80);
    EXPECT_EQ(walked.ends, "") << text.substr(0, 80);
  }
}

}  // namespace
}  // namespace baton
