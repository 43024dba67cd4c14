#include "engine/step/executor.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/status.h"
#include "engine/sampling/beam_search.h"
#include "engine/sampling/stop_rule.h"

namespace baton::engine {
namespace {

/// What a step waits for masks at most: most are there long before the logits are.
constexpr auto kMaskPatience = std::chrono::milliseconds(5);

template <typename T>
std::span<const T> Slice(const std::vector<T>& v, int32_t from, int32_t to) {
  return std::span<const T>(v).subspan(static_cast<size_t>(from), static_cast<size_t>(to - from));
}

}  // namespace

Executor::Executor(Model& model, KvMemory& memory, kernels::Ops& ops, LayerObserver* observer, StepChannel* channel)
    : model_(model), memory_(memory), ops_(ops), observer_(observer), channel_(channel) {
  batch_.block_tables.resize(memory.groups().size());
}

void Executor::Enqueue(const StepPlan& plan) {
  BATON_CHECK(under_way_.empty() || (under_way_.size() == 1 && plan.ahead && !Ready()), "step ", plan.step,
              " comes while ", under_way_.size(), " are under way");
  results_read_ = false;
  UnderWay step;
  step.result = Run(plan, step);
  const bool drawing = step.draw != nullptr;
  if (!drawing || step.draw->ready() || (step.published > 0 && !batch_.open)) Finish(step);
  if (!step.result.ok() || step.result->cancelled) lost_step_ = plan.step;
  if (!drawing && !results_read_) {
    if (channel_ == nullptr) ops_.EndStep();
    if (step.published > 0) ops_.Sync();  // as the other ranks do
  }
  if (step.draw == nullptr) EndOnAllRanks(step);
  under_way_.push_back(std::move(step));
}

absl::StatusOr<StepResult> Executor::Await() {
  BATON_CHECK(!under_way_.empty());
  UnderWay step = std::move(under_way_.front());
  under_way_.pop_front();
  if (step.draw == nullptr) return std::move(step.result);
  if (step.published > 0 && step.published == channel_->published()) {
    if (const absl::Status closed = channel_->Close(); !closed.ok()) step.result = closed;
  }
  Finish(step);
  EndOnAllRanks(step);
  return std::move(step.result);
}

absl::Status Executor::Publish(UnderWay& step) {
  if (channel_ == nullptr || (!batch_.has_rows() && batch_.copies.empty())) return absl::OkStatus();
  const absl::Status published = channel_->Publish(batch_);
  step.published = channel_->published();
  return published;
}

void Executor::EndOnAllRanks(UnderWay& step) {
  if (step.published > 0) channel_->Done();
}

void Executor::Finish(UnderWay& step) {
  if (!step.result.ok() || step.result->cancelled) return;
  if (const absl::Status taken = TakeTokens(step); !taken.ok()) step.result = taken;
}

// A sequence that was forgotten meanwhile needs no token.
absl::Status Executor::TakeTokens(UnderWay& step) {
  std::vector<SequenceResult>& sequences = step.result->sequences;
  const bool drawn = step.draw != nullptr;
  if (drawn) {
    std::vector<kernels::SampleResult> tokens = step.draw->Take();
    BATON_CHECK(tokens.size() == step.drawn.size());
    for (size_t k = 0; k < tokens.size(); ++k)
      sequences[static_cast<size_t>(step.drawn[k])].token = std::move(tokens[k]);
    step.draw.reset();
  }
  if (const absl::Status lost = model_.LinksHealth(); !lost.ok()) {
    if (channel_ != nullptr) channel_->Abort(lost);
    return lost;
  }
  for (const SequenceResult& r : sequences) {
    if (!r.sampled) continue;
    const auto it = sequences_.find(r.id);
    if (it == sequences_.end() || it->second.sampling.use_beam_search) continue;  // beams that go on are new sequences
    Sequence& s = it->second;
    s.unread -= drawn;
    s.tokens.push_back(r.token.token);
    if (s.grammar) s.grammar->Advance(r.token.token);
  }
  return absl::OkStatus();
}

absl::StatusOr<StepResult> Executor::Run(const StepPlan& plan, UnderWay& step) {
  StepResult result;
  result.step = plan.step;
  ApplyChanges(plan);
  const bool lost = plan.ahead && lost_step_ + 1 == plan.step;
  BuildBatch(plan, /*rows=*/!lost);
  CollectLogitRows(plan, /*rows=*/!lost);
  PlanDraws(plan);
  const absl::StatusOr<kernels::Tensor> logits = RunOnAllRanks(plan, step);
  if (absl::IsCancelled(logits.status()) || (logits.ok() && lost)) {
    result.cancelled = true;
    return result;
  }
  if (!logits.ok()) return logits.status();
  BATON_CHECK(batch_.logit_rows.empty() || logits->rows() >= static_cast<int64_t>(batch_.logit_rows.size()),
              logits->rows(), " rows of logits for ", batch_.logit_rows.size());

  for (const SequenceStep& s : plan.sequences) {
    SequenceResult& r = result.sequences.emplace_back();
    r.id = s.id;
    r.sampled = s.sample;
  }
  if (!draws_.empty()) {
    BeginDraws(plan, *logits, step);
  } else {
    ScorePrompts(plan, *logits, result);
    SampleRows(plan, *logits, result);
  }
  return result;
}

void Executor::ApplyChanges(const StepPlan& plan) {
  BATON_CHECK(under_way_.empty() || plan.add.empty(), "sequences are added while a step is under way");
  for (const SequenceId id : plan.forget) sequences_.erase(id);
  for (const NewSequence& n : plan.add) {
    Sequence& s = sequences_[n.id];
    s.index = n.sequence_index;
    s.tokens = n.tokens;
    s.prompt_len = n.prompt_len;
    s.sampling = n.sampling;
    s.grammar = n.grammar;
  }
}

// With other ranks a step cannot stop between layers, so a cancel that is heard before it leaves its copies only. The
// others do not wait for its end when the device draws by itself: another may follow.
absl::StatusOr<kernels::Tensor> Executor::RunOnAllRanks(const StepPlan& plan, UnderWay& step) {
  const bool rows = batch_.has_rows();
  const bool cancelled = channel_ != nullptr && cancel_.load(std::memory_order_relaxed);
  batch_.open = channel_ != nullptr && !draws_.empty() && ops_.DrawsLater(draws_);
  batch_.followed = observer_ != nullptr;
  if (cancelled) batch_.DropRows();
  BATON_RETURN_IF_ERROR(Publish(step));
  RunCopies(batch_, memory_, ops_);
  if (cancelled && rows) return absl::CancelledError("cancelled before the step");
  if (!rows) return kernels::Tensor();
  std::function<void(int)> on_layer_kv;
  if (observer_ != nullptr) on_layer_kv = [this, &plan](int layer) { observer_->OnLayerKv(plan, layer); };
  absl::StatusOr<kernels::Tensor> logits =
      RunRows(batch_, {tokens_, named_rows_, draws_}, model_, memory_, cancel_, std::move(on_layer_kv));
  if (!logits.ok() && channel_ != nullptr) channel_->Abort(logits.status());
  return logits;
}

// Sequences that only sample from another's row have no rows, and no place in the batch.
void Executor::BuildBatch(const StepPlan& plan, bool rows) {
  tokens_.clear();
  named_rows_ = 0;
  batch_.copies = plan.copies;
  batch_.row_start.assign(1, 0);
  batch_.context.clear();
  if (!rows) return batch_.DropRows();
  std::vector<size_t> stride(batch_.block_tables.size(), 1);
  size_t in_batch = 0;
  for (const SequenceStep& step : plan.sequences) {
    if (step.num_tokens == 0) continue;
    ++in_batch;
    const auto it = sequences_.find(step.id);
    BATON_CHECK(it != sequences_.end(), "sequence ", step.id, " was never added");
    const Sequence& s = it->second;
    const int32_t end = step.context + step.num_tokens, known = std::min(end, static_cast<int32_t>(s.tokens.size()));
    BATON_CHECK(end <= s.length() && end <= known + 1, "sequence ", step.id, " has ", s.tokens.size(), " tokens, and ",
                s.unread, " on the device; ", end, " wanted");
    tokens_.insert(tokens_.end(), s.tokens.begin() + step.context, s.tokens.begin() + known);
    if (known < end) {
      tokens_.push_back(kernels::DrawnToken(s.drawn_row));
      named_rows_ = std::max(named_rows_, s.drawn_row + 1);
    }
    batch_.row_start.push_back(static_cast<int32_t>(tokens_.size()));
    batch_.context.push_back(step.context);
    for (size_t g = 0; g < stride.size(); ++g) stride[g] = std::max(stride[g], step.block_tables[g].size());
  }
  for (size_t g = 0; g < stride.size(); ++g) {
    batch_.block_tables[g].assign(in_batch * stride[g], 0);
    size_t at = 0;
    for (const SequenceStep& step : plan.sequences) {
      if (step.num_tokens == 0) continue;
      std::copy(step.block_tables[g].begin(), step.block_tables[g].end(),
                batch_.block_tables[g].begin() + static_cast<ptrdiff_t>(at));
      at += stride[g];
    }
  }
}

// Rows to score come with their sequence, the sampled row last; ascending because sequences lie one after another, and
// those that share a carrier's last row follow it.
void Executor::CollectLogitRows(const StepPlan& plan, bool rows) {
  batch_.logit_rows.clear();
  wanted_.clear();
  if (!rows) return;
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
  for (const LogitRow& w : wanted_) batch_.logit_rows.push_back(w.row);
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
    results_read_ = true;
    i = end;
  }
}

