// An Attach that names a ticket: who starts it, what is sent of it, how it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/step/requests.h"
#include "tests/worker/relay_fixture.h"

namespace baton::worker {
namespace {

/// Keeps what it is given; the test decides what happens.
class KeepingHost final : public TicketHost {
 public:
  absl::Status OnAttach(TicketAttach attach, engine::Scheduler&) override {
    if (!answer.ok()) return answer;
    attaches.push_back(std::move(attach));
    return absl::OkStatus();
  }
  void OnEnded(engine::RequestKey key) override { ended.push_back(key); }
  absl::Status answer;
  std::vector<TicketAttach> attaches;
  std::vector<engine::RequestKey> ended;
};

class RelayTicket : public testing::Test {
 protected:
  v1::Attach Attach(int32_t n = 1, int32_t max_tokens = 4) {
    v1::Attach a = MakeAttach("r", 1, 20, max_tokens);
    a.set_ticket("ticket");
    a.mutable_key()->set_epoch(3);
    a.set_position(21);
    a.mutable_sampling()->set_n(n);
    for (int i = 0; i < n; ++i) {
      v1::FirstToken& first = *a.add_first();
      first.set_index(static_cast<uint32_t>(i));
      first.set_token_id(5 + i);
    }
    return a;
  }
  void Say(const v1::Attach& attach) {
    v1::RelayUp up;
    *up.add_attach() = attach;
    book.OnMessage(sink, up, h.scheduler(), h.now);
  }
  void Cancel() {
    v1::RelayUp up;
    up.add_cancel()->set_request_id("r");
    up.mutable_cancel(0)->set_attach_gen(1);
    book.OnMessage(sink, up, h.scheduler(), h.now);
  }
  void RunAll() {
    for (;;) {
      engine::StepPlan plan = h.scheduler().PlanStep(h.now);
      book.OnOutputs(h.scheduler().TakeOutputs(), plan.step);
      if (plan.empty()) return;
      const auto result = h.executor().Execute(plan);
      ASSERT_TRUE(result.ok());
      h.now += std::chrono::milliseconds(1);
      book.OnOutputs(h.scheduler().Commit(plan, *result, h.now), plan.step);
    }
  }
  /// As the ticket desk does when the KV was lost.
  void ComputeHere(TicketStart how) {
    engine::Request request = host.attaches.at(0).request;
    if (how == TicketStart::kComputedHere) request.tokens.push_back(host.attaches[0].first.at(0).token);
    ASSERT_TRUE(h.Add(std::move(request)).ok());
    book.OnStarted(host.attaches[0].request.key, how, h.scheduler(), h.now);
  }

