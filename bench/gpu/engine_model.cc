#include "bench/gpu/engine_model.h"

#include <atomic>

#include "common/status.h"
#include "kernels/plugin/device_plugin.h"

extern "C" baton::kernels::MakeDeviceOps baton_make_device_ops;

namespace baton::bench {

absl::StatusOr<Engine> LoadEngine(const EngineOptions& options, const EnginePlan& plan) {
  kernels::DeviceConfig device{.deterministic = options.deterministic};
  if (options.kv == "fp8") device.kv_dtype = DType::kF8E4M3;
  kernels::OpsOrError ops = absl::UnknownError("no device was made");
  baton_make_device_ops(kernels::kPluginVersion, device, &ops);
  if (!ops.ok()) return ops.status();
  Engine out{.ops = *std::move(ops)};
  engine::ModelSource source{.path = options.model, .dummy_weights = true};
  source.context_tokens = plan.tokens;
  source.max_sequences = source.max_logit_rows = plan.most();
  for (const int batch : plan.batches) source.recorded_rows.push_back(batch);
  BATON_ASSIGN_OR_RETURN(out.model, engine::LoadModel(source, *out.ops, plan.rows, nullptr));
  const std::vector<int32_t> blocks(out.model->kv_layout().groups.size(), plan.Blocks());
  BATON_ASSIGN_OR_RETURN(out.memory, engine::KvMemory::Create(out.model->kv_layout(), blocks, *out.ops));
  out.ops->Sync();
  return out;
}

absl::Status Sequences::Give(int rows, int context, bool drawn, const std::function<void(int)>& on_layer) {
  tokens_.clear();
  row_start_.assign(1, 0);
  contexts_.assign(static_cast<size_t>(count_), context);
  last_rows_.clear();
  const int vocab = on_.model->config().vocab_size;
  for (int s = 0; s < count_; ++s) {
    const int seed = static_cast<int>(draws_[static_cast<size_t>(s)].seed);
    for (int r = 0; r < rows; ++r)
      tokens_.push_back(drawn ? kernels::DrawnToken(s) : (seed * 131 + (context + r) * 37 + 11) % vocab);
    row_start_.push_back(static_cast<int32_t>(tokens_.size()));
    last_rows_.push_back(row_start_.back() - 1);
    draws_[static_cast<size_t>(s)].position = static_cast<uint64_t>(context + rows);
  }
  engine::ForwardBatch batch{.tokens = tokens_,
                             .logit_rows = last_rows_,
                             .on_layer_kv = on_layer,
                             .drawn_rows = drawn ? count_ : 0,
                             .draws = draws_};
  for (size_t g = 0; g < on_.memory->groups().size(); ++g)
    batch.groups.push_back(
        {.row_start = row_start_, .context = contexts_, .block_tables = table_, .table_stride = stride_});
  const std::atomic<bool> cancel{false};
  BATON_ASSIGN_OR_RETURN(const kernels::Tensor logits, on_.model->Forward(batch, on_.memory->groups(), cancel));
  under_way_.push_back(on_.ops->BeginSample(logits, draws_));
  return absl::OkStatus();
}

int32_t Sequences::Take() {
  const std::vector<kernels::SampleResult> drawn = under_way_.front()->Take();
  under_way_.pop_front();
  return drawn[0].token;
}

}  // namespace baton::bench
