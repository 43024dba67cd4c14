#include "router/dialect/thoughts.h"

#include <algorithm>

#include "absl/strings/str_replace.h"
#include "common/json.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "text/grammar_form.h"

namespace baton::router {
namespace {

constexpr std::string_view kOpen = "<think>", kClose = "</think>", kWhiteSpace = " \t\r\n";

std::string_view WithoutWhite(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(kWhiteSpace), text.size()));
}

size_t WithoutWhiteBehind(std::string_view text) { return text.find_last_not_of(kWhiteSpace) + 1; }

/// How many bytes at the end of `text` are white space, perhaps with the beginning of a closing tag behind it.
size_t HeldBehind(std::string_view text) {
  size_t tag = std::min(kClose.size() - 1, text.size());
  while (tag > 0 && !text.ends_with(kClose.substr(0, tag))) --tag;
  return text.size() - WithoutWhiteBehind(text.substr(0, text.size() - tag));
}

}  // namespace

bool ShowsThoughts(std::string_view source) { return source.find(kClose) != std::string_view::npos; }

ThoughtStart ThoughtStartOf(ThoughtForm form, const Tokenizer& tokenizer, absl::Span<const int32_t> prompt) {
  constexpr size_t kTail = 16;  // tokens that hold a tag and the white space behind it, also letter by letter
  if (form == ThoughtForm::kNone) return ThoughtStart::kNone;
  const std::string decoded = tokenizer.Decode(prompt.last(std::min(prompt.size(), kTail)), false);
  const std::string_view tail = std::string_view(decoded).substr(0, WithoutWhiteBehind(decoded));
  if (tail.ends_with(kOpen)) return ThoughtStart::kOpen;
  if (tail.ends_with(kClose)) return ThoughtStart::kClosed;
  return form == ThoughtForm::kUntagged ? ThoughtStart::kOpen : ThoughtStart::kMayOpen;
}

bool ThoughtTagsAreSpecial(const Tokenizer& tokenizer) {
  const std::optional<int32_t> close = tokenizer.TokenToId(kClose);
  return close && tokenizer.IsSpecial(*close);
}

ThoughtReader::ThoughtReader(ThoughtStart start)
    : place_(start == ThoughtStart::kNone   ? Place::kText
             : start == ThoughtStart::kOpen ? Place::kBeginning
                                            : Place::kBefore) {}

ThoughtReader::Piece ThoughtReader::Append(std::string_view text) {
  Piece piece;
  held_ += text;
  while (Step(piece)) {
  }
  return piece;
}

// False: nothing more can be said before more text comes.
bool ThoughtReader::Step(Piece& piece) {
  const std::string_view rest = WithoutWhite(held_);
  switch (place_) {
    case Place::kBefore:
    case Place::kBeginning:
      if (kOpen.starts_with(rest) && rest != kOpen) return false;
      if (rest.starts_with(kOpen)) {
        const std::string behind(rest.substr(kOpen.size()));
        held_ = behind;
        place_ = Place::kOpened;
        return true;
      }
      if (place_ == Place::kBeginning) held_ = std::string(rest);
      place_ = place_ == Place::kBeginning ? Place::kInside : Place::kText;
      return true;
    case Place::kOpened:
      if (rest.empty()) return false;
      held_ = std::string(rest);
      place_ = Place::kInside;
      return true;
    case Place::kInside: {
      const size_t at = held_.find(kClose);
      if (at == std::string::npos) {
        const size_t shown = held_.size() - HeldBehind(held_);
        piece.thoughts += held_.substr(0, shown);
        held_.erase(0, shown);
        return false;
      }
      piece.thoughts += held_.substr(0, WithoutWhiteBehind(std::string_view(held_).substr(0, at)));
      held_.erase(0, at + kClose.size());
      place_ = Place::kBehind;
      return true;
    }
    case Place::kBehind:
      if (rest.empty()) return false;
      held_ = std::string(rest);
      place_ = Place::kText;
      return true;
    case Place::kText: break;
  }
  piece.text += held_;
  held_.clear();
  return false;
}

