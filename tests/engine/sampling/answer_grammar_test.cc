// An answer's grammar: when its sequence may be planned, from where a fork goes on, and what ends with it.
#include "engine/sampling/answer_grammar.h"

#include <gtest/gtest.h>

#include <latch>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/step/fake_tokenizer.h"

namespace baton::engine {
namespace {

class AnswerGrammarAlone : public testing::Test {
 protected:
  std::shared_ptr<AnswerGrammar> Follow(std::string regex) {
    return pool_.Follow(std::make_shared<Grammar>(Grammar{GrammarKind::kRegex, std::move(regex)}), {});
  }
  /// The tokens that may come next.
  static std::vector<int32_t> Next(AnswerGrammar& answer) {
    const absl::Span<const uint32_t> mask = *answer.Mask({});
    std::vector<int32_t> tokens;
    for (int32_t token = 0; token < kFakeVocab; ++token) {
      if (AnyTokenAllowed(mask, {token}, {})) tokens.push_back(token);
    }
    return tokens;
  }

  const std::unique_ptr<Tokenizer> tokenizer_ = FakeTokenizer();
  GrammarPool pool_{std::shared_ptr<const GrammarCompiler>(*GrammarCompiler::Make(*tokenizer_, {kEos}, kFakeVocab)), 0};
};

using Tokens = std::vector<int32_t>;
constexpr int32_t kA = 0, kB = 1, kC = 2;

TEST_F(AnswerGrammarAlone, IsPlannedUntilAMaskWasWaitedForInVainAndIsSaidToBeReadyThen) {
  int ready = 0;
  pool_.OnReady([&] { ++ready; });
  const auto answer = Follow("[ab]+");
  EXPECT_FALSE(answer->MayBePlanned()) << "not before the first mask";
  pool_.Turn(1);
  EXPECT_TRUE(answer->MayBePlanned());
  EXPECT_EQ(ready, 1);
  answer->Advance(kA);
  EXPECT_TRUE(answer->MayBePlanned()) << "the mask will be there soon";
  pool_.Turn(1);
  EXPECT_EQ(ready, 1) << "nobody sat out";
  answer->Advance(kB);
  EXPECT_TRUE(answer->Mask({})->empty());
  EXPECT_FALSE(answer->MayBePlanned());
  pool_.Turn(1);
  EXPECT_TRUE(answer->MayBePlanned());
  EXPECT_EQ(ready, 2);
  EXPECT_EQ(Next(*answer), (Tokens{kA, kB, kEos}));
  pool_.OnReady(nullptr);
}

TEST_F(AnswerGrammarAlone, AForkGoesOnFromWhereTheOtherStands) {
  const auto answer = Follow("abc|cc");
  pool_.Turn(1);
  answer->Advance(kA);
  EXPECT_EQ(pool_.Fork(*answer), nullptr) << "its mask is not there";
  pool_.Turn(1);
  const auto fork = pool_.Fork(*answer);
  ASSERT_NE(fork, nullptr);
  EXPECT_TRUE(fork->MayBePlanned());
  EXPECT_EQ(Next(*fork), Tokens{kB});
  fork->Advance(kB);
  pool_.Turn(1);
  EXPECT_EQ(Next(*fork), Tokens{kC});
  EXPECT_EQ(Next(*answer), Tokens{kB}) << "which goes its own way";
}

/// Its mask was costly, so that what it has found out is given back on another thread; who makes masks has it last.
TEST(AnswerGrammar, OneThatNobodyFollowsWhenItsMaskIsThereKeepsTheThreadsFromNoOther) {
  const auto tokenizer = FakeTokenizer();
  GrammarPool pool(*GrammarCompiler::Make(*tokenizer, {kEos}, kFakeVocab), 2, /*slow=*/Duration());
  std::shared_ptr<AnswerGrammar> answer;
  std::latch followed(1), left(1);
  pool.OnReady([&] {
    followed.wait();
    if (std::exchange(answer, nullptr)) left.count_down();
  });
  answer = pool.Follow(std::make_shared<Grammar>(Grammar{GrammarKind::kRegex, "[ab]+"}), {});
  followed.count_down();
  left.wait();
  pool.OnReady(nullptr);
  const auto other = pool.Follow(std::make_shared<Grammar>(Grammar{GrammarKind::kRegex, "[bc]+"}), {});
  const auto mask = other->Mask(std::chrono::steady_clock::now() + std::chrono::seconds(60));
  ASSERT_TRUE(mask.ok()) << mask.status();
  EXPECT_FALSE(mask->empty());
}

}  // namespace
}  // namespace baton::engine
