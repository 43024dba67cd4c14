// How long a client waits until it hears whether its grammar can be followed.
#include "router/request/grammar_check.h"

#include <gtest/gtest.h>

#include "common/str_cat.h"

namespace baton::router {
namespace {

class GrammarCheckTest : public testing::Test {
 protected:
  static const Tokenizer& TokenizerHere() {
    static const auto tokenizer = *Tokenizer::OfModel("tests/data/tiny-llama");
    return *tokenizer;
  }
  static const std::string& Digest() {
    static const std::string digest =
        (*GrammarCompiler::Make(TokenizerHere(), TokenizerHere().eos_ids(), TokenizerHere().vocab_size()))->digest();
    return digest;
  }
  std::optional<ApiError> Ask(const Grammar& grammar, TimePoint until = TimePoint::max()) {
    return check_.Check(grammar, "guided_json", Digest(), until);
  }
  /// Takes some 100 ms, each another one.
  static Grammar Long(size_t i) {
    return {GrammarKind::kJsonSchema, StrCat(R"({"multipleOf":19997,"minimum":)", i, "}")};
  }

  GrammarCheck check_{TokenizerHere(), Duration()};
};

TEST_F(GrammarCheckTest, AGrammarThatHasHadNoTimeDoesNotTakeTooLong) {
  GrammarCheck check(TokenizerHere());
  EXPECT_FALSE(check.Check({GrammarKind::kRegex, "a|b"}, "guided_regex", Digest(), TimePoint()))
      << "the time is over, and none was had";
  GrammarCheck strict(TokenizerHere(), std::chrono::milliseconds(5));
  const auto refused = strict.Check(Long(0), "guided_json", Digest(), TimePoint());
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->http_status, 400) << refused->message;
}

TEST_F(GrammarCheckTest, AGrammarThatHasNotCompiledInTimeIsRefusedByName) {
  const auto refused = Ask(Long(0), TimePoint());
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->http_status, 400);
  EXPECT_EQ(refused->param, "guided_json");
  EXPECT_NE(refused->message.find("too long"), std::string::npos) << refused->message;
  EXPECT_FALSE(check_.Knows(Long(0)));
  EXPECT_EQ(check_.counts().refused, 1);
}

TEST_F(GrammarCheckTest, OnesThatWereGivenUpDelayOthersOnlyWhileTheyCompile) {
  for (size_t i = 0; i < GrammarCheck::MostAtOnce(); ++i) ASSERT_EQ(Ask(Long(i), TimePoint())->http_status, 400);
  const Grammar quick{GrammarKind::kRegex, "a|b"};
  const auto refused = Ask(quick, TimePoint());
  ASSERT_TRUE(refused) << "all turns are taken";
  EXPECT_EQ(refused->http_status, 429);
  EXPECT_GT(refused->retry_after_ms, 0);
  EXPECT_FALSE(Ask(quick)) << "waits for a turn";
  EXPECT_TRUE(check_.Knows(quick));
  EXPECT_FALSE(Ask(quick, TimePoint())) << "what is known needs no turn";
}

TEST_F(GrammarCheckTest, WhatTheMachineHadNoTimeForIsKnownOnceItHasCompiled) {
  GrammarCheck busy(TokenizerHere(), std::chrono::hours(1), Duration());
  const auto ask = [&](const Grammar& grammar, TimePoint until) {
    return busy.Check(grammar, "guided_json", Digest(), until);
  };
  const auto refused = ask(Long(0), TimePoint());
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->http_status, 429) << refused->message;
  for (size_t i = 1; !busy.Knows(Long(0)); ++i) {
    ASSERT_LT(i, 20'000u) << "others compile, and it is thrown away";
    ASSERT_FALSE(ask({GrammarKind::kRegex, StrCat("a|b{", i, "}")}, TimePoint::max()));
  }
  EXPECT_FALSE(ask(Long(0), TimePoint()));
}

TEST_F(GrammarCheckTest, WhoAsksAgainWaitsForTheOneThatCompiles) {
  GrammarCheck busy(TokenizerHere(), std::chrono::hours(1), Duration());
  for (size_t i = 0; i < GrammarCheck::MostAtOnce(); ++i)
    ASSERT_EQ(busy.Check(Long(i), "guided_json", Digest(), TimePoint())->http_status, 429);
  const auto again = busy.Check(Long(0), "guided_json", Digest(), TimePoint());
  const std::string said = again ? again->message : "has had its time";
  EXPECT_NE(said.find("has had"), std::string::npos) << said << ": it needs no turn";
  EXPECT_FALSE(busy.Check(Long(0), "guided_json", Digest(), TimePoint::max()));
}

TEST_F(GrammarCheckTest, WhatTakesTooLongIsRefusedAgain) {
  GrammarCheck strict(TokenizerHere(), std::chrono::milliseconds(5));
  for (int i = 0; i < 100; ++i) {
    const auto refused = strict.Check(Long(0), "guided_json", Digest(), TimePoint());
    ASSERT_TRUE(refused) << i;
    ASSERT_EQ(refused->http_status, 400) << refused->message;
  }
}

TEST_F(GrammarCheckTest, WhatCompilesSoonWaitsForNoneThatHasTakenLong) {
  GrammarCheck check(TokenizerHere(), std::chrono::milliseconds(10));
  for (size_t i = 0; i < GrammarCheck::MostAtOnce() / 2; ++i)
    check.Check(Long(i), "guided_json", Digest(), TimePoint());  // given up, and compiled to its end
  const auto refused = check.Check({GrammarKind::kRegex, "a|b"}, "guided_regex", Digest(), TimePoint());
  EXPECT_FALSE(refused) << refused->message;
}

TEST_F(GrammarCheckTest, AFaultThatIsCheapToFindDoesNotWaitForATurn) {
  const std::pair<Grammar, const char*> faults[] = {
      {{GrammarKind::kJsonSchema, R"({"properties":{"a":{"unevaluatedItems":false}}})"},
       "#/properties/a/unevaluatedItems"},
      {{GrammarKind::kJsonSchema, R"({"$ref":"#"})"}, "without an end"},
      {{GrammarKind::kJsonSchema, R"({"type":"strin"})"}, "strin"},
      {{GrammarKind::kJsonSchema, "{"}, "not JSON"},
      {{GrammarKind::kRegex, "(?=a)b"}, "look-around"},
      {{GrammarKind::kChoice, "[]"}, "no choice"}};
  std::vector<std::string> idle;
  for (const auto& [grammar, says] : faults) {
    const auto refused = Ask(grammar);
    ASSERT_TRUE(refused) << grammar.text;
    EXPECT_NE(refused->message.find(says), std::string::npos) << refused->message;
    idle.push_back(refused->message);
  }
  for (size_t i = 0; i < GrammarCheck::MostAtOnce(); ++i) ASSERT_EQ(Ask(Long(i), TimePoint())->http_status, 400);
  for (size_t i = 0; i < std::size(faults); ++i) {
    const auto refused = Ask(faults[i].first, TimePoint());
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->http_status, 400);
    EXPECT_EQ(refused->message, idle[i]) << "the same as where nobody else compiles";
  }
}

}  // namespace
}  // namespace baton::router