ThoughtReader::Piece ThoughtReader::Finish() {
  Piece piece;
  if (place_ == Place::kBefore) piece.text = held_;
  if (place_ == Place::kInside || place_ == Place::kBeginning)
    piece.thoughts = held_.substr(0, WithoutWhiteBehind(held_));
  held_.clear();
  return piece;
}

std::string AllTokensBut(const Tokenizer& tokenizer, std::set<int32_t> left_out) {
  left_out.insert(tokenizer.eos_ids().begin(), tokenizer.eos_ids().end());
  left_out.insert(tokenizer.vocab_size());
  std::string ranges;
  int32_t first = 0;
  for (const int32_t id : left_out) {
    if (id > first) absl::StrAppend(&ranges, ranges.empty() ? "" : ",", first, "-", id - 1);
    first = id + 1;
  }
  return StrCat("<[", ranges, "]>");
}

namespace {

/// Lark for the rule `name`. An error: a grammar of rules that has no place in another.
absl::StatusOr<std::string> AnswerRule(const std::string& name, const Grammar& answer) {
  switch (answer.kind) {
    case GrammarKind::kJsonSchema: return StrCat(name, ": %json ", answer.text == "true" ? "{}" : answer.text, "\n");
    case GrammarKind::kRegex:
      return StrCat(name, ": /",
                    absl::StrReplaceAll(answer.text, {{"\\\\", "\\\\"}, {"\\/", "\\/"}, {"/", "\\/"}, {"\n", "\\n"}}),
                    "/\n");
    case GrammarKind::kChoice: {
      std::string choices;
      for (const auto& choice : nlohmann::json::parse(answer.text, nullptr, false))
        choices += StrCat(choices.empty() ? "" : " | ", choice.dump());
      return StrCat(name, ": CHOICE\nCHOICE: ", choices, "\n");
    }
    case GrammarKind::kLark: break;
  }
  BATON_ASSIGN_OR_RETURN(std::string rules, RulesBegunBy(name, answer.text));
  return rules + "\n";
}

/// What no name in a grammar of rules ends with: one more underscore than stand in a row in it.
std::string UnusedEnd(const Grammar& grammar) {
  size_t longest = 0, run = 0;
  if (grammar.kind == GrammarKind::kLark) {
    for (const char c : grammar.text) {
      run = c == '_' || c == '-' ? run + 1 : 0;
      longest = std::max(longest, run);
    }
  }
  return std::string(longest + 1, '_');
}

}  // namespace

std::variant<Grammar, std::string> AfterThoughts(const Grammar* answer, ThoughtStart start,
                                                 std::optional<int32_t> budget, const Tokenizer& tokenizer) {
  const std::optional<int32_t> open = tokenizer.TokenToId(kOpen), close = tokenizer.TokenToId(kClose);
  if (!open || !close) return "with a model whose thoughts do not stand between tokens of their own";
  const std::string inside = AllTokensBut(tokenizer, {*close});
  const std::string end = answer ? UnusedEnd(*answer) : "";
  std::string lark = StrCat("start: thoughts", end, " answer", end, "\n");
  absl::StrAppend(&lark, "thoughts", end, ": ", start == ThoughtStart::kOpen ? "" : StrCat("(<[", *open, "]> "));
  if (!budget) absl::StrAppend(&lark, inside, "*");
  if (budget && *budget > 0) absl::StrAppend(&lark, inside, "{0,", *budget, "}");
  absl::StrAppend(&lark, " <[", *close, "]>", answer ? StrCat(" WHITE", end, "?") : "",
                  start == ThoughtStart::kOpen ? "\n" : ")?\n");
  if (!answer) {
    absl::StrAppend(&lark, "answer: ", AllTokensBut(tokenizer, {*open}), "*\n");
    return Grammar{GrammarKind::kLark, std::move(lark)};
  }
  const auto rule = AnswerRule(StrCat("answer", end), *answer);
  if (!rule.ok()) return StrCat("behind thoughts: ", rule.status().message());
  return Grammar{GrammarKind::kLark, StrCat(lark, *rule, "WHITE", end, ": /[ \\n]{1,4}/\n")};
}

}  // namespace baton::router
