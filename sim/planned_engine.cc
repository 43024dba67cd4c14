#include "sim/planned_engine.h"

#include <algorithm>

#include "common/kv_digest.h"

namespace baton::sim {
namespace {

constexpr int32_t kToken = 7;  // that every answer is made of

// One layer stands for all: a chunk's KV is there half way through its step, as that of a middle layer is.
KvLayout KeptLayout(int32_t block_size) {
  const std::vector<KvPlane> planes = {{KvPlane::Name::kK, DType::kBF16, 1, 4},
                                       {KvPlane::Name::kV, DType::kBF16, 1, 4}};
  return {.groups = {{{0}, KvGroupKind::kPaged, 0, planes, block_size}}};
}

/// All KV is zero, so that memory which nobody writes need not be there; its digests are not.
void WriteDigests(const kernels::KvPlaneView& plane, const KvCoordinate& first, std::span<const int32_t> table,
                  int32_t tokens) {
  constexpr uint64_t kZero = 0;
  KvCoordinate at = first;
  for (int32_t i = 0; i < tokens; ++i, ++at.token) {
    const auto place = static_cast<int32_t>(at.token);
    const int32_t block = table[static_cast<size_t>(place / plane.tokens_per_block)];
    uint64_t& digest = plane.digests[block * plane.digest_block_stride + place % plane.tokens_per_block / kUnitTokens];
    const uint64_t added = KvDigestVector(at, &kZero, sizeof(kZero));
    digest = place % kUnitTokens == 0 ? added : digest + added;
  }
}

}  // namespace

/// Its steps are not run: only what a scheduler has to know of it.
class PlannedEngine::AnyToken final : public engine::Model {
 public:
  explicit AnyToken(const PlannedWorker& worker) : layout_(KeptLayout(worker.block_size)) {
    config_.vocab_size = engine::kFakeVocab;
    config_.max_position_embeddings = worker.scheduler.max_model_len;
  }
  const engine::ModelConfig& config() const override { return config_; }
  const KvLayout& kv_layout() const override { return layout_; }
  size_t weight_bytes() const override { return 0; }
  absl::StatusOr<kernels::Tensor> Forward(const engine::ForwardBatch&, std::span<const engine::KvGroupView>,
                                          const std::atomic<bool>&) override {
    return absl::UnimplementedError("a planned model computes nothing");
  }

 private:
  const KvLayout layout_;
  engine::ModelConfig config_;
};

double MeasuredCost::Seconds(std::span<const plan::StepRows> rows) const {
  double us = step_ms * 1e3;
  for (const plan::StepRows& one : rows) {
    const auto sequences = static_cast<double>(one.sequences);
    us += sequences * (static_cast<double>(one.fresh) * row_us + sequence_us +
                       static_cast<double>(one.context + one.fresh) * kilotoken_us / 1e3);
  }
  return us * 1e-6;
}

double RooflineCost::Seconds(std::span<const plan::StepRows> rows) const {
  const bool chunk = std::ranges::any_of(rows, [](const plan::StepRows& one) { return one.fresh > 1; });
  return step_ms * 1e-3 + times.Of(rows).seconds * (chunk ? prefill_factor : decode_factor);
}

PlannedEngine::PlannedEngine(PlannedWorker worker, const StepCost& cost)
    : worker_(std::move(worker)),
      cost_(cost),
      model_(std::make_unique<AnyToken>(worker_)),
      ops_(engine::MakeFakeOps()) {
  const plan::StepRows chunk{.fresh =
                                 std::min(worker_.scheduler.max_num_batched_tokens, worker_.scheduler.max_model_len)};
  prefill_tokens_per_s_ = static_cast<double>(chunk.fresh) / cost_.Seconds(std::span(&chunk, 1));
  const plan::StepRows decode{.context = worker_.scheduler.max_model_len / 2};
  decode_step_ms_ = 1e3 * cost_.Seconds(std::span(&decode, 1));
}

PlannedEngine::~PlannedEngine() = default;

engine::SteppedEngine PlannedEngine::Make(v1::WorkerRole, bool, engine::RolePolicy* policy) {
  engine::SteppedEngineOptions options;
  options.scheduler = worker_.scheduler;
  options.layout = model_->kv_layout();
  options.num_blocks = {worker_.blocks};
  options.prefix_caching = worker_.prefix_caching;
  return engine::SteppedEngine(std::move(options), policy, *model_, *ops_);
}

Duration PlannedEngine::Takes(const engine::StepPlan& plan, int32_t later) {
  rows_.clear();
  for (const engine::SequenceStep& step : plan.sequences) {
    if (step.num_tokens == 0) continue;
    rows_.push_back({.fresh = step.num_tokens, .context = step.context + later, .logits = step.sample});
  }
  return Duration(std::max<Duration::rep>(1000, static_cast<Duration::rep>(1e9 * cost_.Seconds(rows_))));
}

/// Of what a worker may hand over.
void PlannedEngine::WriteKv(engine::SteppedEngine& engine, const engine::StepPlan& plan) const {
  const kernels::KvLayerView& layer = engine.memory().groups()[0].layers[0];
  for (const engine::BlockCopy& copy : plan.copies) {
    const int32_t from[] = {copy.src}, to[] = {copy.dst};
    ops_->CopyBlocks(from, to, layer);
  }
  for (const engine::SequenceStep& step : plan.sequences) {
    const auto position = static_cast<uint32_t>(step.context);
    WriteDigests(layer.k, {layer.layer, 0, 0, position}, step.block_tables[0], step.num_tokens);
    WriteDigests(layer.v, {layer.layer, 1, 0, position}, step.block_tables[0], step.num_tokens);
  }
}

engine::StepResult PlannedEngine::Compute(engine::SteppedEngine& engine, v1::WorkerRole role,
                                          const engine::StepPlan& plan) {
  if (role == v1::WORKER_ROLE_PREFILL) WriteKv(engine, plan);
  engine::StepResult result{.step = plan.step};
  result.sequences.reserve(plan.sequences.size());
  for (const engine::SequenceStep& step : plan.sequences) {
    engine::SequenceResult& one = result.sequences.emplace_back();
    one.id = step.id;
    one.sampled = step.sample;
    one.token.token = kToken;
  }
  return result;
}

}  // namespace baton::sim
