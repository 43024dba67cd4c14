#include "worker/relay/relay_book.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/relay_fixture.h"

namespace baton::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::shared_ptr<KeepingSink> Stream() { return std::make_shared<KeepingSink>(); }
absl::StatusCode Code(const v1::RelayEntry& e) { return static_cast<absl::StatusCode>(e.error().code()); }

TEST(RelayBook, ARequestStreamsToItsStreamAndEnds) {
  RelayWorld w;
  const auto sink = Stream();
  w.Attach(sink, MakeAttach("a", 1, 40, 5));
  w.RunAll();
  const std::vector<v1::RelayEntry> news = sink->Of("a");
  ASSERT_EQ(news.size(), 5u);
  for (size_t i = 0; i < news.size(); ++i) {
    EXPECT_EQ(news[i].attach_gen(), 1u);
    EXPECT_EQ(news[i].position(), 40 + i);
    EXPECT_EQ(news[i].token_ids_size(), 1);
    EXPECT_EQ(news[i].has_accepted(), i == 0);
    EXPECT_EQ(news[i].has_timings(), i == 4);
    EXPECT_EQ(sink->messages[i].step(), i + 1);
  }
  EXPECT_EQ(news[4].finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_GT(news[4].timings().prefill_ms(), 0);
  EXPECT_EQ(w.book.live(), 0u);
}

TEST(RelayBook, TheFirstNewsSaysHowLongARequestWaitedAndWhatWasCached) {
  RelayWorld w;
  const auto sink = Stream();
  w.Attach(sink, MakeAttach("a", 1, 40, 2));
  w.RunAll();
  EXPECT_EQ(sink->Of("a")[0].accepted().cached_tokens(), 0u);
  w.Attach(sink, MakeAttach("b", 1, 40, 2));
  w.h.now += std::chrono::milliseconds(7);
  w.RunAll();
  EXPECT_EQ(sink->Of("b")[0].accepted().cached_tokens(), 32u);
  EXPECT_EQ(sink->Of("b")[0].accepted().queue_ms(), 7u);
}

TEST(RelayBook, ABeamSearchSaysThatItsPromptIsComputedAndAnswersAtTheEnd) {
  RelayWorld w;
  const auto sink = Stream();
  v1::Attach attach = MakeAttach("a", 1, 40, 5);
  attach.mutable_sampling()->set_use_beam_search(true);
  attach.mutable_sampling()->set_n(2);
  attach.mutable_sampling()->set_best_of(3);
  w.Attach(sink, attach);
  w.RunAll();
  const std::vector<v1::RelayEntry> news = sink->Of("a");
  ASSERT_EQ(news.size(), 2u);
  EXPECT_TRUE(news[0].has_accepted());
  EXPECT_EQ(news[0].token_ids_size(), 0);
  EXPECT_EQ(news[0].finish_reason(), v1::FINISH_REASON_UNSPECIFIED);
  for (const v1::RelayEntry& answer : {news[1], sink->LastOf("a", 1)}) {
    EXPECT_EQ(answer.position(), 40u);
    EXPECT_EQ(answer.token_ids_size(), 5);
    EXPECT_EQ(answer.finish_reason(), v1::FINISH_REASON_LENGTH);
  }
  EXPECT_EQ(w.book.live(), 0u);
}

TEST(RelayBook, NewsOfOneStepIsOneMessagePerStream) {
  RelayWorld w;
  const auto first = Stream(), second = Stream();
  w.Attach(first, MakeAttach("a", 1, 20, 3));
  w.Attach(first, MakeAttach("b", 1, 21, 3));
  w.Attach(second, MakeAttach("c", 1, 22, 3));
  w.RunAll();
  ASSERT_EQ(first->messages.size(), 3u);
  for (const v1::RelayDown& m : first->messages) EXPECT_EQ(m.entries_size(), 2);
  ASSERT_EQ(second->messages.size(), 3u);
  EXPECT_EQ(second->TokensOf("c"), 3u);
  EXPECT_EQ(second->TokensOf("a"), 0u);
}

TEST(RelayBook, TheSameAttachAgainIsTheSameRequest) {
  RelayWorld w;
  const auto sink = Stream();
  w.Attach(sink, MakeAttach("a", 1, 20, 5));
  w.Step();
  w.Attach(sink, MakeAttach("a", 1, 20, 5));
  w.RunAll();
  EXPECT_EQ(sink->TokensOf("a"), 5u);
}

TEST(RelayBook, ANewerAttachFencesTheOlderOne) {
  RelayWorld w;
  const auto old_stream = Stream(), new_stream = Stream();
  w.Attach(old_stream, MakeAttach("a", 1, 20, 50));
  w.Step();
  w.Step();
  const size_t before = old_stream->messages.size();
  w.Attach(new_stream, MakeAttach("a", 2, 20, 4));
  w.RunAll();
  EXPECT_EQ(old_stream->messages.size(), before) << "the older one hears nothing more, not even of its end";
  EXPECT_EQ(new_stream->TokensOf("a"), 4u);
  for (const v1::RelayEntry& e : new_stream->Of("a")) EXPECT_EQ(e.attach_gen(), 2u);
}

TEST(RelayBook, ARequestOfAnotherRoutersOfTheSameIdIsAnotherOne) {
  RelayWorld w;
  const auto mine = std::make_shared<KeepingSink>("router-a"), others = std::make_shared<KeepingSink>("router-b");
  const auto again = std::make_shared<KeepingSink>("router-a");
  w.Attach(mine, MakeAttach("a", 1, 20, 50));
  w.Step();
  w.Attach(others, MakeAttach("a", 2, 20, 4));
  w.RunAll();
  EXPECT_EQ(mine->TokensOf("a"), 50u) << "it was not fenced";
  EXPECT_EQ(others->TokensOf("a"), 4u);
  w.Attach(mine, MakeAttach("b", 1, 20, 50));
  w.Step();
  w.Attach(again, MakeAttach("b", 2, 20, 4));
  w.RunAll();
  EXPECT_LT(mine->TokensOf("b"), 50u) << "another stream of the same router takes it over";
  EXPECT_EQ(again->TokensOf("b"), 4u);
}

TEST(RelayBook, AnOlderAttachIsRefusedAndHarmsNobody) {
  RelayWorld w;
  const auto sink = Stream(), late = Stream();
  w.Attach(sink, MakeAttach("a", 7, 20, 4));
  w.Attach(late, MakeAttach("a", 6, 20, 4));
  EXPECT_EQ(Code(late->LastOf("a")), absl::StatusCode::kAborted);
  EXPECT_THAT(late->LastOf("a").error().message(), HasSubstr("attach_gen 6 is fenced by 7"));
  w.RunAll();
  EXPECT_EQ(sink->TokensOf("a"), 4u);
}

TEST(RelayBook, ARefusalEndsEveryChoiceAndSaysWhy) {
  RelayWorld w;
  const auto sink = Stream();
  v1::Attach attach = MakeAttach("a", 1, 20, 4);
  attach.mutable_sampling()->set_n(3);
  attach.mutable_sampling()->set_top_p(-1);
  w.Attach(sink, attach);
  for (uint32_t i = 0; i < 3; ++i) {
    const v1::RelayEntry e = sink->LastOf("a", i);
    EXPECT_EQ(e.finish_reason(), v1::FINISH_REASON_ERROR);
    EXPECT_EQ(e.position(), 20u);
    EXPECT_EQ(Code(e), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(e.error().message(), AllOf(HasSubstr("top_p"), HasSubstr("-1")));
    EXPECT_EQ(e.error().retry_after_ms(), 0u) << "retrying would not help";
  }
  EXPECT_EQ(w.book.live(), 0u);
}

TEST(RelayBook, ARefusalOfAMigrationNamesItsChoices) {
  RelayWorld w;
  const auto sink = Stream();
  v1::Attach attach = MakeAttach("a", 1, 20, 4);
  attach.add_choices(5);
  attach.set_ticket("t");
  w.Attach(sink, attach);
  EXPECT_EQ(Code(sink->LastOf("a", 5)), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(sink->Of("a", 0).empty());
}

TEST(RelayBook, AnAbsurdNumberOfChoicesIsRefused) {
  RelayWorld w;
  const auto sink = Stream();
  v1::Attach attach = MakeAttach("a", 1, 20, 4);
  attach.mutable_sampling()->set_n(2'000'000'000);
  w.Attach(sink, attach);
  EXPECT_EQ(Code(sink->LastOf("a")), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(w.book.live(), 0u);
}

// A router lists what it wants; a stranger lists a million.
TEST(RelayBook, ARefusalIsOneMessageOfBoundedSize) {
  RelayWorld w;
  w.book.Drain();
  const auto sink = Stream();
  v1::Attach attach = MakeAttach("a", 1, 20, 4);
  for (uint32_t i = 0; i < 1'000'000; ++i) attach.add_choices(i);
  w.Attach(sink, attach);
  ASSERT_EQ(sink->messages.size(), 1u);
  EXPECT_EQ(sink->messages[0].entries_size(), 1024);
  EXPECT_EQ(Code(sink->LastOf("a", 1023)), absl::StatusCode::kUnavailable);
}

TEST(RelayBook, AFullQueueSaysWhenToComeBack) {
  engine::SteppedEngineOptions o = RelayOptions();
  o.scheduler.max_waiting_requests = 1;
  RelayWorld w(o);
  const auto sink = Stream();
  w.Attach(sink, MakeAttach("a", 1, 200, 4));
  w.Attach(sink, MakeAttach("b", 1, 20, 4));
  const v1::RelayEntry e = sink->LastOf("b");
  EXPECT_EQ(Code(e), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(e.error().queue_ms(), 200u) << "200 waiting tokens at the prior of 1 ms each";
  EXPECT_EQ(e.error().retry_after_ms(), 200u);
}

TEST(RelayBook, ALegOfARouterThatRenewsNothingLivesAsLongAsItsStream) {
  RelayWorld w;
  auto sink = std::make_shared<KeepingSink>();
  w.Attach(sink, MakeAttach("a", 1, 20, 8));
  for (int i = 0; i < 600; ++i) w.h.now += OwnTime::kTick, w.book.Tick(w.h.scheduler(), w.h.now);
  EXPECT_EQ(w.book.live(), 1u);
}

TEST(RelayBook, AZombiesTokensReachNobodyButItsDeadStream) {
  RelayWorld w;
  const auto dead = Stream(), alive = Stream();
  v1::Attach attach = MakeAttach("a", 5, 20, 100);
  attach.set_lease_ms(4000);
  w.Attach(dead, attach);
  w.book.Tick(w.h.scheduler(), w.h.now);
  for (int i = 0; i < 4; ++i) w.Step();
  w.h.now += std::chrono::seconds(60);  // this worker is stopped: meanwhile its router gave it up
  w.book.Tick(w.h.scheduler(), w.h.now);
  EXPECT_EQ(w.book.live(), 1u) << "it ends nothing for its own stop";
  attach.set_attach_gen(6);
  w.Attach(alive, attach);  // the router is back, on another stream
  const size_t before = dead->messages.size();
  for (int i = 0; i < 4; ++i) w.Step();
  EXPECT_EQ(dead->messages.size(), before) << "fenced";
  EXPECT_GT(alive->TokensOf("a"), 0u);
  w.End(dead);
  EXPECT_EQ(w.book.live(), 1u) << "the dead stream takes nothing of the other's along";
  w.End(alive);
  const size_t told = alive->messages.size();
  for (int i = 0; i < 4; ++i) w.Step();
  EXPECT_EQ(alive->messages.size(), told);
  EXPECT_EQ(w.book.live(), 0u);
}

TEST(RelayBook, CreditIsPerChoiceAndAdds) {
  RelayWorld w;
  const auto sink = Stream();
  v1::Attach attach = MakeAttach("a", 3, 20, 20);
  attach.mutable_sampling()->set_n(2);
  attach.set_credit_tokens(2);
  w.Attach(sink, attach);
  w.RunAll();
  EXPECT_EQ(sink->TokensOf("a", 0), 2u);
  EXPECT_EQ(sink->TokensOf("a", 1), 2u);
  w.Credit(sink, "a", 3, 1, 3);
  w.Credit(sink, "a", 2, 0, 9);      // of an attach that was fenced
  w.Credit(sink, "a", 3, 7, 9);      // no such choice
  w.Credit(sink, "b", 3, 0, 9);      // no such request
  w.Credit(Stream(), "a", 3, 0, 9);  // of another stream
  w.RunAll();
  EXPECT_EQ(sink->TokensOf("a", 0), 2u);
  EXPECT_EQ(sink->TokensOf("a", 1), 5u);
  for (const uint32_t i : {0u, 1u}) {
    w.Credit(sink, "a", 3, i, 0xFFFFFFFF);
    w.Credit(sink, "a", 3, i, 0xFFFFFFFF);  // must not wrap around
  }
  w.RunAll();
  EXPECT_EQ(sink->TokensOf("a", 0), 20u);
  EXPECT_EQ(sink->TokensOf("a", 1), 20u);
}

TEST(RelayBook, CancelEndsOneChoiceOrAllAndOldOnesNothing) {
  RelayWorld w;
  const auto sink = Stream();
  v1::Attach attach = MakeAttach("a", 3, 20, 100);
  attach.mutable_sampling()->set_n(3);
  w.Attach(sink, attach);
  w.Step();
  w.Cancel(sink, "a", 2);
  EXPECT_EQ(sink->LastOf("a", 0).finish_reason(), v1::FINISH_REASON_UNSPECIFIED);
  w.Cancel(sink, "a", 3, 1);
  EXPECT_EQ(sink->LastOf("a", 1).finish_reason(), v1::FINISH_REASON_ABORT);
  w.Step();
  EXPECT_EQ(sink->TokensOf("a", 1), 1u);
  EXPECT_EQ(sink->TokensOf("a", 2), 2u);
  w.Cancel(sink, "a", 3);
  EXPECT_EQ(sink->LastOf("a", 0).finish_reason(), v1::FINISH_REASON_ABORT);
  EXPECT_EQ(sink->LastOf("a", 2).finish_reason(), v1::FINISH_REASON_ABORT);
  EXPECT_EQ(w.book.live(), 0u);
  w.RunAll();
  EXPECT_EQ(w.h.cache().pool(0).used_blocks(), 0);
}

TEST(RelayBook, ALostStreamLosesItsRequestsAndNoOthers) {
  RelayWorld w;
  const auto lost = Stream(), stays = Stream();
  w.Attach(lost, MakeAttach("a", 1, 20, 100));
  w.Attach(stays, MakeAttach("b", 1, 21, 6));
  w.Step();
  const size_t before = lost->messages.size();
  w.End(lost);
  EXPECT_EQ(w.book.live(), 1u);
  w.RunAll();
  EXPECT_EQ(lost->messages.size(), before);
  EXPECT_EQ(stays->TokensOf("b"), 6u);
  EXPECT_EQ(w.h.cache().pool(0).used_blocks(), 0);
}

TEST(RelayBook, ADrainingWorkerTakesNothingNew) {
  RelayWorld w;
  const auto sink = Stream();
  w.Attach(sink, MakeAttach("a", 1, 20, 4));
  w.book.Drain();
  w.Attach(sink, MakeAttach("b", 1, 20, 4));
  EXPECT_EQ(Code(sink->LastOf("b")), absl::StatusCode::kUnavailable);
  w.RunAll();
  EXPECT_EQ(sink->TokensOf("a"), 4u) << "what runs is finished";
}

TEST(RelayBook, ScoresOfAPromptComeInPiecesThatMakeTheWhole) {
  engine::SteppedEngineOptions o = RelayOptions();
  o.scheduler.max_num_batched_tokens = 32;
  RelayWorld w(o);
  const auto sink = Stream();
  v1::Attach attach = MakeAttach("a", 1, 100, 3);
  attach.mutable_sampling()->set_prompt_logprobs(4);
  w.Attach(sink, attach);
  w.RunAll();
  std::string whole;
  int last = 0;
  for (const v1::RelayEntry& e : sink->Of("a")) {
    EXPECT_FALSE(last > 0 && !e.prompt_logprobs().empty()) << "a piece after the last";
    whole += e.prompt_logprobs();
    last += e.prompt_logprobs_last() ? 1 : 0;
  }
  EXPECT_EQ(last, 1);
  EXPECT_TRUE(sink->Of("a")[0].has_accepted());
  v1::PromptLogprobs scores;
  ASSERT_TRUE(scores.ParseFromString(whole));
  ASSERT_EQ(scores.positions_size(), 99);
  const std::vector<int32_t> prompt = engine::RandomTokens(100, 100);
  for (int i = 0; i < 99; ++i) {
    EXPECT_EQ(scores.positions(i).chosen().token_id(), prompt[static_cast<size_t>(i) + 1]);
    EXPECT_EQ(scores.positions(i).top_size(), 4);
  }
}

TEST(RelayBook, ScoresOfAPromptNameTheirChoiceAndStandBeforeItsFirstToken) {
  RelayWorld w;
  const auto sink = Stream();
  v1::Attach attach = MakeAttach("a", 1, 20, 3);
  attach.add_choices(5);
  attach.mutable_sampling()->set_prompt_logprobs(1);
  w.Attach(sink, attach);
  w.RunAll();
  const std::vector<v1::RelayEntry> news = sink->Of("a", 5);
  ASSERT_FALSE(news.empty());
  EXPECT_FALSE(news[0].prompt_logprobs().empty());
  EXPECT_EQ(news[0].position(), 20u);
  EXPECT_TRUE(sink->Of("a", 0).empty());
}

TEST(RelayBook, APromptOfOneTokenHasNoScoresAndSaysSo) {
  RelayWorld w;
  const auto sink = Stream();
  v1::Attach attach = MakeAttach("a", 1, 1, 3);
  attach.mutable_sampling()->set_prompt_logprobs(0);
  w.Attach(sink, attach);
  w.RunAll();
  const std::vector<v1::RelayEntry> news = sink->Of("a");
  ASSERT_EQ(news.size(), 3u);
  EXPECT_TRUE(news[0].prompt_logprobs_last());
  EXPECT_TRUE(news[0].prompt_logprobs().empty());
  EXPECT_FALSE(news[1].prompt_logprobs_last());
}

TEST(RelayBook, AMigratedRequestGoesOnWhereItWas) {
  RelayWorld w;
  const auto sink = Stream();
  w.Attach(sink, MakeAttach("whole", 1, 40, 12));
  w.RunAll();
  std::vector<int32_t> drawn;
  for (const v1::RelayEntry& e : sink->Of("whole"))
    drawn.insert(drawn.end(), e.token_ids().begin(), e.token_ids().end());
  v1::Attach rest = MakeAttach("rest", 2, 40, 12);
  std::vector<int32_t> tokens = engine::RandomTokens(40, 40);
  tokens.insert(tokens.end(), drawn.begin(), drawn.begin() + 5);
  rest.set_prompt_token_ids(TokenBytes(tokens));
  rest.set_output_len_so_far(5);
  rest.set_position(45);
  w.Attach(sink, rest);
  w.RunAll();
  EXPECT_EQ(sink->Of("rest")[0].position(), 45u);
  std::vector<int32_t> more;
  for (const v1::RelayEntry& e : sink->Of("rest")) more.insert(more.end(), e.token_ids().begin(), e.token_ids().end());
  EXPECT_EQ(more, std::vector<int32_t>(drawn.begin() + 5, drawn.end()));
}

}  // namespace
}  // namespace baton::worker
