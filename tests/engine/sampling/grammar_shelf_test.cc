// Grammars that were asked for lately: each is compiled once, and the oldest make room.
#include "engine/sampling/grammar_shelf.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

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

}  // namespace
}  // namespace baton::engine
