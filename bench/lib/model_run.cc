#include "bench/lib/model_run.h"

#include <algorithm>
#include <numeric>

#include "common/check.h"
#include "kernels/cpu/cpu_ops.h"

namespace baton::bench {

ModelRun::ModelRun(const std::string& path, bool dummy, int threads, int sequences, int max_tokens, int max_step_tokens)
    : context_(static_cast<size_t>(sequences), 0), next_token_(static_cast<size_t>(sequences), 1) {
  auto ops = kernels::MakeCpuOps({.threads = threads});
  BATON_CHECK(ops.ok(), ops.status().ToString());
  ops_ = std::make_unique<TimedOps>(*std::move(ops));
  auto model = engine::LoadModel({.path = path, .dummy_weights = dummy}, *ops_, max_step_tokens,
                                 [](std::string_view, double) {});
  BATON_CHECK(model.ok(), model.status().ToString());
  model_ = *std::move(model);
  const size_t groups = model_->kv_layout().groups.size();
  blocks_per_sequence_ = (max_tokens + kUnitTokens - 1) / kUnitTokens;
  const std::vector<int32_t> blocks(groups, static_cast<int32_t>(blocks_per_sequence_ * sequences));
  auto memory = engine::KvMemory::Create(model_->kv_layout(), blocks, *ops_);
  BATON_CHECK(memory.ok(), memory.status().ToString());
  memory_ = *std::move(memory);
}

void ModelRun::Reset() { std::fill(context_.begin(), context_.end(), 0); }

void ModelRun::Pretend(int sequences, int tokens) {
  for (int s = 0; s < sequences; ++s) context_[static_cast<size_t>(s)] = tokens;
}

void ModelRun::Prefill(int tokens, int chunk) {
  for (int done = 0; done < tokens; done += chunk) Step({std::min(chunk, tokens - done)});
}

void ModelRun::DecodeStep(int sequences) { Step(std::vector<int32_t>(static_cast<size_t>(sequences), 1)); }

void ModelRun::Step(const std::vector<int32_t>& rows_per_sequence) {
  const size_t sequences = rows_per_sequence.size();
  std::vector<int32_t> row_start{0}, context(context_.begin(), context_.begin() + static_cast<int64_t>(sequences)),
      tokens, logit_rows;
  for (size_t s = 0; s < sequences; ++s) {
    for (int32_t r = 0; r < rows_per_sequence[s]; ++r)
      tokens.push_back(r == 0 ? next_token_[s] : (r * 7 + 13) % model_->config().vocab_size);
    row_start.push_back(static_cast<int32_t>(tokens.size()));
    logit_rows.push_back(row_start.back() - 1);
    BATON_CHECK((context[s] + rows_per_sequence[s] + kUnitTokens - 1) / kUnitTokens <= blocks_per_sequence_, "context ",
                context[s]);
  }
  std::vector<int32_t> table(sequences * static_cast<size_t>(blocks_per_sequence_));
  std::iota(table.begin(), table.end(), 0);
  engine::ForwardBatch batch{.tokens = tokens, .logit_rows = logit_rows};
  for (size_t g = 0; g < model_->kv_layout().groups.size(); ++g) {
    batch.groups.push_back(
        {.row_start = row_start, .context = context, .block_tables = table, .table_stride = blocks_per_sequence_});
  }
  const std::atomic<bool> cancel{false};
  auto logits = model_->Forward(batch, memory_->groups(), cancel);
  BATON_CHECK(logits.ok(), logits.status().ToString());
  const std::vector<kernels::SampleRow> greedy(sequences, kernels::SampleRow{.temperature = 0});
  const auto sampled = ops_->Sample(*logits, greedy);
  for (size_t s = 0; s < sequences; ++s) {
    context_[s] += rows_per_sequence[s];
    next_token_[s] = sampled[s].token;
  }
}

}  // namespace baton::bench
