// Steps of CudaOps as a whole: their memory, one upload of their inputs, recorded steps of decodes.
//
// A recorded step is a graph per number of rows (StepLimits::recorded_rows), replayed with the pointers it was recorded
// with: every array of its inputs lies at an offset that depends on the rows alone. A step of fewer rows is padded with
// sequences that write no KV and attend to nothing; by row independence they change no bit of the others.
#include <functional>
#include <utility>

#include "common/status.h"
#include "kernels/cuda/host/cuda_ops_class.h"
#include "kernels/cuda/host/kv_mover.h"
#include "kernels/cuda/host/nccl_group.h"
#include "kernels/cuda/host/nccl_library.h"
#include "kernels/cuda/host/packed_weight.h"
#include "kernels/cuda/host/sample_rows.h"
#include "kernels/cuda/host/step_packer.h"
#if !defined(__CUDACC__)
#include "kernels/runtime/emulated_nccl.h"
#endif

namespace baton::kernels {
namespace {

cuda::AttentionKind KindOf(const StepLimits::Heads& heads) { return {heads.q_heads, heads.kv_heads, heads.window}; }

/// A step of decodes with more rows: sequences of one token behind the step's own.
class PaddedStep {
 public:
  PaddedStep(const StepInputs& step, int rows, const StepLimits& limits)
      : tokens_(step.tokens.begin(), step.tokens.end()) {
    const auto n = static_cast<size_t>(rows);
    tokens_.resize(n, 0);  // a rank that looks none up is given some
    for (int r = 0; r <= rows; ++r) row_start_.push_back(r);
    logit_rows_.assign(row_start_.begin(), row_start_.end() - 1);
    context_.assign(step.groups[0].context.begin(), step.groups[0].context.end());
    context_.resize(n, 0);
    tables_.resize(step.groups.size());
    for (size_t g = 0; g < step.groups.size(); ++g) {
      const RaggedBatch& from = step.groups[g];
      const int64_t stride = limits.positions / limits.tokens_per_block[g] + 1,
                    used = std::min(stride, from.table_stride);
      tables_[g].resize(n * static_cast<size_t>(stride), 0);
      for (int s = 0; s < from.sequences(); ++s)
        std::copy_n(from.block_tables.begin() + s * from.table_stride, used, tables_[g].begin() + s * stride);
      groups_.push_back({row_start_, context_, tables_[g], stride});
    }
    inputs_ = {tokens_, groups_, logit_rows_, step.memory, step.recordable, step.draws};
  }
  PaddedStep(const PaddedStep&) = delete;
  PaddedStep& operator=(const PaddedStep&) = delete;
  const StepInputs& inputs() const { return inputs_; }

