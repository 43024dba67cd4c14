// Thoughts: taken out of an answer's text however it is cut, counted by tokens, and put before a grammar.
#include "router/dialect/thoughts.h"

#include <gmock/gmock.h>

#include <memory>
#include <utility>

#include "common/str_cat.h"
#include "more_tokens.h"
#include "router/request/choice_text.h"
#include "router/request/request_input.h"
#include "router/request_types.h"
#include "text/grammar.h"

namespace baton::router {
namespace {

using testing::HasSubstr;

/// Thoughts and text of an answer that comes in these pieces.
std::string SeenThoughts(ThoughtStart start, const std::vector<std::string>& pieces) {
  ThoughtReader reader(start);
  std::string thoughts, text;
  const auto take = [&](const ThoughtReader::Piece& piece) {
    EXPECT_TRUE(text.empty() || piece.thoughts.empty()) << "thoughts come before the text";
    thoughts += piece.thoughts;
    text += piece.text;
  };
  for (const std::string& piece : pieces) take(reader.Append(piece));
  take(reader.Finish());
  return StrCat(thoughts, "|", text);
}

TEST(ThoughtReader, SplitsTheSameHoweverTheTextIsCut) {
  constexpr auto kMayOpen = ThoughtStart::kMayOpen, kOpen = ThoughtStart::kOpen, kNone = ThoughtStart::kNone;
  const std::tuple<ThoughtStart, const char*, const char*> cases[] = {
      {kMayOpen, "<think>\na b\n</think>\n\nyes ", "a b|yes "},
      {kMayOpen, " <think> </think>x", "|x"},
      {kMayOpen, "<think>a </thin </think>b</think>", "a </thin|b</think>"},
      {kMayOpen, " yes <think>a</think>", "| yes <think>a</think>"},
      {kMayOpen, "<thin", "|<thin"},
      {ThoughtStart::kClosed, "<think>a</think>b", "a|b"},
      {kMayOpen, "<think>a ", "a|"},
      {kOpen, "\na\n\nb\n</think>\nc", "a\n\nb|c"},
      {kOpen, "<think>a</think>b", "a|b"},
      {kOpen, "</think>\n", "|"},
      {kOpen, "a</th", "a</th|"},
      {kOpen, " \n", "|"},
      {kNone, "<think>a</think>b", "|<think>a</think>b"},
  };
  for (const auto& [start, text, seen] : cases) {
    const std::string whole = text;
    for (size_t first = 0; first <= whole.size(); ++first) {
      for (size_t second = first; second <= whole.size(); ++second) {
        ASSERT_EQ(
            SeenThoughts(start, {whole.substr(0, first), whole.substr(first, second - first), whole.substr(second)}),
            seen)
            << text << " " << first << " " << second;
      }
    }
  }
}

std::unique_ptr<Tokenizer> Thinker(bool special = false) { return TinyWith({"<think>", "</think>"}, special); }

TEST(ThoughtStart, IsWhereThePromptEnds) {
  const auto tokenizer = Thinker();
  const auto start = [&](ThoughtForm form, const char* prompt) {
    const std::vector<int32_t> ids = *tokenizer->Encode(prompt, false);
    return ThoughtStartOf(form, *tokenizer, ids);
  };
  EXPECT_EQ(start(ThoughtForm::kTagged, "hi <think>\n"), ThoughtStart::kOpen);
  EXPECT_EQ(start(ThoughtForm::kTagged, "hi <think> x"), ThoughtStart::kMayOpen);
  EXPECT_EQ(start(ThoughtForm::kTagged, ""), ThoughtStart::kMayOpen);
  EXPECT_EQ(start(ThoughtForm::kUntagged, "hi"), ThoughtStart::kOpen);
  EXPECT_EQ(start(ThoughtForm::kUntagged, "<think>\n\n</think>\n\n"), ThoughtStart::kClosed);
  EXPECT_EQ(start(ThoughtForm::kTagged, "<think>\n\n</think>\n\n"), ThoughtStart::kClosed);
  EXPECT_EQ(start(ThoughtForm::kNone, "<think>"), ThoughtStart::kNone);
}

TEST(ThoughtTags, MayBeSpecialTokens) {
  EXPECT_FALSE(ThoughtTagsAreSpecial(*Thinker()));
  EXPECT_TRUE(ThoughtTagsAreSpecial(*Thinker(/*special=*/true)));
  EXPECT_FALSE(ThoughtTagsAreSpecial(*Tokenizer::FromHfDirectory("tests/data/tiny-llama").value()));
}

TEST(ChoiceText, ThoughtsAreCountedByTheirTokens) {
  const auto tokenizer = Thinker();
  const auto count = [&](ThoughtStart start, const char* answer) {
    ChoiceText choice(*tokenizer, TokenizedRequest{}, StopMatcher::Create({}, false).value(), start);
    const std::vector<int32_t> ids = *tokenizer->Encode(answer, false);
    for (const int32_t id : ids) choice.Append(id, true);
    choice.Finish();
    return std::pair(choice.thought_tokens().value_or(-1), choice.tokens());
  };
  EXPECT_EQ(count(ThoughtStart::kMayOpen, "<think>!!!</think>##"), std::pair(5, 7));
  EXPECT_EQ(count(ThoughtStart::kOpen, "!!!</think>##"), std::pair(4, 6));
  EXPECT_EQ(count(ThoughtStart::kOpen, "!!!"), std::pair(3, 3));
  EXPECT_EQ(count(ThoughtStart::kMayOpen, "##"), std::pair(0, 2));
  EXPECT_EQ(count(ThoughtStart::kNone, "##").first, -1);
}

class AfterThoughtsTest : public testing::Test {
 protected:
  /// Whether the answer fits, from its first token to its end.
  bool Takes(const Grammar& grammar, const std::string& answer) {
    auto matcher = compiler_->Compile(grammar.kind, grammar.text);
    EXPECT_TRUE(matcher.ok()) << matcher.status() << "\n" << grammar.text;
    const std::vector<int32_t> ids = *tokenizer_->Encode(answer, false);
    return matcher.ok() && (*matcher)->Consume(ids).ok() && (*matcher)->MayEnd();
  }
  Grammar After(const Grammar* answer, ThoughtStart start, std::optional<int32_t> budget) {
    auto made = AfterThoughts(answer, start, budget, *tokenizer_);
    EXPECT_TRUE(std::holds_alternative<Grammar>(made)) << std::get<std::string>(made);
    return std::get<Grammar>(made);
  }
  /// What workers hear of such a request, where the model thinks from the first token on; null: no grammar.
  static std::shared_ptr<const Grammar> Sent(std::shared_ptr<const Grammar> of_answer, std::optional<int32_t> budget) {
    ModelText model;
    model.tokenizer = Thinker();
    model.grammars = std::make_shared<GrammarCheck>(*model.tokenizer);
    WorkerFacts facts;
    facts.max_model_len = 100, facts.vocab_size = model.tokenizer->vocab_size();
    facts.tokenizer_digest =
        (*GrammarCompiler::Make(*model.tokenizer, model.tokenizer->eos_ids(), facts.vocab_size))->digest();
    RouterConfig config;
    config.reasoning_parser = "deepseek_r1";
    RequestInput input;
    input.prompt = TokensPrompt{5, 6};
    input.splits_thoughts = true;
    input.thinking_budget = budget;
    input.sampling.grammar = std::move(of_answer);
    auto made = Prepare(model, facts, config, std::move(input));
    const auto* error = std::get_if<ApiError>(&made);
    EXPECT_EQ(error, nullptr) << error->message;
    return error != nullptr ? nullptr : std::get<PreparedRequest>(made).generation.sampling.grammar;
  }

