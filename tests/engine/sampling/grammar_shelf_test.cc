// Grammars that were asked for lately: each is compiled once, and the oldest make room.
#include "engine/sampling/grammar_shelf.h"

#include <gtest/gtest.h>

#include <ctime>
#include <latch>
#include <memory>
#include <string>
#include <vector>

#include "common/str_cat.h"
#include "tests/engine/step/fake_tokenizer.h"

namespace baton::engine {
namespace {

/// A shelf that compiles where it is asked.
class ShelvedHere : public testing::Test {
 protected:
  GrammarShelf::Shared Get(int number) {
    const auto grammar = std::make_shared<Grammar>(Grammar{GrammarKind::kRegex, std::string(number, 'a')});
    return shelf_.Get(grammar, {}, nullptr);
  }

  std::vector<std::shared_ptr<void>> given_back_;
  const std::unique_ptr<Tokenizer> tokenizer_ = FakeTokenizer();
  GrammarShelf shelf_{std::shared_ptr<const GrammarCompiler>(*GrammarCompiler::Make(*tokenizer_, {kEos}, kFakeVocab)),
                      {.at_once = 0, .give_back = [this](auto what) { given_back_.push_back(std::move(what)); }}};
};

TEST_F(ShelvedHere, AGrammarIsCompiledOnce) {
  const GrammarShelf::Shared first = Get(1);
  ASSERT_TRUE(first->NewMatcher().ok());
  EXPECT_EQ(Get(1), first);
  EXPECT_NE(Get(2), first);
  EXPECT_EQ(shelf_.counts().compiled, 2);
  EXPECT_EQ(shelf_.counts().known, 1);
  const auto other_kind = std::make_shared<Grammar>(Grammar{GrammarKind::kJsonSchema, "a"});
  EXPECT_FALSE(shelf_.Get(other_kind, {}, nullptr)->NewMatcher().ok()) << "the same text is no JSON schema";
  EXPECT_EQ(shelf_.counts().refused, 1);
}

TEST_F(ShelvedHere, TheOldestMakesRoomBeyondSixtyFour) {
  constexpr int kKept = 64;
  const GrammarShelf::Shared first = Get(1);
  for (int number = 2; number <= kKept; ++number) Get(number);
  EXPECT_EQ(Get(1), first);
  EXPECT_TRUE(given_back_.empty());
  Get(kKept + 1);
  ASSERT_EQ(given_back_.size(), 1u);
  EXPECT_EQ(given_back_[0], first);
  EXPECT_TRUE(first->NewMatcher().ok()) << "who has it keeps it";
  EXPECT_NE(Get(1), first);
  EXPECT_EQ(shelf_.counts().compiled, kKept + 2);
  EXPECT_EQ(given_back_.size(), 2u);
}

/// Four stand back and leave the one place to the fifth, which keeps it: more would take the cores from each other.
TEST(GrammarShelf, BehindFiveThatTakeLongAShortOneIsCompiledOnceOneOfThemHasEnded) {
  const auto tokenizer = FakeTokenizer();
  GrammarShelf shelf(*GrammarCompiler::Make(*tokenizer, {kEos}, kFakeVocab), {.at_once = 1, .give_back = [](auto) {}});
  const auto who = std::make_shared<int>();
  std::vector<std::string> compiled;  // the shelf's thread's until all are there
  std::latch missing(6);
  const auto get = [&](GrammarKind kind, const std::string& text) {
    shelf.Get(std::make_shared<Grammar>(Grammar{kind, text}), who, [&, text](const GrammarShelf::Shared&) {
      compiled.push_back(text);
      missing.count_down();
    });
  };
  for (const char* number : {"19973", "19979", "19991", "19993", "19997"})  // some 100 ms of work each
    get(GrammarKind::kJsonSchema, StrCat(R"({"multipleOf":)", number, "}"));
  get(GrammarKind::kRegex, "a");
  missing.wait();
  EXPECT_NE(compiled.front(), "a");
}

/// It is the thread that says what is there.
TEST(GrammarShelf, ItsThreadStandsStillWhileWhatTakesLongIsCompiled) {
  const auto tokenizer = FakeTokenizer();
  GrammarShelf shelf(*GrammarCompiler::Make(*tokenizer, {kEos}, kFakeVocab), {.at_once = 1, .give_back = [](auto) {}});
  const auto who = std::make_shared<int>();
  std::latch missing(3);
  int64_t worked_ns = 0;  // the shelf's thread's until all are there
  for (const char* number : {"19973", "19979", "19991"}) {
    shelf.Get(std::make_shared<Grammar>(Grammar{GrammarKind::kJsonSchema, StrCat(R"({"multipleOf":)", number, "}")}),
              who, [&](const GrammarShelf::Shared&) {
                timespec worked{};
                clock_gettime(CLOCK_THREAD_CPUTIME_ID, &worked);
                worked_ns = worked.tv_sec * 1'000'000'000 + worked.tv_nsec;
                missing.count_down();
              });
  }
  missing.wait();
  EXPECT_LT(worked_ns, shelf.counts().compile_ns / 100) << "of a core that others need";
}

/// What is there is given at once, and nothing is kept of who asked: a popular grammar is asked for without end.
TEST(GrammarShelf, WhoAsksForWhatIsThereIsNotRemembered) {
  const auto tokenizer = FakeTokenizer();
  GrammarShelf shelf(*GrammarCompiler::Make(*tokenizer, {kEos}, kFakeVocab), {.at_once = 1, .give_back = [](auto) {}});
  const auto grammar = std::make_shared<Grammar>(Grammar{GrammarKind::kRegex, "a"});
  const auto who = std::make_shared<int>();
  std::latch is_there(1);
  EXPECT_EQ(shelf.Get(grammar, who, [&](const GrammarShelf::Shared&) { is_there.count_down(); }), nullptr);
  is_there.wait();
  const auto kept = std::make_shared<int>();
  EXPECT_NE(shelf.Get(grammar, who, [kept](const GrammarShelf::Shared&) {}), nullptr);
  EXPECT_EQ(kept.use_count(), 1);
}

/// More are asked for at once than the shelf keeps, while it tells of the first one.
TEST(GrammarShelf, WhatMadeRoomBeforeItsTurnAndIsNotWaitedForIsNotCompiled) {
  const auto tokenizer = FakeTokenizer();
  GrammarShelf shelf(*GrammarCompiler::Make(*tokenizer, {kEos}, kFakeVocab), {.at_once = 1, .give_back = [](auto) {}});
  const auto who = std::make_shared<int>();
  auto nobody = std::make_shared<int>();
  std::latch first_is_there(1), goes_on(1), last_is_there(1);
  const auto get = [&](const std::string& text, const std::shared_ptr<int>& by, std::function<void()> then) {
    shelf.Get(std::make_shared<Grammar>(Grammar{GrammarKind::kRegex, text}), by,
              [then = std::move(then)](const GrammarShelf::Shared&) { then(); });
  };
  get("b", who, [&] {
    first_is_there.count_down();
    goes_on.wait();
  });
  first_is_there.wait();
  for (int number = 1; number <= 70; ++number) get(std::string(number, 'a'), nobody, [] {});
  nobody.reset();
  get("c", who, [&] { last_is_there.count_down(); });
  goes_on.count_down();
  last_is_there.wait();
  EXPECT_EQ(shelf.counts().compiled, 2);
}

}  // namespace
}  // namespace baton::engine
