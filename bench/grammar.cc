// What a grammar costs beside the model: to compile it, to begin an answer, and its masks, for a model's tokenizer.
//   bench_grammar MODEL [--json FILE]
// Each line is one grammar: those of applications first, then those of a tenant who wants to harm others.
#include "text/grammar.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "bench/lib/flags.h"
#include "bench/lib/measure.h"
#include "common/check.h"
#include "common/json.h"
#include "common/str_cat.h"
#include "text/grammar_form.h"
#include "text/tokenizer.h"

using namespace baton;
using baton::bench::SecondsOf;
using nlohmann::json;

namespace {

struct Case {
  const char* name;
  GrammarKind kind;
  std::string text;
};

std::string Repeat(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

/// As bench/guided.py has it, about 10 KB.
json Big(int salt) {
  json properties = json::object();
  for (int i = 0; i < 52; ++i) {
    properties[StrCat("p", salt, "_", i)] = {{"type", "object"},
                                             {"properties",
                                              {{"kind", {{"enum", {StrCat("a", salt, i), "b", "c"}}}},
                                               {"n", {{"type", "integer"}, {"minimum", i}}},
                                               {"text", {{"type", "string"}, {"maxLength", 20 + i}}}}},
                                             {"required", {"kind"}}};
  }
  return {{"type", "object"},
          {"additionalProperties", false},
          {"required", {StrCat("p", salt, "_0")}},
          {"properties", properties}};
}

/// As many fields of one format, about as large.
json Formatted(const char* format) {
  json properties = json::object(), required = json::array();
  for (int i = 0; i < 52; ++i) {
    properties[StrCat("the_field_of_number_", i)] = {
        {"type", "string"}, {"format", format}, {"description", std::string(100, 'x')}};
    required.push_back(StrCat("the_field_of_number_", i));
  }
  return {{"type", "object"}, {"additionalProperties", false}, {"required", required}, {"properties", properties}};
}

json Values(int count) {
  json values = json::array();
  for (int i = 0; i < count; ++i) values.push_back(StrCat("v", 4711 + i));
  return values;
}

constexpr std::string_view kGbnfJson = R"gbnf(
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ws
ws ::= | " " | "\n" [ \t]{0,20}
)gbnf";

std::vector<Case> Cases() {
  using enum GrammarKind;
  json person = {{"type", "object"},
                 {"properties", {{"name", {{"type", "string"}}}, {"age", {{"type", "integer"}}}}},
                 {"required", {"name", "age"}}};
  json strings = {{"type", "array"},
                  {"items", {{"type", "string"}, {"minLength", 20}, {"maxLength", 60}}},
                  {"minItems", 40},
                  {"maxItems", 60}};
  json optional = json::object();
  for (int i = 0; i < 1500; ++i) optional[StrCat("p", i)] = json::object();
  return {{"small schema", kJsonSchema, person.dump()},
          {"any object", kJsonSchema, R"({"type":"object"})"},
          {"regex", kRegex, "[A-Za-z ,.]{600,900}"},
          {"lower case", kRegex, "[a-z]{600,900}"},
          {"words", kRegex, "([a-z]{1,12} ){100,200}[.]"},
          {"phone numbers", kRegex, "([0-9]{3}-[0-9]{4}, ){40}"},
          {"short strings", kJsonSchema, strings.dump()},
          {"10 KB schema", kJsonSchema, Big(10).dump()},
          {"52 date-times", kJsonSchema, Formatted("date-time").dump()},
          {"52 dates", kJsonSchema, Formatted("date").dump()},
          {"52 times", kJsonSchema, Formatted("time").dump()},
          {"52 emails", kJsonSchema, Formatted("email").dump()},
          {"52 hostnames", kJsonSchema, Formatted("hostname").dump()},
          {"52 uuids", kJsonSchema, Formatted("uuid").dump()},
          {"10,000 enum values", kJsonSchema, json{{"enum", Values(10000)}}.dump()},
          {"40,000 choices", kChoice, Values(40000).dump()},
          {"nested counts", kRegex, "(((a{1,150}){1,300}){1,300}){1,300}"},
          {"many stars", kRegex, "([a-z]*[0-9]*){60}x(.*y){40}7"},
          {"(a|b)*c(a|b){200}", kJsonSchema, R"({"type":"string","pattern":"(a|b)*c(a|b){200}7"})"},
          {"multipleOf 99991", kJsonSchema, R"({"multipleOf":99991})"},
          {"1,500 properties", kJsonSchema, json{{"type", "object"}, {"properties", optional}}.dump()},
          {"3,000 brackets", kLark, "start: " + Repeat("(", 3000) + "\"a\"" + Repeat(")", 3000)},
          {"(.*a.{40}){3}z", kRegex, "(.*a.{40}){3}z"},
          {"the same in JSON", kJsonSchema, R"({"type":"string","pattern":"^(.*a.{40}){3}z$"})"},
          {"(.*a.{40}){30}z", kRegex, "(.*a.{40}){30}z"},
          {"(.*a){20}.{200}b", kRegex, "(.*a){20}.{200}b"},
          {"(.*a){200}.{500}b", kRegex, "(.*a){200}.{500}b"},
          {".*a.{1000}b", kRegex, ".*a.{1000}b"},
          {"a or b, c, d", kRegex, ".*(a|b).{1,200}c.{1,200}d77"},
          {"vowels", kRegex, "(.*[aeiou].{1,150}){1,3}z"},
          {"three kinds of a", kRegex, "((.*a){50}|(.*e){50}|(.*i){50}).{100}z"},
          {"words, any of", kRegex,
           R"(((.*\sa+|((?i:e)+[a-z]{1,60}(the|of|and|to)+){20}|([a-z]|.{150}|\w+){1,30})){2,60}z)"},
          {"(a+)+b", kRegex, "(a+)+b"},
          {"a|aa|aaa", kRegex, "(a|aa|aaa|aaaa){1,500}b"},
          {"x: x x", kLark, "start: x+\nx: \"a\" | \"ab\" | x x"},
          {"x: x x or letter", kLark, "start: x\nx: x x | /[a-z]/"},
          {"pairs of runs", kLark, "start: t*\nt: u v\nu: \"x\"+\nv: \"x\"+"},
          {"GBNF, JSON", kLark, std::string(kGbnfJson)},
          {"GBNF, a list", kLark, "root ::= (\"- \" [^\\n]+ \"\\n\")+"},
          {"a mirror", kLark, "start: x\nx: \"a\" x \"a\" | \"b\" x \"b\" | \"a\" | \"b\""}};
}

/// A walk by chance over what masks allow, at most 400 tokens; milliseconds of each Consume and Mask. `ends`: what is
/// said where it is too costly.
std::vector<double> Walk(GrammarMatcher& matcher, int32_t vocab_size, std::string& ends) {
  std::vector<uint32_t> mask((static_cast<size_t>(vocab_size) + 31) / 32);
  std::vector<double> took;
  std::mt19937 random(7);
  for (int i = 0; i < 400 && !matcher.HasEnded(); ++i) {
    std::vector<int32_t> allowed;
    absl::Status status;
    took.push_back(1e3 * SecondsOf([&] { status = matcher.Mask(absl::MakeSpan(mask)); }));
    ends = std::string(status.message());
    if (!status.ok()) break;
    for (int32_t id = 0; id < vocab_size; ++id) {
      if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
    }
    if (allowed.empty()) break;
    const int32_t next = allowed[random() % allowed.size()];
    took.back() += 1e3 * SecondsOf([&] { status = matcher.Consume({next}); });
    ends = std::string(status.message());
    if (!status.ok()) break;
  }
  return took;
}

json Measure(const GrammarCompiler& compiler, const Case& c) {
  absl::StatusOr<std::unique_ptr<GrammarMatcher>> made{nullptr};
  json line = {{"grammar", c.name}, {"bytes", c.text.size()}};
  line["form_ms"] = 1e3 * SecondsOf([&] { CheckForm({c.kind, c.text}).IgnoreError(); });
  line["compile_ms"] = 1e3 * SecondsOf([&] { made = compiler.Compile(c.kind, c.text); });
  if (!made.ok()) {
    line["refused"] = std::string(made.status().message()).substr(0, 60);
    return line;
  }
  std::unique_ptr<GrammarMatcher> copy;
  line["copy_ms"] = 1e3 * SecondsOf([&] { copy = *(*made)->Copy(); });
  std::string ends;
  std::vector<double> masks = Walk(*copy, compiler.vocab_size(), ends);
  line["tokens"] = masks.size();
  line["work"] = copy->Work();
  line["all_masks_ms"] = std::accumulate(masks.begin(), masks.end(), 0.0);
  line["ends"] = ends;
  line["first_mask_ms"] = masks.empty() ? -1 : masks.front();
  std::sort(masks.begin(), masks.end());
  line["mask_p50_ms"] = masks.empty() ? -1 : masks[masks.size() / 2];
  line["mask_max_ms"] = masks.empty() ? -1 : masks.back();
  return line;
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Flags flags(argc, argv, {"json"}, "MODEL [--json FILE]", 1);
  auto tokenizer = Tokenizer::OfModel(flags.word(0));
  BATON_CHECK(tokenizer.ok(), tokenizer.status().message());
  absl::StatusOr<std::unique_ptr<GrammarCompiler>> compiler{nullptr};
  const double load_ms = 1e3 * SecondsOf([&] {
                           compiler =
                               GrammarCompiler::Make(**tokenizer, (*tokenizer)->eos_ids(), (*tokenizer)->vocab_size());
                         });
  BATON_CHECK(compiler.ok(), compiler.status().message());
  std::printf("once per model: %.0f ms\n%-20s %8s %8s %10s %8s %10s %8s %8s %7s %8s %9s\n", load_ms, "grammar", "bytes",
              "form ms", "compile ms", "copy ms", "first mask", "p50", "max", "tokens", "all ms", "work");
  json out = {{"once_ms", load_ms}, {"grammars", json::array()}};
  for (const Case& c : Cases()) {
    const json line = Measure(**compiler, c);
    std::printf("%-20s %8zu %8.2f %10.1f ", c.name, c.text.size(), line["form_ms"].get<double>(),
                line["compile_ms"].get<double>());
    if (line.contains("refused")) {
      std::printf("%s\n", line["refused"].get<std::string>().c_str());
    } else {
      std::printf("%8.2f %10.2f %8.3f %8.2f %7d %8.1f %9lld %s\n", line["copy_ms"].get<double>(),
                  line["first_mask_ms"].get<double>(), line["mask_p50_ms"].get<double>(),
                  line["mask_max_ms"].get<double>(), line["tokens"].get<int>(), line["all_masks_ms"].get<double>(),
                  line["work"].get<long long>(), line["ends"].get<std::string>().substr(0, 60).c_str());
    }
    out["grammars"].push_back(line);
  }
  bench::WriteJson(flags("json"), out);
}