  std::unique_ptr<Tokenizer> tokenizer_ = Thinker();
  std::unique_ptr<GrammarCompiler> compiler_ =
      *GrammarCompiler::Make(*tokenizer_, tokenizer_->eos_ids(), tokenizer_->vocab_size() + 10);
};

TEST_F(AfterThoughtsTest, EveryKindOfGrammarIsOfTheAnswer) {
  const std::tuple<GrammarKind, const char*, const char*, const char*> cases[] = {
      {GrammarKind::kJsonSchema, R"({"enum":["a/b"]})", R"("a/b")", "1"},
      {GrammarKind::kJsonSchema, "true", "[1]", "x"},
      {GrammarKind::kRegex, R"(a/b\/[c\\]\n)", "a/b/c\n", "a"},
      {GrammarKind::kChoice, R"(["yes","it \"is\"/"])", "it \"is\"/", "no"},
      {GrammarKind::kLark, "start: one\none: \"1\"", "1", "2"},
      {GrammarKind::kLark,
       "\n# start\nanswer: /start/ \"\\\"start:\" // \"\nstart: answer thoughts | %json "
       "{\"const\":\"start\"}\nthoughts: WHITE\nWHITE: \"!\"",
       "start\"start:!", "start"},
      {GrammarKind::kLark, "start: x %lark {\nstart: \"b}\" y{1,2}\ny: /[}]/  # }\n}\nx: \"a\"", "ab}}}", "ab}"},
      {GrammarKind::kLark, "start: x_\nx_: \"(\" start? \")\"", "(())", "(()"},
      {GrammarKind::kLark, "\nroot ::= answer__ \"/\" start\nanswer__ ::= [a-c]+\nstart ::= \"start\"\n", "ab/start",
       "/start"},
  };
  for (const auto& [kind, text, good, bad] : cases) {
    const Grammar answer{kind, text};
    SCOPED_TRACE(text);
    const Grammar open = After(&answer, ThoughtStart::kOpen, std::nullopt);
    EXPECT_TRUE(Takes(open, StrCat("hm\n</think>\n\n", good)));
    EXPECT_FALSE(Takes(open, StrCat("hm\n</think>", bad)));
    EXPECT_FALSE(Takes(open, good)) << "the thoughts have no end";
    const Grammar may_open = After(&answer, ThoughtStart::kMayOpen, std::nullopt);
    EXPECT_TRUE(Takes(may_open, good));
    EXPECT_TRUE(Takes(may_open, StrCat("<think>hm</think>", good)));
    EXPECT_FALSE(Takes(may_open, bad));
  }
}

