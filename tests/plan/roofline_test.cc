// Times worked out by hand for a model of two layers whose every number is small.
#include "plan/roofline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::plan {
namespace {

using ::testing::HasSubstr;

// Multiplications of one token in one layer: q and output 2 · 8·8, k and v 2 · 8·4, MLP 3 · 8·16.
constexpr double kLinear = 128 + 64 + 384;
constexpr int64_t kKvToken = 2 * 2 * 4 * 2;  // layers · (K and V) · a head of 4 · bf16

worker::WorkerConfig SmallConfig() {
  worker::WorkerConfig config;
  config.max_num_seqs = 100;
  config.max_num_batched_tokens = 64;
  return config;
}

MemoryPlan PlanOfStages(int stages = 1, int window = 0) {
  MemoryPlan plan;
  plan.model.hidden_size = 8;
  plan.model.intermediate_size = 16;
  plan.model.num_layers = 2;
  plan.model.num_heads = 2;
  plan.model.num_kv_heads = 1;
  plan.model.head_dim = 4;
  plan.model.vocab_size = 10;
  plan.max_model_len = 1000;
  plan.kv_tokens = 4000;
  const KvPlane k{KvPlane::Name::kK, DType::kBF16, 1, 4}, v{KvPlane::Name::kV, DType::kBF16, 1, 4};
  plan.kv_layout.groups = {{.layers = {0, 1},
                            .kind = window > 0 ? KvGroupKind::kWindow : KvGroupKind::kPaged,
                            .window_tokens = window,
                            .planes = {k, v}}};
  for (int stage = 0; stage < stages; ++stage) {
    RankPlan rank{.place = {.stage = stage, .stages = stages}};
    rank.memory.weights = {.embedding = 1 << 20, .attention = 600 / stages, .mlp = 300 / stages, .norms = 100 / stages};
    if (stage == 0) rank.memory.weights.head = 160;
    plan.ranks.push_back(rank);
  }
  return plan;
}

constexpr Machine kSlowMemory{.bytes_per_s = 1e6, .flops = 1e18}, kSlowCompute{.bytes_per_s = 1e18, .flops = 1e9};
constexpr Load kLoad{.isl = 100, .osl = 20, .ttft_ms = 1e9, .tpot_ms = 1e9};

Roofline Times(const MemoryPlan& plan, const Machine& machine, const Load& load = kLoad) {
  const absl::StatusOr<Roofline> out = PlanRoofline(SmallConfig(), plan, machine, load);
  EXPECT_TRUE(out.ok()) << out.status();
  return out.value_or(Roofline());
}

TEST(Roofline, MemoryIsReadOnceAChunkAndOnceAStep) {
  const Roofline r = Times(PlanOfStages(), kSlowMemory);
  // Chunks of 64 and 36 tokens: weights twice, the head once, the KV of 64 and of 100 tokens.
  EXPECT_DOUBLE_EQ(r.prefill_ms, 2 * 1.0 + 0.16 + (64 + 100) * kKvToken / 1e3);
  EXPECT_EQ(r.prefill_limit, Limit::kMemory);
  // 4,000 tokens hold 33 sequences of 120; in the middle of its answer each has 111.
  EXPECT_EQ(r.batch, 33);
  EXPECT_EQ(r.batch_limit, BatchLimit::kKvSpace);
  EXPECT_DOUBLE_EQ(r.decode_ms, 1.16 + 33 * 111 * kKvToken / 1e3);
  EXPECT_EQ(r.decode_limit, Limit::kMemory);
  EXPECT_DOUBLE_EQ(r.decode_tokens_per_s, 33e3 / r.decode_ms);
}

TEST(Roofline, MultiplicationsOfLayersAttentionAndHead) {
  const Roofline r = Times(PlanOfStages(), kSlowCompute);
  const double attention = 2 * 4 * 8 * (100 * 101 / 2);  // layers · 4 · width · pairs
  EXPECT_NEAR(r.prefill_ms, (100 * 2 * 2 * kLinear + attention + 2 * 8 * 10) / 1e6, 1e-9);
  EXPECT_EQ(r.prefill_limit, Limit::kCompute);
  EXPECT_NEAR(r.decode_ms, 33 * (2 * 2 * kLinear + 2 * 4 * 8 * 111 + 2 * 8 * 10) / 1e6, 1e-9);
  EXPECT_EQ(r.decode_limit, Limit::kCompute);
}

TEST(Roofline, AWindowBoundsWhatIsSeenReadAndSent) {
  const Roofline r = Times(PlanOfStages(1, 16), kSlowCompute);
  const double pairs = 16 * 17 / 2 + 84 * 16;
  EXPECT_NEAR(r.prefill_ms, (100 * 2 * 2 * kLinear + 2 * 4 * 8 * pairs + 2 * 8 * 10) / 1e6, 1e-9);
  EXPECT_EQ(r.transfer_bytes, 16 * kKvToken);
  EXPECT_DOUBLE_EQ(Times(PlanOfStages(1, 16), kSlowMemory).decode_ms, 1.16 + 33 * 17 * kKvToken / 1e3);
}

TEST(Roofline, StagesFollowOneAnother) {
  EXPECT_DOUBLE_EQ(Times(PlanOfStages(2), kSlowMemory).decode_ms, Times(PlanOfStages(1), kSlowMemory).decode_ms);
}

TEST(Roofline, ACachedPrefixIsNotComputedAndDoesNotTravel) {
  Load load = kLoad;
  load.prefix = 60;
  const Roofline r = Times(PlanOfStages(), kSlowMemory, load);
  EXPECT_DOUBLE_EQ(r.prefill_ms, 1.16 + 100 * kKvToken / 1e3);
  EXPECT_EQ(r.transfer_bytes, 40 * kKvToken);
}

TEST(Roofline, TheGoalForTpotBoundsTheBatch) {
  Load load = kLoad;
  load.tpot_ms = 1.16 + 10.5 * 111 * kKvToken / 1e3;
  const Roofline r = Times(PlanOfStages(), kSlowMemory, load);
  EXPECT_EQ(r.batch, 10);
  EXPECT_EQ(r.batch_limit, BatchLimit::kTpot);
  EXPECT_TRUE(r.meets_tpot);
  load.tpot_ms = 1;
  load.ttft_ms = 1;
  const Roofline missed = Times(PlanOfStages(), kSlowMemory, load);
  EXPECT_EQ(missed.batch, 1);
  EXPECT_FALSE(missed.meets_tpot);
  EXPECT_FALSE(missed.meets_ttft);
  worker::WorkerConfig few = SmallConfig();
  few.max_num_seqs = 4;
  EXPECT_EQ(PlanRoofline(few, PlanOfStages(), kSlowMemory, kLoad)->batch_limit, BatchLimit::kMaxNumSeqs);
}

TEST(Roofline, DecodeWorkersThatKeepUpWithOnePrefillWorker) {
  const Roofline r = Times(PlanOfStages(), kSlowMemory);
  const double prompts_per_s = 1e3 / r.prefill_ms, answers_per_s = r.decode_tokens_per_s / 20;
  EXPECT_DOUBLE_EQ(r.decode_per_prefill, prompts_per_s / answers_per_s);
}

TEST(Roofline, AHandoffGainsFromItsBreakEvenOn) {
  Machine machine = kSlowMemory;
  EXPECT_EQ(Advice(Times(PlanOfStages(), machine), machine, kLoad), "") << "no link, no advice";
  machine.link_bytes_per_s = 100 * kKvToken * 1e3;  // the prompt's KV in 1 ms
  machine.handoff_ms = 0.5;
  const Roofline r = Times(PlanOfStages(), machine);
  EXPECT_DOUBLE_EQ(r.transfer_ms.value(), 1.5);
  EXPECT_DOUBLE_EQ(r.break_even_tokens.value(), 0.5 / ((r.prefill_ms - 1) / 100));
  EXPECT_TRUE(Advice(r, machine, kLoad).starts_with("disaggregate"));
  machine.handoff_ms = 50;
  EXPECT_THAT(Advice(Times(PlanOfStages(), machine), machine, kLoad),
              HasSubstr("do not disaggregate: prompts have 100"));
  machine.link_bytes_per_s = 100 * kKvToken;  // a second
  const Roofline slow = Times(PlanOfStages(), machine);
  EXPECT_FALSE(slow.break_even_tokens.has_value());
  EXPECT_THAT(Advice(slow, machine, kLoad), HasSubstr("do not disaggregate: at"));
}

TEST(Roofline, LengthsThatCannotBeAreRefusedWithBothNumbers) {
  Load load = kLoad;
  load.isl = 990;
  EXPECT_THAT(PlanRoofline(SmallConfig(), PlanOfStages(), kSlowMemory, load).status().message(),
              HasSubstr("1010 tokens"));
  load.isl = 980;
  EXPECT_TRUE(PlanRoofline(SmallConfig(), PlanOfStages(), kSlowMemory, load).ok());
  load.prefix = 980;
  EXPECT_THAT(PlanRoofline(SmallConfig(), PlanOfStages(), kSlowMemory, load).status().message(),
              HasSubstr("--prefix 980"));
}

TEST(Roofline, EveryNumberHasTheRangeOfWhatItFollowsFrom) {
  Machine unsure{.bytes_per_s = 1e6, .flops = 1e18, .link_bytes_per_s = 1e6, .handoff_ms = 1};
  unsure.certainty = {.prefill = {1, 3}, .decode = {0.5, 2}, .link = {1, 1.5}};
  const auto corners = PlanCorners(SmallConfig(), PlanOfStages(), unsure, kLoad);
  ASSERT_TRUE(corners.ok()) << corners.status();
  ASSERT_EQ(corners->size(), 9u) << "as planned, and both ends of three ranges";
  const Roofline& planned = corners->front();
  const Range prompt = RangeOf(*corners, &Roofline::prefill_ms), step = RangeOf(*corners, &Roofline::decode_ms);
  EXPECT_NEAR(prompt.low, planned.prefill_ms, 1e-9);
  EXPECT_NEAR(prompt.high, 3 * planned.prefill_ms, 1e-9);
  EXPECT_NEAR(step.low, planned.decode_ms / 2, 1e-9);
  EXPECT_NEAR(step.high, 2 * planned.decode_ms, 1e-9);
  const Range ratio = RangeOf(*corners, &Roofline::decode_per_prefill);
  EXPECT_NEAR(ratio.low, planned.decode_per_prefill / 6, 1e-9) << "slow prompts, fast steps";
  EXPECT_NEAR(ratio.high, planned.decode_per_prefill * 2, 1e-9);
  const Range handoff = RangeOf(*corners, [](const Roofline& r) { return *r.transfer_ms; });
  EXPECT_NEAR(handoff.high - 1, 1.5 * (handoff.low - 1), 1e-9) << "its own time stays";
  EXPECT_EQ(RangeText({1, 2.5}, 1), " (1.0 to 2.5)");
  EXPECT_EQ(RangeText({1.01, 1.02}, 1), "");
}

}  // namespace
}  // namespace baton::plan
