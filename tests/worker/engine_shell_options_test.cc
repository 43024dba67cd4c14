// What a worker's flags make of its steps.
#include <gtest/gtest.h>

#include "kernels/logprob_limit.h"
#include "worker/process/engine_shell.h"

namespace baton::worker {
namespace {

TEST(SchedulerOptionsOf, EveryFlagOfStepsHasItsOption) {
  WorkerConfig config;
  config.max_num_seqs = 1, config.max_num_batched_tokens = 2, config.long_prefill_token_threshold = 3;
  config.max_num_partial_prefills = 4, config.max_long_partial_prefills = 5;
  config.max_step_ms = 6, config.max_stall_ms = 7;
  config.max_waiting_requests = 8, config.max_waiting_tokens = 9;
  const engine::SchedulerOptions options = SchedulerOptionsOf(config, 1000);
  EXPECT_EQ(options.max_model_len, 1000);
  EXPECT_EQ(options.max_num_seqs, 1);
  EXPECT_EQ(options.max_num_batched_tokens, 2);
  EXPECT_EQ(options.max_prefill_chunk, 3);
  EXPECT_EQ(options.max_partial_prefills, 4);
  EXPECT_EQ(options.max_long_partial_prefills, 5);
  EXPECT_EQ(options.max_step_ms, 6);
  EXPECT_EQ(options.max_stall_ms, 7);
  EXPECT_EQ(options.max_waiting_requests, 8);
  EXPECT_EQ(options.max_waiting_tokens, 9);
  EXPECT_EQ(options.max_logprobs, engine::SchedulerOptions().max_logprobs);
  config.device = "cuda";
  EXPECT_EQ(SchedulerOptionsOf(config, 1000).max_logprobs, kernels::kMostCudaLogprobs);
}

TEST(SchedulerOptionsOf, WhereSeveralPromptsAreComputedInPartsALongOneIsLongerThanFourPercentOfTheContext) {
  WorkerConfig config;
  config.max_long_partial_prefills = 1;
  config.max_num_partial_prefills = 1;
  EXPECT_EQ(SchedulerOptionsOf(config, 1000).max_prefill_chunk, 0) << "one may take the whole step";
  EXPECT_EQ(SchedulerOptionsOf(config, 1000).max_long_partial_prefills, 0) << "and none is long";
  config.max_num_partial_prefills = 2;
  EXPECT_EQ(SchedulerOptionsOf(config, 1000).max_prefill_chunk, 40);
  EXPECT_EQ(SchedulerOptionsOf(config, 1000).max_long_partial_prefills, 1);
  EXPECT_EQ(SchedulerOptionsOf(config, 24).max_prefill_chunk, 1);
}

}  // namespace
}  // namespace baton::worker