kernels::SampleRow Executor::MakeSampleRow(const Sequence& s, std::vector<int32_t>& banned) const {
  const int32_t length = s.length(), known = static_cast<int32_t>(s.tokens.size());
  const SamplingParams& p = s.sampling;
  if (p.use_beam_search) {  // nothing is drawn: the scheduler chooses among the likeliest
    kernels::SampleRow row;
    row.temperature = 0;
    row.num_logprobs = BeamCandidates(p, model_.config().vocab_size);
    return row;
  }
  banned = BannedBeforeMinTokens(p, length - s.prompt_len);
  if (!p.bad_words.empty()) BanEndsOfBadWords(p, Slice(s.tokens, s.prompt_len, known), banned);
  const int32_t vocab = model_.config().vocab_size;
  banned.erase(std::lower_bound(banned.begin(), banned.end(), vocab), banned.end());
  kernels::SampleRow row;
  kernels::CopyDrawNumbers(p, row);
  row.prompt_tokens = Slice(s.tokens, 0, s.prompt_len);
  row.output_tokens = Slice(s.tokens, s.prompt_len, known);
  row.logit_bias = p.logit_bias;
  row.allowed_tokens = p.allowed_token_ids;
  row.banned_tokens = banned;
  row.seed = p.seed;
  row.sequence_index = s.index;
  row.position = static_cast<uint64_t>(length);
  row.num_logprobs = p.logprobs;
  return row;
}

