#include "router/dialect/call_grammar.h"

#include <algorithm>

#include "common/status.h"
#include "common/str_cat.h"
#include "router/dialect/argument_grammar.h"
#include "router/dialect/call_marks.h"

namespace baton::router {
namespace {

/// Between the parts of a call. Little of it: a model that writes white space for ever calls nothing.
constexpr std::string_view kGap = R"([ \n]{0,2})";

/// Up to the arguments of {"name": "f", "arguments": {…}}, as a regular expression.
std::string JsonHead(std::string_view name, std::string_view arguments) {
  return StrCat(R"(\{)", kGap, R"(("type")", kGap, ":", kGap, R"("function")", kGap, ",", kGap, R"()?"name")", kGap,
                ":", kGap, "\"", name, "\"", kGap, ",", kGap, "\"", arguments, "\"", kGap, ":", kGap);
}

/// Lark of the grammar's parts, one function after the other.
struct Parts {
  std::string calls;  ///< alternatives
  std::string rules;
};

/// For each function a rule call_I: `write` gives its right side, of its number, its name and the rule of its
/// arguments.
template <class Write>
absl::StatusOr<Parts> CallsOf(const CallForm& form, const std::vector<Callable>& functions, const Tokenizer& tokenizer,
                              Write write) {
  ArgumentRules arguments(form.writing, MarkOf(tokenizer, form.quotes.front()));
  Parts parts;
  for (size_t i = 0; i < functions.size(); ++i) {
    const Callable& one = functions[i];
    absl::StatusOr<std::string> rule = one.strict ? arguments.Strict(one.schema) : arguments.Free();
    if (!rule.ok())
      return absl::InvalidArgumentError(StrCat("the schema of ", one.name, " has ", rule.status().message()));
    parts.calls += StrCat(i > 0 ? " | " : "", "call_", i);
    parts.rules += StrCat("call_", i, ": ", write(i, one.name, *rule), "\n");
  }
  parts.rules += arguments.rules();
  return parts;
}

/// Where an answer is calls or text as a whole: what a text begins with that may be calls, behind the lead.
std::string Beginning(const CallForm& form, const std::vector<Callable>& functions) {
  constexpr std::string_view kAnyWhite = R"([ \t\r\n]*)";
  if (form.writing == CallWriting::kJson) return StrCat(R"(\{)", kAnyWhite, R"-("(name|parameters|arguments|type)")-");
  std::string names;
  for (const Callable& one : functions) names += StrCat(names.empty() ? "" : "|", one.name);
  return StrCat(R"(\[)", kAnyWhite, "(", names, R"()[( \t\r\n])");
}

/// Answers that are calls, or text that cannot become calls. The first call's head begins with the answer, or behind
/// the lead: as one terminal it ends where text that may go on ends to be possible.
absl::StatusOr<std::string> WholeAnswers(const CallForm& form, const std::vector<Callable>& functions,
                                         const Tokenizer& tokenizer) {
  const bool python = form.writing == CallWriting::kPython;
  const Mark lead = MarkOf(tokenizer, form.lead);
  const auto head = [&](std::string_view name) {
    return python ? StrCat(name, R"(\()") : JsonHead(name, "parameters");
  };
  std::string first, rules;
  for (size_t i = 0; i < functions.size(); ++i) {
    const std::string open = StrCat(kGap, python ? R"(\[[ \n]{0,2})" : "", head(functions[i].name));
    first += StrCat(i > 0 ? " | " : "", "(FIRST_", i, lead.token ? StrCat(" | ", lead.Lark(), " LED_", i) : "",
                    ") rest_", i);
    rules += StrCat("FIRST_", i, ": /", kGap, lead.token ? "" : StrCat("(", RegexOf(lead.text), ")?"), open, "/\n");
    if (lead.token) rules += StrCat("LED_", i, ": /", open, "/\n");
  }
  const auto write = [&](size_t i, std::string_view name, std::string_view arguments) {
    return StrCat("HEAD_", i, " rest_", i, "\nHEAD_", i, ": /", head(name), "/\nrest_", i, ": ", arguments, " END");
  };
  BATON_ASSIGN_OR_RETURN(const Parts parts, CallsOf(form, functions, tokenizer, write));
  const std::string closed = python ? StrCat(R"( "]" ()", MarkOf(tokenizer, "<|python_end|>").Lark(), ")?") : "";
  return StrCat("start: TEXT? | (", first, ") (BETWEEN (", parts.calls, "))*", closed, "\n", rules,
                "TEXT: /(?s:.+)/ & ~/[ \\t\\r\\n]*(", RegexOf(form.lead), ")?[ \\t\\r\\n]*", Beginning(form, functions),
                "(?s:.*)/\nBETWEEN: /", kGap, python ? "," : "[;,]?", kGap, "/\nEND: /", kGap,
                python ? R"(\))" : R"(\})", "/\n", parts.rules);
}

/// Text up to a mark. Letters of a mark are one lazy terminal with the text before them, so that no text goes on behind
/// them as if they were none; where the mark is a token, no text may spell it.
std::string TextAndMark(const Mark& open) {
  if (open.token) return StrCat("before: REST? ", open.Lark(), "\nREST: ", TextWithout(RegexOf(open.text)), "\n");
  return StrCat("before[lazy]: /(?s:.*)/ ", open.Lark(), "\nREST: /(?s:.+)/\n");
}

/// Calls between marks, with text around them.
absl::StatusOr<std::string> MarkedCallsGrammar(const CallForm& form, const std::vector<Callable>& functions,
                                               const Tokenizer& tokenizer) {
  const bool gemma = form.writing == CallWriting::kGemma;
  const auto write = [&](size_t i, std::string_view name, std::string_view arguments) {
    if (gemma) return StrCat(Quoted(StrCat("call:", name)), " ", arguments);
    return StrCat("HEAD_", i, " ", arguments, " END\nHEAD_", i, ": /", kGap, JsonHead(name, "arguments"), "/");
  };
  BATON_ASSIGN_OR_RETURN(const Parts parts, CallsOf(form, functions, tokenizer, write));
  return StrCat("start: (before (", parts.calls, ") ", MarkOf(tokenizer, form.close).Lark(), ")* REST?\n",
                TextAndMark(MarkOf(tokenizer, form.open)), gemma ? "" : StrCat("END: /", kGap, R"(\})", kGap, "/\n"),
                parts.rules);
}

/// Calls that go on to the next mark, or to the end: nothing stands behind them.
absl::StatusOr<std::string> CallsToTheEnd(const CallForm& form, const std::vector<Callable>& functions,
                                          const Tokenizer& tokenizer) {
  std::string single;
  const auto write = [&](size_t i, std::string_view name, std::string_view arguments) {
    single += StrCat(" | NAME_", i, " args_mark? ", arguments);
    return StrCat("HEAD_", i, " ", arguments, " END\nHEAD_", i, ": /", JsonHead(name, "arguments"), "/\nNAME_", i,
                  ": /", kGap, name, "/");
  };
  BATON_ASSIGN_OR_RETURN(const Parts parts, CallsOf(form, functions, tokenizer, write));
  const Mark open = MarkOf(tokenizer, form.open);
  return StrCat("start: REST? | before calls (", open.Lark(), " calls)*\n", TextAndMark(open), "calls: OPEN (",
                parts.calls, ") (BETWEEN (", parts.calls, "))* CLOSE", single, "\nOPEN: /", kGap, R"(\[)", kGap,
                "/\nBETWEEN: /", kGap, ",", kGap, "/\nCLOSE: /", kGap, R"(\])", "/\nEND: /", kGap, R"(\})",
                "/\nargs_mark: ", MarkOf(tokenizer, "[ARGS]").Lark(), "\n", parts.rules);
}

}  // namespace

absl::StatusOr<std::string> FreeCallGrammar(const CallForm& form, const std::vector<Callable>& functions,
                                            const Tokenizer& tokenizer) {
  if (std::ranges::none_of(functions, &Callable::strict)) return std::string();
  if (form.open.empty()) return WholeAnswers(form, functions, tokenizer);
  if (form.close.empty()) return CallsToTheEnd(form, functions, tokenizer);
  return MarkedCallsGrammar(form, functions, tokenizer);
}

}  // namespace baton::router
