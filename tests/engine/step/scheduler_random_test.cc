// Random requests, cancels, credits, cancelled steps and failures against tiny pools, invariants after each step: the
// run must end, every request must end exactly once, and every block must come back.
#include <gtest/gtest.h>

#include <random>

#include "tests/engine/step/requests.h"

namespace baton::engine {
namespace {

struct Shape {
  int32_t blocks, tokens_per_block, window, batched_tokens, max_seqs;
  bool ahead = false;
};

class SchedulerRandom : public ::testing::TestWithParam<Shape> {};

SteppedEngineOptions OptionsFor(const Shape& shape) {
  SteppedEngineOptions o;
  o.layout = FakeLayout(shape.tokens_per_block, shape.window);
  o.num_blocks.assign(o.layout.groups.size(), shape.blocks);
  o.scheduler.max_model_len = 160;
  o.scheduler.max_num_batched_tokens = shape.batched_tokens;
  o.scheduler.max_num_seqs = shape.max_seqs;
  o.scheduler.max_waiting_requests = 1000;
  o.scheduler.max_undelivered_tokens = 4;
  o.ahead = shape.ahead;
  return o;
}

TEST_P(SchedulerRandom, EveryRequestEndsOnceAndEveryBlockComesBack) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    std::mt19937_64 rng(seed);
    SteppedEngine h(OptionsFor(GetParam()));
    RequestKey next_key = 1;
    std::map<RequestKey, int32_t> choices;
    std::vector<RequestKey> without_credit;
    for (int turn = 0; turn < 250; ++turn) {
      if (turn < 150 && rng() % 3 == 0) {
        Request r = MixedRequest(next_key, rng(), 1 + static_cast<int32_t>(rng() % 90));
        if (r.sampling.n > GetParam().max_seqs) r.sampling.n = 1;
        if (rng() % 4 == 0) {
          r.credit = r.prompt_len + static_cast<int32_t>(rng() % 4);
          without_credit.push_back(next_key);
        }
        if (rng() % 6 == 0) r.deadline = h.now + std::chrono::milliseconds(rng() % 200);
        const int32_t n = r.sampling.n;
        const absl::Status s = h.Add(std::move(r));
        if (s.ok()) choices[next_key] = n;
        ++next_key;
      }
      const bool began = h.Begin();
      const RequestKey some = next_key > 1 ? 1 + rng() % (next_key - 1) : 1;
      if (rng() % 8 == 0) h.scheduler().Cancel(some, h.now);
      if (rng() % 8 == 0) h.scheduler().CancelSequence(some, static_cast<uint32_t>(rng() % 3), h.now);
      if (rng() % 4 == 0 && !without_credit.empty()) {
        const RequestKey key = without_credit[rng() % without_credit.size()];
        for (uint32_t i = 0; i < 4; ++i) h.scheduler().SetCredit(key, i, static_cast<int32_t>(rng() % 160), h.now);
      }
      if (began && rng() % 20 == 0) h.fake().before_forward = [] { return absl::CancelledError("test"); };
      if (began && rng() % 60 == 0) h.fake().before_forward = [] { return absl::InternalError("test"); };
      if (began) h.Finish();
      h.Collect(h.scheduler().TakeOutputs());
      if (rng() % 2 == 0) h.fake().before_forward = nullptr;
    }
    h.fake().before_forward = nullptr;
    for (const auto& [key, n] : choices) {
      for (int32_t i = 0; i < n; ++i) h.scheduler().SetCredit(key, static_cast<uint32_t>(i), kUnlimitedCredit, h.now);
    }
    h.RunAll();
    for (const auto& [key, n] : choices) {
      for (int32_t i = 0; i < n; ++i) {
        const auto it = h.answers.find({key, static_cast<uint32_t>(i)});
        ASSERT_TRUE(it != h.answers.end()) << "request " << key << " choice " << i << " seed " << seed;
        EXPECT_NE(it->second.finish, FinishReason::kNone) << key;
      }
    }
    EXPECT_EQ(h.cache().pool(0).used_blocks(), 0);
    EXPECT_EQ(h.executor().sequences(), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Pools, SchedulerRandom,
                         ::testing::Values(Shape{11, 16, 0, 64, 4}, Shape{12, 16, 0, 2048, 16},
                                           Shape{40, 16, 0, 32, 32}, Shape{5, 64, 0, 64, 6}, Shape{14, 16, 24, 48, 8},
                                           Shape{200, 16, 0, 5, 64}));
INSTANTIATE_TEST_SUITE_P(PoolsAndStepsPlannedAhead, SchedulerRandom,
                         ::testing::Values(Shape{11, 16, 0, 64, 4, true}, Shape{12, 16, 0, 2048, 16, true},
                                           Shape{40, 16, 0, 32, 32, true}, Shape{5, 64, 0, 64, 6, true},
                                           Shape{14, 16, 24, 48, 8, true}, Shape{200, 16, 0, 5, 64, true}));

}  // namespace
}  // namespace baton::engine
