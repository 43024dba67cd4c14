#include "engine/step/executor.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/status.h"
#include "engine/sampling/stop_rule.h"

namespace baton::engine {
namespace {

template <typename T>
std::span<const T> Slice(const std::vector<T>& v, int32_t from, int32_t to) {
  return std::span<const T>(v).subspan(static_cast<size_t>(from), static_cast<size_t>(to - from));
}

}  // namespace

Executor::Executor(Model& model, KvMemory& memory, kernels::Ops& ops, LayerObserver* observer)
    : model_(model), memory_(memory), ops_(ops), observer_(observer) {
  block_tables_.resize(memory.groups().size());
}

absl::StatusOr<StepResult> Executor::Execute(const StepPlan& plan) {
  StepResult result;
  result.step = plan.step;
  ApplyChanges(plan);
  RunCopies(plan);
  if (plan.sequences.empty()) return result;
  BuildBatch(plan);
  CollectLogitRows(plan);

  ForwardBatch batch;
  batch.tokens = tokens_;
  batch.logit_rows = logit_rows_;
  if (observer_ != nullptr) batch.on_layer_kv = [this, &plan](int layer) { observer_->OnLayerKv(plan, layer); };
  const auto stride = static_cast<int64_t>(row_start_.size()) - 1;
  for (const std::vector<int32_t>& tables : block_tables_) {
    batch.groups.push_back(
        {row_start_, context_, tables, static_cast<int64_t>(tables.size()) / std::max<int64_t>(1, stride)});
  }
  absl::StatusOr<kernels::Tensor> logits = model_.Forward(batch, memory_.groups(), cancel_);
  if (absl::IsCancelled(logits.status())) {
    result.cancelled = true;
    return result;
  }
  if (!logits.ok()) return logits.status();
  BATON_CHECK(logit_rows_.empty() || logits->rows() >= static_cast<int64_t>(logit_rows_.size()), logits->rows(),
              " rows of logits for ", logit_rows_.size());

  for (const SequenceStep& step : plan.sequences) {
    SequenceResult& r = result.sequences.emplace_back();
    r.id = step.id;
    r.sampled = step.sample;
  }
  ScorePrompts(plan, *logits, result);
  SampleRows(plan, *logits, result);
  return result;
}

void Executor::ApplyChanges(const StepPlan& plan) {
  for (const SequenceId id : plan.forget) sequences_.erase(id);
  for (const NewSequence& n : plan.add) {
    Sequence& s = sequences_[n.id];
    s.index = n.sequence_index;
    s.tokens = n.tokens;
    s.prompt_len = n.prompt_len;
    s.sampling = n.sampling;
  }
}

void Executor::RunCopies(const StepPlan& plan) {
  for (size_t g = 0; g < memory_.groups().size(); ++g) {
    std::vector<int32_t> src, dst;
    for (const BlockCopy& c : plan.copies) {
      if (c.group != static_cast<int32_t>(g)) continue;
      src.push_back(c.src);
      dst.push_back(c.dst);
    }
    if (src.empty()) continue;
    for (const kernels::KvLayerView& layer : memory_.groups()[g].layers) ops_.CopyBlocks(src, dst, layer);
  }
}

// Sequences that only sample from another's row have no rows, and no place in the batch.
void Executor::BuildBatch(const StepPlan& plan) {
  tokens_.clear();
  row_start_.assign(1, 0);
  context_.clear();
  std::vector<size_t> stride(block_tables_.size(), 1);
  size_t in_batch = 0;
  for (const SequenceStep& step : plan.sequences) {
    if (step.num_tokens == 0) continue;
    ++in_batch;
    const auto it = sequences_.find(step.id);
    BATON_CHECK(it != sequences_.end(), "sequence ", step.id, " was never added");
    const std::vector<int32_t>& tokens = it->second.tokens;
    BATON_CHECK(step.context + step.num_tokens <= static_cast<int32_t>(tokens.size()), "sequence ", step.id, " has ",
                tokens.size(), " tokens, ", step.context + step.num_tokens, " wanted");
    tokens_.insert(tokens_.end(), tokens.begin() + step.context, tokens.begin() + step.context + step.num_tokens);
    row_start_.push_back(static_cast<int32_t>(tokens_.size()));
    context_.push_back(step.context);
    for (size_t g = 0; g < stride.size(); ++g) stride[g] = std::max(stride[g], step.block_tables[g].size());
  }
  for (size_t g = 0; g < stride.size(); ++g) {
    block_tables_[g].assign(in_batch * stride[g], 0);
    size_t at = 0;
    for (const SequenceStep& step : plan.sequences) {
      if (step.num_tokens == 0) continue;
      std::copy(step.block_tables[g].begin(), step.block_tables[g].end(),
                block_tables_[g].begin() + static_cast<ptrdiff_t>(at));
      at += stride[g];
    }
  }
}

// Rows to score come with their sequence, the sampled row last; ascending because sequences lie one after another, and
// those that share a carrier's last row follow it.
void Executor::CollectLogitRows(const StepPlan& plan) {
  logit_rows_.clear();
  wanted_.clear();
  int32_t end = 0;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const SequenceStep& step = plan.sequences[i];
    const int32_t first = end;
    end += step.num_tokens;
    const auto sequence = static_cast<int32_t>(i);
    if (step.prompt_logprobs) {
      const Sequence& s = sequences_.at(step.id);
      for (int32_t row = first; row < end; ++row) {
        const int32_t next = step.context + (row - first) + 1;
        if (next < s.prompt_len) wanted_.push_back({row, sequence, s.tokens[static_cast<size_t>(next)]});
      }
    }
    BATON_CHECK(step.logits_from == 0 || (end > 0 && step.num_tokens == 0));
    if (step.sample) wanted_.push_back({end - 1, sequence, -1});
  }
  for (const LogitRow& w : wanted_) logit_rows_.push_back(w.row);
}

