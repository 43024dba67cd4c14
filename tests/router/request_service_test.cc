// Where a request that was submitted waits for its turn: nowhere, with long texts, or with grammars that compile.
#include "router/request/request_service.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "router/request/grammar_check.h"
#include "tests/router/driver_world.h"
#include "tests/router/fleet_world.h"
#include "text/grammar.h"

namespace baton::router {
namespace {

constexpr size_t kQueue = 8;

/// Pools that nobody works for, so that what waits there stays.
class RequestServiceTest : public FleetTest {
 protected:
  RequestServiceTest() {
    config_.canaries = false;
    Worker("a:1", WorkerRole::kBoth, "one");
    Start();
    List({"a:1"});
    const CallServices services{config_, model_, clock_, *fleet_, admission_, budget_, metrics_};
    service_ = std::make_unique<RequestService>(services, *fleet_, texts_, grammars_);
  }

  ~RequestServiceTest() override {  // while what the requests use is there
    fleet_->Stop();
    fleet_.reset();
  }

  std::string WaitsIn(RequestInput input) {
    const size_t texts = texts_.queued(), grammars = grammars_.queued();
    service_->Submit(loop_, std::move(input), std::make_shared<NotedSink>());
    if (texts_.queued() > texts) return "texts";
    return grammars_.queued() > grammars ? "grammars" : "nowhere";
  }
  static RequestInput Asks(Prompt prompt) {
    RequestInput input;
    input.prompt = std::move(prompt);
    return input;
  }
  static ChatPrompt LongChat() {
    ChatPrompt chat;
    chat.messages_json = StrCat(R"([{"role":"user","content":")", std::string(2 * kShortTextBytes, 'a'), R"("}])");
    return chat;
  }
  RequestInput AsksForAorB(bool behind_thoughts) {
    RequestInput input = Asks(TokensPrompt{1, 2, 3});
    input.sampling.grammar = grammar_;
    input.splits_thoughts = behind_thoughts;
    return input;
  }
  void Know(const Grammar& grammar) {
    const auto compiler =
        *GrammarCompiler::Make(*model_.tokenizer, model_.tokenizer->eos_ids(), model_.tokenizer->vocab_size());
    ASSERT_FALSE(model_.grammars->Check(grammar, "guided_regex", compiler->digest(), TimePoint::max()));
    ASSERT_TRUE(model_.grammars->Knows(grammar));
  }

  ModelText model_ = ModelText::Load("tests/data/tiny-llama", "", true, 8 << 20).value();
  const std::shared_ptr<const Grammar> grammar_ = std::make_shared<Grammar>(Grammar{GrammarKind::kRegex, "a|b"});
  Admission admission_{100, 1 << 20};
  RetryBudget budget_{0, 1, admission_};
  RouterMetrics metrics_{"m"};
  TextPool texts_{0, kQueue}, grammars_{0, kQueue};
  std::unique_ptr<RequestService> service_;
};

TEST_F(RequestServiceTest, AGrammarThatIsNewKeepsNoTextWaitingAndOneThatIsKnownIsATextLikeOthers) {
  EXPECT_EQ(WaitsIn(Asks(TextPrompt{std::string(2 * kShortTextBytes, 'a')})), "texts");
  EXPECT_EQ(WaitsIn(Asks(TokensPrompt{1, 2, 3})), "nowhere");
  EXPECT_EQ(WaitsIn(AsksForAorB(/*behind_thoughts=*/false)), "grammars");
  Know(*grammar_);
  EXPECT_EQ(WaitsIn(AsksForAorB(/*behind_thoughts=*/false)), "texts");
}

TEST_F(RequestServiceTest, WhatThoughtsMakeOfAGrammarIsNewAndABudgetForThemIsAGrammar) {
  Know(*grammar_);
  EXPECT_EQ(WaitsIn(AsksForAorB(/*behind_thoughts=*/true)), "grammars");
  RequestInput budget = Asks(LongChat());
  budget.splits_thoughts = true;
  EXPECT_EQ(WaitsIn(budget), "texts") << "thoughts alone have no grammar";
  budget.thinking_budget = 5;
  EXPECT_EQ(WaitsIn(budget), "grammars");
  budget.splits_thoughts = false;
  EXPECT_EQ(WaitsIn(budget), "texts") << "without thoughts there is nothing to hold to a budget";
}

TEST_F(RequestServiceTest, AChatThatWasSeenWaitsForNoTurn) {
  EXPECT_EQ(WaitsIn(Asks(LongChat())), "texts");
  for (int came = 0; came < 2; ++came) TokenizePrompt(model_, LongChat(), "");
  EXPECT_EQ(WaitsIn(Asks(LongChat())), "nowhere") << "there is no text to read";
}

}  // namespace
}  // namespace baton::router