 private:
  std::vector<int32_t> tokens_, row_start_, context_, logit_rows_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<RaggedBatch> groups_;
  StepInputs inputs_;
};

}  // namespace

static_assert(device_sizes::kScales == kMaxKvHeads * sizeof(float) && device_sizes::kInt == sizeof(int32_t));

absl::Status CudaOps::Prepare(const StepLimits& limits) {
  weights_.Release();  // they are loaded
  const auto reserve = [](Scratch& room, int64_t bytes, std::string_view what) {
    return bytes > 0 ? room.Reserve(static_cast<size_t>(bytes), what) : absl::OkStatus();
  };
  BATON_RETURN_IF_ERROR(reserve(ids_, IdBytes(limits), "the tokens of a step"));
  BATON_RETURN_IF_ERROR(steps_.Reserve(limits));
  BATON_RETURN_IF_ERROR(step_arena_.Reserve(static_cast<size_t>(InputBytes(limits))));
  for (const StepLimits::Heads& heads : limits.attention) {
    const int64_t rows = PartialsAtOnce(limits, heads, traits_.work_bytes) * cuda::kRowsPerWarp;
    BATON_RETURN_IF_ERROR(
        reserve(partial_o_, rows * heads.dim * int64_t{sizeof(float)}, "attention's partial results"));
    BATON_RETURN_IF_ERROR(reserve(partial_ml_, rows * 2 * int64_t{sizeof(float)}, "attention's partial sums"));
  }
  for (const float scale : limits.kv_scales) BATON_RETURN_IF_ERROR(MakeScales(scale).status());
  for (const RopeParams& rope : limits.ropes) BATON_RETURN_IF_ERROR(rope_.Reserve(rope, Int(limits.positions)));
  BATON_RETURN_IF_ERROR(PrepareDraws(limits));
  BATON_RETURN_IF_ERROR(reserve(ordered_, codes_.Ordered(limits.rows), "inputs in the order of a weight's"));
  BATON_RETURN_IF_ERROR(reserve(expanded_, codes_.Expanded(limits.rows), "outputs of a weight in codes, in bf16"));
  BATON_RETURN_IF_ERROR(reserve(rounded_, codes_.Rounded(limits.rows), "inputs of a linear layer in e4m3"));
  BATON_RETURN_IF_ERROR(MeasureLibrary(limits));
  limits_ = limits;
  return absl::OkStatus();
}

absl::Status CudaOps::PrepareDraws(const StepLimits& limits) {
  BATON_RETURN_IF_ERROR(sample_.Reserve(static_cast<size_t>(SampleBytes(limits, traits_.work_bytes)), "sampling"));
  for (cuda::DrawSlot& slot : draw_slots_) BATON_RETURN_IF_ERROR(slot.Reserve(stream_, limits.logit_rows));
  stream_.Bind();
  BATON_ASSIGN_OR_RETURN(
      gpu::Memory drawn,
      cuda::AllocateOnDevice(static_cast<size_t>(limits.logit_rows) * sizeof(int32_t), "the tokens of a step"));
  drawn_.emplace(std::move(drawn));
  return absl::OkStatus();
}

DeviceRooms CudaOps::rooms() const {
  DeviceRooms rooms{.inputs = ids_.bytes() + steps_.bytes() + step_arena_.bytes(),
                    .partials = partial_o_.bytes() + partial_ml_.bytes(),
                    .rotary = rope_.bytes(),
                    .sampling = sample_.bytes() + (drawn_ ? static_cast<int64_t>(drawn_->bytes()) : 0),
                    .codes = ordered_.bytes() + expanded_.bytes() + rounded_.bytes(),
                    .scales = static_cast<int64_t>(ones_.bytes()),
                    .handoff = handoff_bytes_,
                    .library = library_ != nullptr ? library_->bytes() : 0};
  for (const auto& [scale, memory] : scales_) rooms.scales += static_cast<int64_t>(memory.bytes());
  for (const std::weak_ptr<RankGroup>& joined : groups_) {
    if (const std::shared_ptr<RankGroup> group = joined.lock()) rooms.sums += group->bytes();
  }
  return rooms;
}

// The rows of the recorded step that `step` is replayed as; 0: none.
int CudaOps::RecordedRows(const StepInputs& step) const {
  const int32_t rows = step.groups[0].row_start.back();
  if (!step.recordable || limits_->recorded_rows.empty() || rows > limits_->recorded_rows.back() ||
      step.groups[0].sequences() != rows || static_cast<int32_t>(step.logit_rows.size()) != rows)
    return 0;
  for (int32_t r = 0; r < rows; ++r)
    if (step.logit_rows[static_cast<size_t>(r)] != r) return 0;
  return *std::ranges::lower_bound(limits_->recorded_rows, rows);
}

// One copy. `recorded`: every array where a recorded step of as many rows reads it; false when attention takes several
// launches, which a recorded step has not.
bool CudaOps::UploadStep(const StepInputs& step, int sequences, bool recorded) {
  cuda::StepPacker packer;
  const size_t at_tokens = packer.Add(step.tokens.data(), step.tokens.size()),
               at_rows = packer.Add(step.logit_rows.data(), step.logit_rows.size());
  // The sampler is in a record, so there every row is told what to draw.
  const size_t at_draws = packer.Add(std::vector<cuda::SampleRowParams>(
      recorded || !step.draws.empty() ? step.logit_rows.size() : 0, cuda::DrawsNothing()));
  for (size_t g = 0; g < step.groups.size(); ++g)
    steps_[g].Pack(step.groups[g], limits_->tokens_per_block[g], sequences, packer);
  // The longest lists, those of full attention, come last: room behind them is not copied.
  for (auto heads = limits_->attention.rbegin(); heads != limits_->attention.rend(); ++heads) {
    const size_t launches = steps_[static_cast<size_t>(heads->group)].PackWork(KindOf(*heads), SharingOf(heads->dim),
                                                                               recorded ? &*limits_ : nullptr, packer);
    if (recorded && launches != 1) return false;
  }
  BATON_CHECK(step.draws.size() <= step.logit_rows.size());
  const bool sends = PackDraws(step.draws, at_draws, packer);
  char* base = step_arena_.Send(packer.bytes());
  step_tokens_ = reinterpret_cast<int32_t*>(base + at_tokens);
  step_draws_ = {step_tokens_, cuda::At<cuda::SampleRowParams>(base, at_draws), base};
  if (sends) given_draws_->sent = step_draws_;
  step_ = step;
  step_token_count_ = step.tokens.size();
  step_rows_ = cuda::At<int32_t>(base, at_rows);
  for (size_t g = 0; g < step.groups.size(); ++g) steps_[g].Bind(base);
  return true;
}

// Lists that are too long are sent when the draw begins; then a record's sampler draws nothing.
bool CudaOps::PackDraws(std::span<const SampleRow> draws, size_t at, cuda::StepPacker& packer) {
  if (draws.empty()) return false;
  given_draws_ = {draws, cuda::PlanSample(draws, Int(limits_->vocab))};
  const cuda::SampleLists& lists = given_draws_->lists;
  if (static_cast<int64_t>(lists.bytes()) + 2 * device_sizes::kAlignment > ListBytes(*limits_)) return false;
  const size_t at_entries = packer.AddBehind(lists.entries), at_masks = packer.Add(lists.masks);
  cuda::SampleLists placed{.rows = lists.rows};
  placed.MoveBy(at_entries / sizeof(cuda::ListEntry), at_masks / sizeof(uint32_t));
  packer.Replace(at, placed.rows);
  return true;
}

// Groups may have tables of the same numbers, and not the same layers: those of the step are told apart by their place.
cuda::StepUpload& CudaOps::UploadOf(const RaggedBatch& batch, int tokens_per_block) {
  for (size_t g = 0; step_ && g < step_->groups.size(); ++g) {
    if (step_->groups[g].block_tables.data() == batch.block_tables.data() && steps_[g].Holds(batch, tokens_per_block))
      return steps_[g];
  }
  return steps_.Of(batch, tokens_per_block);
}

// A part of a step's rows has a part of its tokens.
int32_t* CudaOps::TokensOnDevice(std::span<const int32_t> tokens) {
  const auto before = [](const int32_t* a, const int32_t* b) { return std::less_equal<>()(a, b); };
  if (step_ && before(step_->tokens.data(), tokens.data()) &&
      before(tokens.data() + tokens.size(), step_->tokens.data() + step_->tokens.size()))
    return step_tokens_ + (tokens.data() - step_->tokens.data());
  return ids_.Upload(tokens);
}
// Not by their numbers alone: a recorded step's tokens may be the numbers of its rows.
const int32_t* CudaOps::RowsOnDevice(std::span<const int32_t> rows) {
  return step_ && std::ranges::equal(rows, step_->logit_rows) ? step_rows_ : ids_.Upload(rows);
}

absl::Status CudaOps::RunStep(const StepInputs& step, const StepCalls& issue) {
  given_draws_.reset();
  given_drawn_rows_ = 0;
  if (!limits_) return issue(step).status();
  const absl::Status status = RunUploaded(step, issue);
  step_.reset();
  return status;
}

absl::Status CudaOps::RunUploaded(const StepInputs& step, const StepCalls& issue) {
  const int sequences = step.groups[0].sequences();
  if (const int rows = RecordedRows(step); rows > 0) {
    const PaddedStep padded(step, rows, *limits_);
    if (UploadStep(padded.inputs(), sequences, true)) return Replay(padded.inputs(), issue);
  }
  UploadStep(step, sequences, false);
  return issue(step).status();
}

// Whether there is room for the results of all rows at once.
bool CudaOps::DrawsInRecord(const Tensor& logits) const {
  return logits.data != nullptr && drawn_ && static_cast<size_t>(logits.rows()) * sizeof(int32_t) <= drawn_->bytes() &&
         cuda::RecordedSampleBytes(logits.rows(), logits.cols()) <= sample_.bytes();
}

absl::StatusOr<CudaOps::Recorded> CudaOps::Record(const StepInputs& step, const StepCalls& issue) {
  stream_.BeginCapture();
  const absl::StatusOr<Tensor> logits = issue(step);
  if (!logits.ok()) {
    stream_.DropCapture();
    return logits.status();
  }
  const bool draws = DrawsInRecord(*logits);
  if (draws) cuda::RecordSample(stream_, sample_, *logits, step_draws_, static_cast<int32_t*>(drawn_->data()));
  return Recorded{stream_.EndCapture(), draws};
}

// Records the step's calls first, when none of as many rows has been recorded for that memory. Where other ranks run
// them too the first step of as many rows is launched: NCCL connects ranks when they first make a call of a kind, and
// not all that it connects them by can be set up in a capture. So it is where a library multiplies, which loads kernels
// when it first takes them. A record that does not
// fit into the device's memory is not tried again: its steps are padded to the next size, or launched one by one. Where
// other ranks run them too they stay padded to this size, whether it fits there or not: all send as many rows.
absl::Status CudaOps::Replay(const StepInputs& step, const StepCalls& issue) {
  if (std::exchange(recorded_memory_, step.memory) != step.memory) recorded_.clear();
  auto found = recorded_.find(step.tokens.size());
  if (found == recorded_.end()) {
    if ((has_peers_ || library_ != nullptr) && connected_.insert(step.tokens.size()).second)
      return issue(step).status();
    BATON_ASSIGN_OR_RETURN(Recorded recorded, Record(step, issue));
    if (!recorded.graph.held() && !has_peers_) {
      std::erase(limits_->recorded_rows, Int(step.tokens.size()));
      return issue(step).status();
    }
    found = recorded_.emplace(step.tokens.size(), std::move(recorded)).first;
  }
  if (!found->second.graph.held()) return issue(step).status();
  stream_.Replay(found->second.graph);
  if (!found->second.draws) return absl::OkStatus();
  drawn_rows_ = 0;  // those of the draw before are gone
  if (given_draws_ && given_draws_->sent.rows != nullptr) given_drawn_rows_ = step.logit_rows.size();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<KvMover>> CudaOps::MakeKvMover(size_t staging_bytes, bool lends) {
  stream_.Bind();
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<KvMover> mover, cuda::MakeKvMover(staging_bytes, lends));
  hands_over_ = true;
  handoff_bytes_ = HandoffBytes(lends ? static_cast<int64_t>(staging_bytes) : 0);
  return mover;
}

absl::StatusOr<std::shared_ptr<RankGroup>> CudaOps::JoinGroup(const GroupSeat& seat) {
#if defined(__CUDACC__)
  static const absl::StatusOr<gpu::NcclApi> nccl = cuda::FindNccl();
  BATON_RETURN_IF_ERROR(nccl.status());
#else
  static const absl::StatusOr<gpu::NcclApi> nccl = gpu::EmulatedNccl();
#endif
  BATON_ASSIGN_OR_RETURN(std::shared_ptr<RankGroup> group,
                         cuda::JoinNcclGroup(*nccl, stream_, seat, one_shot_bytes_, [this] { recorded_.clear(); }));
  has_peers_ = true;
  groups_.push_back(group);
  return group;
}

DeviceWork CudaOps::device_work() const {
  const gpu::StreamCounts& counts = stream_.counts();
  return {counts.launches, counts.replays, counts.copies,
          counts.waits + follow_waits_ + draw_slots_[0].waits + draw_slots_[1].waits};
}

void CudaOps::FollowStep() {
  stream_.Record(step_ends_[next_end_++ % step_ends_.size()]);
  EndIfDeviceFailed(step_ends_[next_end_ % step_ends_.size()].Synchronize());
  ++follow_waits_;
}

}  // namespace baton::kernels