TEST_F(AfterThoughtsTest, ABudgetCountsTokens) {
  for (const int32_t budget : {0, 1, 7, 100, 30000}) {
    const Grammar grammar = After(nullptr, ThoughtStart::kOpen, budget);
    const std::string all(static_cast<size_t>(std::min(budget, 200)), '!');
    EXPECT_TRUE(Takes(grammar, StrCat(all, "</think>and so on")));
    if (budget < 200) {
      EXPECT_FALSE(Takes(grammar, StrCat(all, "!</think>")));
    }
    EXPECT_TRUE(Takes(After(nullptr, ThoughtStart::kMayOpen, budget), "no thoughts"));
  }
}

TEST_F(AfterThoughtsTest, ARequestIsHeldToItsGrammarBehindThemAndToItsBudgetAndOtherwiseToNothing) {
  EXPECT_EQ(Sent(nullptr, std::nullopt), nullptr);
  const auto held = Sent(std::make_shared<const Grammar>(Grammar{GrammarKind::kRegex, "[ab]c"}), std::nullopt);
  ASSERT_NE(held, nullptr);
  EXPECT_TRUE(Takes(*held, "as many thoughts as it likes</think>ac"));
  EXPECT_FALSE(Takes(*held, "ac"));
  const auto short_thoughts = Sent(nullptr, 2);
  ASSERT_NE(short_thoughts, nullptr);
  EXPECT_FALSE(Takes(*short_thoughts, "as many thoughts as it likes</think>ac"));
}

TEST_F(AfterThoughtsTest, WhatCannotBeDoneIsSaid) {
  for (const auto& [text, says] : {std::pair{"root ::= a", "`a` is used and not defined"},
                                   {"one: \"1\"", "no rule `start`"},
                                   {"start: \"a\"\n%ignore /x/", "%ignore holds for a whole grammar"}}) {
    const Grammar answer{GrammarKind::kLark, text};
    const auto own = AfterThoughts(&answer, ThoughtStart::kOpen, std::nullopt, *tokenizer_);
    EXPECT_THAT(std::get<std::string>(own), HasSubstr(says));
  }
  const auto plain = Tokenizer::FromHfDirectory("tests/data/tiny-llama").value();
  const auto tags = AfterThoughts(nullptr, ThoughtStart::kOpen, 3, *plain);
  EXPECT_THAT(std::get<std::string>(tags), HasSubstr("tokens of their own"));
}

}  // namespace
}  // namespace baton::router