  engine::SteppedEngine h{RelayOptions()};
  KeepingHost host;
  RelayBook book{{.vocab_size = engine::kFakeVocab}, &host};
  std::shared_ptr<KeepingSink> sink = std::make_shared<KeepingSink>();
};

TEST_F(RelayTicket, TheHostGetsWhatTheRouterSaid) {
  v1::Attach attach = Attach(2);
  attach.mutable_first(1)->set_finish_reason(v1::FINISH_REASON_STOP);
  attach.mutable_sampling()->set_prompt_logprobs(2);
  Say(attach);
  ASSERT_EQ(host.attaches.size(), 1u);
  const TicketAttach& got = host.attaches[0];
  EXPECT_EQ(got.ticket, "ticket");
  EXPECT_EQ(got.epoch, 3u);
  EXPECT_EQ(got.position, 21u);
  ASSERT_EQ(got.first.size(), 1u) << "the other choice has ended";
  EXPECT_EQ(got.first[0].token, 5);
  EXPECT_EQ(got.request.sampling.prompt_logprobs, -1) << "the prefill leg has sent them";
  EXPECT_TRUE(sink->messages.empty());
}

TEST_F(RelayTicket, WithoutAHostItIsRefused) {
  RelayBook both{{.vocab_size = engine::kFakeVocab}};
  v1::RelayUp up;
  *up.add_attach() = Attach();
  both.OnMessage(sink, up, h.scheduler(), h.now);
  EXPECT_EQ(sink->LastOf("r").error().code(), static_cast<int>(absl::StatusCode::kUnavailable));
}

TEST_F(RelayTicket, AHostsRefusalEndsEveryChoiceAndIsForgotten) {
  host.answer = absl::UnavailableError("gone");
  Say(Attach(3));
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(sink->LastOf("r", i).error().message(), "gone") << i;
    EXPECT_EQ(sink->LastOf("r", i).position(), 20u) << i;
  }
  EXPECT_EQ(book.live(), 0u);
}

TEST_F(RelayTicket, ANumberOfChoicesThatCannotRunIsRefusedAndTheHostDoesNotHearOfIt) {
  for (const int32_t n : {0, h.scheduler().options().max_num_seqs + 1}) {
    v1::Attach attach = Attach();
    attach.mutable_sampling()->set_n(n);
    Say(attach);
    EXPECT_EQ(sink->LastOf("r").error().code(), static_cast<int>(absl::StatusCode::kInvalidArgument)) << n;
  }
  EXPECT_TRUE(host.attaches.empty());
  EXPECT_EQ(book.live(), 0u);
  v1::Attach most = Attach();
  most.mutable_sampling()->set_n(h.scheduler().options().max_num_seqs);
  Say(most);
  EXPECT_EQ(host.attaches.size(), 1u);
}

TEST_F(RelayTicket, WithoutAPrefillLegItsScoresAreComputedHere) {
  v1::Attach attach = Attach();
  attach.mutable_key()->set_epoch(0);
  attach.clear_first();
  attach.set_position(20);
  attach.mutable_sampling()->set_prompt_logprobs(2);
  Say(attach);
  EXPECT_EQ(host.attaches.at(0).request.sampling.prompt_logprobs, 2);
}

// Its place and its blocks would be nobody's.
TEST_F(RelayTicket, ATicketWhoseNewerAttachIsRefusedIsEnded) {
  Say(Attach());
  v1::Attach newer = Attach();
  newer.set_attach_gen(2);
  newer.set_prompt_len(21);
  Say(newer);
  EXPECT_EQ(sink->LastOf("r").error().code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(host.ended, testing::ElementsAre(host.attaches.at(0).request.key));
  EXPECT_EQ(book.live(), 0u);
}

TEST_F(RelayTicket, OfScoresThatThePrefillLegHasSentNothingIsSaidAgain) {
  v1::Attach attach = Attach();
  attach.mutable_sampling()->set_prompt_logprobs(2);
  Say(attach);
  ComputeHere(TicketStart::kComputedHere);
  RunAll();
  ASSERT_FALSE(sink->Of("r").empty());
  for (const v1::RelayEntry& entry : sink->Of("r")) EXPECT_FALSE(entry.prompt_logprobs_last());
}

TEST_F(RelayTicket, ALateErrorIsTheAnswerToo) {
  Say(Attach());
  book.EndWithError(host.attaches[0].request.key, absl::UnavailableError("late"));
  EXPECT_EQ(sink->LastOf("r").error().message(), "late");
  EXPECT_THAT(host.ended, testing::ElementsAre(host.attaches[0].request.key));
}

TEST_F(RelayTicket, ACancelBeforeItsKvCameEndsIt) {
  Say(Attach());
  Cancel();
  EXPECT_EQ(host.ended.size(), 1u);
  EXPECT_EQ(book.live(), 0u);
}

TEST_F(RelayTicket, AChoiceCancelledBeforeItsKvCameDoesNotRun) {
  Say(Attach(3, 4));
  v1::RelayUp up;
  up.add_cancel()->set_request_id("r");
  up.mutable_cancel(0)->set_attach_gen(1), up.mutable_cancel(0)->set_index(1);
  book.OnMessage(sink, up, h.scheduler(), h.now);
  ComputeHere(TicketStart::kComputedAgain);
  RunAll();
  EXPECT_EQ(sink->TokensOf("r", 0), 3u);
  EXPECT_EQ(sink->TokensOf("r", 1), 0u);
  EXPECT_EQ(book.live(), 0u) << "else it would wait for credit that nobody gives";
}

// What is kept of cancels is a bit for each choice.
TEST_F(RelayTicket, ManyCancelsAndCancelsOfNoChoiceOfItsAreOneCancel) {
  v1::Attach attach = Attach(3, 4);
  for (uint32_t i = 5; i < 8; ++i) attach.add_choices(i);
  Say(attach);
  v1::RelayUp up;
  for (int i = 0; i < 100'000; ++i) {
    v1::RelayCancel& cancel = *up.add_cancel();
    cancel.set_request_id("r");
    cancel.set_attach_gen(1), cancel.set_index(i % 4 < 3 ? 6 : static_cast<uint32_t>(i));
    if (cancel.index() == 5 || cancel.index() == 7) cancel.set_index(4);
  }
  book.OnMessage(sink, up, h.scheduler(), h.now);
  ComputeHere(TicketStart::kComputedAgain);
  RunAll();
  EXPECT_EQ(sink->TokensOf("r", 5), 3u);
  EXPECT_EQ(sink->TokensOf("r", 6), 0u);
  EXPECT_EQ(sink->TokensOf("r", 7), 3u);
  EXPECT_EQ(book.live(), 0u);
}

TEST_F(RelayTicket, ARouterThatLeavesEndsIt) {
  Say(Attach());
  book.OnStreamEnd(sink.get(), h.scheduler(), h.now);
  EXPECT_EQ(host.ended.size(), 1u);
}

TEST_F(RelayTicket, ComputedHereContinuesAfterTheFirstToken) {
  Say(Attach(1, 4));
  ComputeHere(TicketStart::kComputedHere);
  RunAll();
  EXPECT_EQ(sink->Of("r").front().position(), 21u);
  EXPECT_EQ(sink->TokensOf("r"), 3u);
  EXPECT_EQ(host.ended.size(), 1u);
}

TEST_F(RelayTicket, TokensBehindOnesThatTheClientHasKeepTheirPositions) {
  Say(Attach(1, 4));
  host.attaches.at(0).request.credit = 20;
  ComputeHere(TicketStart::kComputedAgain);
  RunAll();
  ASSERT_EQ(sink->TokensOf("r"), 0u) << "all four wait for credit";
  h.scheduler().SetCredit(host.attaches[0].request.key, 0, engine::kUnlimitedCredit, h.now);
  RunAll();
  EXPECT_EQ(sink->TokensOf("r"), 3u) << "the first one is the client's already";
  EXPECT_EQ(sink->Of("r").front().position(), 21u);
}

TEST_F(RelayTicket, ComputedAgainIsOverWhenEveryChoiceIs) {
  v1::Attach attach = Attach(3, 4);
  attach.mutable_first(0)->set_finish_reason(v1::FINISH_REASON_STOP);
  Say(attach);
  ComputeHere(TicketStart::kComputedAgain);
  RunAll();
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(sink->TokensOf("r", i), 3u) << i;
  EXPECT_EQ(book.live(), 0u);
}

TEST_F(RelayTicket, HandedOverIsOverWithItsLastChoiceWhenOthersHaveEndedBefore) {
  v1::Attach attach = Attach(3, 4);
  for (const int ended : {0, 2}) attach.mutable_first(ended)->set_finish_reason(v1::FINISH_REASON_STOP);
  Say(attach);
  TicketAttach& kept = host.attaches.at(0);
  const engine::RequestKey key = kept.request.key;
  ASSERT_TRUE(engine::AttachComputed(h, std::move(kept.request), std::move(kept.first)).ok());
  book.OnStarted(key, TicketStart::kHandedOver, h.scheduler(), h.now);
  RunAll();
  EXPECT_EQ(sink->TokensOf("r", 1), 3u);
  EXPECT_EQ(book.live(), 0u);
  EXPECT_EQ(host.ended.size(), 1u) << "and so is its ticket";
}

TEST_F(RelayTicket, TimingsAfterAHandoffAreTransferThenQueueThenDecode) {
  Say(Attach(1, 4));
  h.now += std::chrono::milliseconds(7);
  ComputeHere(TicketStart::kHandedOver);
  h.now += std::chrono::milliseconds(5);
  RunAll();
  const std::vector<v1::RelayEntry> news = sink->Of("r");
  EXPECT_FALSE(news.front().has_timings()) << "they come with the end";
  const v1::StageTimings& t = news.back().timings();
  EXPECT_DOUBLE_EQ(t.queue_prefill_ms(), 0) << "the prefill leg says it";
  EXPECT_DOUBLE_EQ(t.prefill_ms(), 0);
  EXPECT_DOUBLE_EQ(t.transfer_ms(), 7);
  EXPECT_DOUBLE_EQ(t.queue_decode_ms(), 5);
  EXPECT_DOUBLE_EQ(t.first_decode_ms(), 1);
  EXPECT_DOUBLE_EQ(t.decode_ms(), 4) << "four steps of 1 ms, without the queue";
}

TEST_F(RelayTicket, ComputedAgainSendsNothingTwice) {
  Say(Attach(3, 4));
  ComputeHere(TicketStart::kComputedAgain);
  RunAll();
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(sink->TokensOf("r", i), 3u) << i;
    for (const v1::RelayEntry& entry : sink->Of("r", i)) {
      EXPECT_TRUE(entry.token_ids_size() == 0 || entry.position() >= 21u);
    }
  }
  EXPECT_EQ(host.ended.size(), 1u);
  EXPECT_EQ(book.live(), 0u);
}

}  // namespace
}  // namespace baton::worker