bool Executor::MayDraw(Sequence& s, std::chrono::steady_clock::time_point until, const std::vector<int32_t>& banned,
                       kernels::SampleRow& row, SequenceResult& result) const {
  if (!s.grammar) {
    result.sampled = banned.empty() || AnyTokenLeft(s.sampling.allowed_token_ids, banned, model_.config().vocab_size);
    if (!result.sampled) result.no_token = NoToken::kNothingAllowed;
    return result.sampled;
  }
  const absl::StatusOr<absl::Span<const uint32_t>> mask = s.grammar->Mask(until);
  if (!mask.ok()) {
    result.no_token = NoToken::kGrammarFailed;
    result.error = mask.status();
  } else if (mask->empty()) {
    result.no_token = NoToken::kMaskIsLate;
  } else if (!AnyTokenAllowed(*mask, s.sampling.allowed_token_ids, banned)) {
    const std::vector<int32_t>& eos = s.sampling.eos_token_ids;
    const bool ended = !eos.empty() && AnyTokenAllowed(*mask, eos, {});
    result.no_token = ended ? NoToken::kGrammarEnded : NoToken::kNothingAllowed;
  } else {
    row.grammar_mask = mask->data();
  }
  result.sampled = result.no_token == NoToken::kNone;
  return result.sampled;
}