void Executor::ScorePrompts(const StepPlan& plan, const kernels::Tensor& logits, StepResult& result) {
  for (size_t i = 0; i < wanted_.size();) {
    if (wanted_[i].target < 0) {
      ++i;
      continue;
    }
    size_t end = i;
    std::vector<int32_t> targets;
    while (end < wanted_.size() && wanted_[end].sequence == wanted_[i].sequence && wanted_[end].target >= 0) {
      targets.push_back(wanted_[end++].target);
    }
    const auto sequence = static_cast<size_t>(wanted_[i].sequence);
    const int32_t k = sequences_.at(plan.sequences[sequence].id).sampling.prompt_logprobs;
    result.sequences[sequence].prompt_logprobs =
        ops_.Logprobs(logits.Rows(static_cast<int64_t>(i), static_cast<int64_t>(end - i)), targets, k);
    i = end;
  }
}

kernels::SampleRow Executor::MakeSampleRow(const Sequence& s, std::vector<int32_t>& banned) const {
  const auto length = static_cast<int32_t>(s.tokens.size());
  const SamplingParams& p = s.sampling;
  banned = BannedBeforeMinTokens(p, length - s.prompt_len);
  const int32_t vocab = model_.config().vocab_size;
  banned.erase(std::lower_bound(banned.begin(), banned.end(), vocab), banned.end());
  kernels::SampleRow row;
  row.temperature = p.temperature;
  row.top_k = p.top_k;
  row.top_p = p.top_p;
  row.min_p = p.min_p;
  row.repetition_penalty = p.repetition_penalty;
  row.presence_penalty = p.presence_penalty;
  row.frequency_penalty = p.frequency_penalty;
  row.prompt_tokens = Slice(s.tokens, 0, s.prompt_len);
  row.output_tokens = Slice(s.tokens, s.prompt_len, length);
  row.logit_bias = p.logit_bias;
  row.allowed_tokens = p.allowed_token_ids;
  row.banned_tokens = banned;
  row.seed = p.seed;
  row.sequence_index = s.index;
  row.position = static_cast<uint64_t>(length);
  row.num_logprobs = p.num_logprobs;
  return row;
}

// Sample takes one row of logits per SampleRow, so runs of sampled rows are sampled together.
void Executor::SampleRows(const StepPlan& plan, const kernels::Tensor& logits, StepResult& result) {
  std::vector<std::vector<int32_t>> banned(wanted_.size());
  for (size_t i = 0; i < wanted_.size();) {
    std::vector<kernels::SampleRow> rows;
    size_t end = i;
    for (; end < wanted_.size() && wanted_[end].target < 0; ++end) {
      const SequenceStep& step = plan.sequences[static_cast<size_t>(wanted_[end].sequence)];
      rows.push_back(MakeSampleRow(sequences_.at(step.id), banned[end]));
    }
    if (rows.empty()) {
      ++i;
      continue;
    }
    std::vector<kernels::SampleResult> drawn =
        ops_.Sample(logits.Rows(static_cast<int64_t>(i), static_cast<int64_t>(rows.size())), rows);
    BATON_CHECK(drawn.size() == rows.size());
    for (size_t k = 0; k < drawn.size(); ++k) {
      const auto sequence = static_cast<size_t>(wanted_[i + k].sequence);
      result.sequences[sequence].token = std::move(drawn[k]);
    }
    i = end;
  }
  for (const SequenceResult& r : result.sequences) {
    if (r.sampled) sequences_.at(r.id).tokens.push_back(r.token.token);
  }
}

}  // namespace baton::engine
