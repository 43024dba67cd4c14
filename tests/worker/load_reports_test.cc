#include "worker/relay/load_reports.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/hex.h"
#include "tests/relay_golden.h"

namespace baton::worker {
namespace {

using std::chrono::milliseconds;

constexpr LoadTerms kTerms{.every = milliseconds(100), .quiet = milliseconds(600)};

// A stream that has run for a while.
v1::Load Streaming() {
  v1::Load load;
  load.set_running(1);
  load.set_kv_blocks_used(100);
  load.set_kv_blocks_total(6400);
  load.set_steps(1000);
  load.set_predicted_step_ms(11);
  load.set_prefill_tokens_per_s(5000);
  load.set_decode_step_ms(11);
  load.set_generation_tokens(1000);
  load.mutable_handoff()->set_transport("shm");
  load.mutable_handoff()->set_tickets(1);
  load.mutable_handoff()->add_peers()->set_gigabytes_per_second(8);
  return load;
}

/// What LoadReports says at turns of 100 ms, the load changed before each by `change(turn, load)`.
std::vector<int> Sent(const LoadTerms& terms, int turns, const std::function<void(int, v1::Load&)>& change) {
  LoadReports reports(terms);
  v1::Load load = Streaming();
  std::vector<int> sent;
  for (int turn = 0; turn < turns; ++turn) {
    change(turn, load);
    const auto late = std::chrono::microseconds(turn % 2 == 0 ? 900 : -900);  // a turn is never quite on time
    if (reports.Due(load, TimePoint{} + milliseconds(100 * turn) + late)) sent.push_back(turn);
  }
  return sent;
}

// The tokens, steps and time of one stream, and a block now and then.
void OneStream(int turn, v1::Load& load) {
  load.set_steps(load.steps() + 9);
  load.set_step_tokens(load.step_tokens() + 9);
  load.set_generation_tokens(load.generation_tokens() + 9);
  load.set_predicted_step_ms(turn % 2 == 0 ? 0 : 11);
  load.set_decode_step_ms(11 + 0.1 * (turn % 3));
  load.set_kv_blocks_used(load.kv_blocks_used() + turn % 2);
  load.set_kv_empty_tokens(turn % 16);
  load.mutable_handoff()->set_seconds(turn);
}

TEST(LoadReports, OneStreamIsNoNewsAndIsToldAtTheQuietInterval) {
  EXPECT_EQ(Sent(kTerms, 20, OneStream), (std::vector<int>{0, 6, 12, 18}));
}

TEST(LoadReports, WithoutAQuietIntervalEachTurnIsTold) {
  for (const Duration quiet : {milliseconds(0), milliseconds(50), milliseconds(100)}) {
    EXPECT_EQ(Sent({milliseconds(100), quiet}, 5, OneStream), (std::vector<int>{0, 1, 2, 3, 4})) << Milliseconds(quiet);
  }
  EXPECT_EQ(Sent({milliseconds(250), {}}, 7, OneStream), (std::vector<int>{0, 2, 4, 6}));
}

TEST(LoadReports, NewsIsToldAtTheNextTurnAndTheQuietIntervalBeginsAnew) {
  const auto change = [](int turn, v1::Load& load) { load.set_running(turn < 3 ? 1 : 2); };
  EXPECT_EQ(Sent(kTerms, 16, change), (std::vector<int>{0, 3, 9, 15}));
}

TEST(LoadReports, NewsIsToldNoMoreOftenThanAsked) {
  const auto change = [](int turn, v1::Load& load) { load.set_running(turn); };
  EXPECT_EQ(Sent({milliseconds(300), milliseconds(600)}, 10, change), (std::vector<int>{0, 3, 6, 9}));
}

// What a policy reads (router/fleet/fleet.cc, CandidateOf), and what people wait for.
TEST(LoadReports, WhatAChoiceDependsOnIsNews) {
  using Change = void (*)(v1::Load&);
  const std::vector<std::pair<const char*, Change>> news = {
      {"a sequence more", [](v1::Load& l) { l.set_running(2); }},
      {"the last one ended", [](v1::Load& l) { l.set_running(0); }},
      {"one waits", [](v1::Load& l) { l.set_waiting(1); }},
      {"a token waits", [](v1::Load& l) { l.set_queued_tokens(1); }},
      {"a 64th of the blocks, and one", [](v1::Load& l) { l.set_kv_blocks_used(201); }},
      {"blocks are free again", [](v1::Load& l) { l.set_kv_blocks_used(-1); }},
      {"another pool", [](v1::Load& l) { l.set_kv_blocks_total(6401); }},
      {"prefill is faster", [](v1::Load& l) { l.set_prefill_tokens_per_s(5400); }},
      {"a rate is known", [](v1::Load& l) { l.clear_prefill_tokens_per_s(); }},
      {"steps are slower", [](v1::Load& l) { l.set_decode_step_ms(11.8); }},
      {"steps are faster", [](v1::Load& l) { l.set_decode_step_ms(10.2); }},
      {"a block leaks", [](v1::Load& l) { l.set_leaked_kv_blocks(1); }},
      {"an answer follows a grammar", [](v1::Load& l) { l.mutable_grammars()->set_following(1); }},
      {"a ticket more", [](v1::Load& l) { l.mutable_handoff()->set_tickets(2); }},
      {"tokens are promised", [](v1::Load& l) { l.mutable_handoff()->set_reserved_tokens(16); }},
      {"a slot is in quarantine", [](v1::Load& l) { l.mutable_handoff()->set_quarantined_slots(1); }},
      {"a slot waits", [](v1::Load& l) { l.mutable_handoff()->set_slots_waiting(1); }},
      {"a peer more", [](v1::Load& l) { l.mutable_handoff()->add_peers(); }},
      {"a path is faster", [](v1::Load& l) { l.mutable_handoff()->mutable_peers(0)->set_gigabytes_per_second(9); }},
      {"another transport", [](v1::Load& l) { l.mutable_handoff()->set_transport("tcp"); }}};
  for (const auto& [what, change] : news) {
    v1::Load other = Streaming();
    change(other);
    EXPECT_TRUE(IsNews(Streaming(), other)) << what;
    EXPECT_TRUE(IsNews(other, Streaming())) << what << ", and back";
  }
}

TEST(LoadReports, CountersAndSmallChangesAreNoNews) {
  v1::Load other = Streaming();
  other.set_kv_blocks_used(200);
  other.set_prefill_tokens_per_s(5300);
  other.set_decode_step_ms(10.5);
  other.set_steps(5000);
  other.set_last_step_ms(20);
  other.set_predicted_step_ms(100);
  other.set_prefix_queries_tokens(1), other.set_prefix_hits_tokens(1), other.set_preemptions(1);
  other.set_prompt_tokens(1), other.set_generation_tokens(9000), other.set_calls_refused(5);
  other.set_kv_blocks_shared(3), other.set_kv_empty_tokens(7), other.add_steps_by_tokens(9), other.set_step_tokens(9);
  other.mutable_handoff()->set_bytes(1 << 20), other.mutable_handoff()->set_seconds(2);
  EXPECT_FALSE(IsNews(Streaming(), other));
}

TEST(LoadReports, WhatRanBetweenTwoReportsIsNewsOnceNothingRuns) {
  v1::Load told = Streaming(), now = Streaming();
  told.set_running(0), now.set_running(0);
  EXPECT_FALSE(IsNews(told, now));
  now.set_steps(told.steps() + 1);
  EXPECT_TRUE(IsNews(told, now));
}

// Small changes in one direction add up against what was told, not against the last turn.
TEST(LoadReports, ASlowDriftIsToldInTime) {
  const auto change = [](int turn, v1::Load& load) { load.set_kv_blocks_used(100 + 30 * turn); };
  EXPECT_EQ(Sent(kTerms, 10, change), (std::vector<int>{0, 4, 8}));
}

TEST(LoadReports, ARoutersTermsAreReadFromItsBytes) {
  v1::WatchRequest request;
  ASSERT_TRUE(request.ParseFromString(Unhex(golden::kWatch)));
  EXPECT_EQ(LoadTermsOf(request).every, milliseconds(100));
  EXPECT_EQ(LoadTermsOf(request).quiet, milliseconds(600));
  ASSERT_TRUE(request.ParseFromString(Unhex(golden::kWatchOfOldRouter)));
  EXPECT_EQ(LoadTermsOf(request).every, milliseconds(250));
  EXPECT_EQ(LoadTermsOf(request).quiet, Duration{});
  EXPECT_EQ(LoadTermsOf({}).every, milliseconds(100));
  request.set_load_interval_ms(1);
  EXPECT_EQ(LoadTermsOf(request).every, milliseconds(10));
}

}  // namespace
}  // namespace baton::worker