void Executor::PlanDraws(const StepPlan& plan) {
  draws_.clear();
  banned_.assign(wanted_.size(), {});
  std::vector<kernels::SampleRow> rows;
  for (size_t i = 0; i < wanted_.size(); ++i) {
    const Sequence& s = sequences_.at(plan.sequences[static_cast<size_t>(wanted_[i].sequence)].id);
    if (wanted_[i].target >= 0 || s.grammar) return;
    rows.push_back(MakeSampleRow(s, banned_[i]));
    if (s.unread > 0) rows.back().unread_row = wanted_[i].row;
    if (!banned_[i].empty() && !AnyTokenLeft(s.sampling.allowed_token_ids, banned_[i], model_.config().vocab_size))
      return;
  }
  draws_ = std::move(rows);
}

// The rows of the next step may name these tokens.
void Executor::BeginDraws(const StepPlan& plan, const kernels::Tensor& logits, UnderWay& step) {
  step.draw = ops_.BeginSample(logits.Rows(0, static_cast<int64_t>(draws_.size())), draws_);
  for (size_t i = 0; i < wanted_.size(); ++i) {
    const int32_t sequence = wanted_[i].sequence;
    step.drawn.push_back(sequence);
    Sequence& s = sequences_.at(plan.sequences[static_cast<size_t>(sequence)].id);
    if (s.sampling.use_beam_search) continue;
    ++s.unread;
    s.drawn_row = static_cast<int32_t>(i);
  }
}

// Sample takes one row of logits per SampleRow, so runs of rows that can be drawn are drawn together.
void Executor::SampleRows(const StepPlan& plan, const kernels::Tensor& logits, StepResult& result) {
  const auto until = std::chrono::steady_clock::now() + kMaskPatience;
  std::vector<std::vector<int32_t>> banned(wanted_.size());
  std::vector<kernels::SampleRow> rows;
  const auto draw = [&](size_t end) {
    if (rows.empty()) return;
    const size_t first = end - rows.size();
    std::vector<kernels::SampleResult> drawn =
        ops_.Sample(logits.Rows(static_cast<int64_t>(first), static_cast<int64_t>(rows.size())), rows);
    results_read_ = true;
    BATON_CHECK(drawn.size() == rows.size());
    for (size_t k = 0; k < drawn.size(); ++k)
      result.sequences[static_cast<size_t>(wanted_[first + k].sequence)].token = std::move(drawn[k]);
    rows.clear();
  };
  for (size_t i = 0; i < wanted_.size(); ++i) {
    const auto sequence = static_cast<size_t>(wanted_[i].sequence);
    if (wanted_[i].target < 0) {
      Sequence& s = sequences_.at(plan.sequences[sequence].id);
      kernels::SampleRow row = MakeSampleRow(s, banned[i]);
      if (MayDraw(s, until, banned[i], row, result.sequences[sequence])) {
        rows.push_back(row);
        continue;
      }
    }
    draw(i);
  }
  draw(wanted_.size());
}

}  // namespace baton::engine
