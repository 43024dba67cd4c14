// Answers that follow a grammar and come by handoff: the grammar is compiled from the reservation on, on threads of its
// own, so that its first mask comes before the KV, with it, or long after it.
#include <gtest/gtest.h>

#include "desk_world.h"
#include "engine/sampling/answer_grammar.h"

namespace baton::decode_worker {
namespace {

using engine::GrammarPool;

/// Tokens 3 to 47 are a character each, from '!' to 'M'.
std::shared_ptr<GrammarPool> MakePool() {
  const auto tokenizer = Tokenizer::OfModel("tests/data/tiny-llama").value();
  return std::make_shared<GrammarPool>(
      std::shared_ptr<const GrammarCompiler>(
          GrammarCompiler::Make(*tokenizer, tokenizer->eos_ids(), engine::kFakeVocab).value()),
      0);
}

constexpr int32_t kZero = 18, kFour = 22;  ///< '0' and '4'
const Grammar kDigits{GrammarKind::kRegex, "[0-4]{30}"};

v1::Attach MakeGuided(const DeskWorld& w) {
  v1::Attach attach = w.MakeAttach();
  attach.mutable_sampling()->set_max_tokens(8);
  attach.mutable_sampling()->mutable_grammar()->set_kind(v1::Grammar::KIND_REGEX);
  attach.mutable_sampling()->mutable_grammar()->set_text(kDigits.text);
  attach.mutable_first(0)->set_token_id(kZero);
  return attach;
}

struct Handed {
  std::vector<int32_t> tokens;
  int steps_before_mask = 0;  ///< that did something
};

/// All of a handoff. The mask comes at the reservation, or `late` steps after the KV.
Handed HandOverGrammar(int late) {
  engine::SteppedEngineOptions options = worker::RelayOptions();
  const std::shared_ptr<GrammarPool> pool = options.grammars = MakePool();
  DeskWorld w(FenceKind::kReceiverWrites, options);
  EXPECT_TRUE(w.desk.Reserve(w.MakeReserve(), std::make_shared<Grammar>(kDigits)).status.ok());
  if (late == 0) {
    pool->Turn(10);
    EXPECT_EQ(pool->counts().compiled, 1) << "before the answer is attached";
  }
  w.Open();
  w.Attach(MakeGuided(w));
  w.Fill(0), w.Fill(1), w.Done(), w.Closed();
  Handed out;
  for (int i = 0; i < late; ++i) out.steps_before_mask += w.Step();
  EXPECT_EQ(pool->counts().known + pool->counts().compiled, late == 0 ? 1 : 0);
  pool->Turn(10);
  EXPECT_EQ(pool->counts().compiled, 1) << "once for both";
  while (w.Step()) pool->Turn(10), w.CheckOwners();
  for (const v1::RelayEntry& entry : w.sink->Of("r"))
    out.tokens.insert(out.tokens.end(), entry.token_ids().begin(), entry.token_ids().end());
  return out;
}

// That windows of sliding-window layers change nothing here is among what the simulated cluster shows (tests/sim).
TEST(TicketGrammar, NoTokenIsDrawnBeforeItsMaskHoweverLateAndTheTokensAreTheSame) {
  const Handed in_time = HandOverGrammar(0);
  EXPECT_EQ(in_time.tokens.size(), 7u) << "the first was drawn elsewhere";
  for (const int32_t token : in_time.tokens) EXPECT_TRUE(token >= kZero && token <= kFour) << token;
  for (const int late : {1, 5}) {
    const Handed handed = HandOverGrammar(late);
    EXPECT_EQ(handed.steps_before_mask, 0);
    EXPECT_EQ(handed.tokens, in_time.tokens) << "late by " << late;
  }
}

TEST(TicketGrammar, AReservationThatIsCancelledHasItsGrammarGivenUp) {
  engine::SteppedEngineOptions options = worker::RelayOptions();
  const std::shared_ptr<GrammarPool> pool = options.grammars = MakePool();
  DeskWorld w(FenceKind::kForcedClose, options);
  ASSERT_TRUE(w.desk.Reserve(w.MakeReserve(), std::make_shared<Grammar>(kDigits)).status.ok());
  EXPECT_EQ(pool->counts().following, 1);
  EXPECT_TRUE(w.desk.Cancel({"r", 0}));
  EXPECT_EQ(pool->counts().following, 0);
  EXPECT_EQ(pool->Turn(10), 0) << "nobody waits for it";
}

}  // namespace
}  // namespace baton::decode_worker
