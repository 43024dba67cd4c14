// CudaOps, as its sources see it: cuda_ops.cc (memory, rows, sampling), cuda_step.cc (steps as a whole), cuda_linear.cc
// (weights, linear layers, experts), cuda_attention.cc. Callers take cuda_ops.h.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "common/check.h"
#include "common/device_failure.h"
#include "kernels/cuda/host/cuda_ops.h"
#include "kernels/cuda/host/lt_linear.h"
#include "kernels/cuda/host/rope_cache.h"
#include "kernels/cuda/host/sample_rows.h"
#include "kernels/cuda/host/scratch.h"
#include "kernels/cuda/host/step_arena.h"
#include "kernels/cuda/host/step_upload.h"
#include "kernels/cuda/host/weight_upload.h"
#include "kernels/device_rooms.h"

namespace baton::cuda {
class PackedWeight;
template <typename Out>
struct GemmParams;
template <typename Out>
struct QuantGemmParams;
template <typename Out>
struct E4m3GemmParams;
}  // namespace baton::cuda

namespace baton::kernels {

using cuda::Scratch;
using px::bf16;
using px::e4m3;

constexpr int kMaxKvHeads = 256;
/// A step's kernels start while the one before them ends (programmatic dependent launch), and wait for its end before
/// they touch what others read or write. What that gains has not been measured.
constexpr bool kOverlapped = true;

template <typename T>
T* Row(const Tensor& t) {
  return static_cast<T*>(t.data);
}
inline int Int(int64_t n) { return static_cast<int>(n); }

class CudaOps : public Ops {
 public:
  /// `ones`: room for kMaxKvHeads floats. Of use only where made() says so.
  CudaOps(const CudaOpsConfig& config, gpu::Memory ones);
  /// ResourceExhausted: the device did not make the stream or an event.
  absl::Status made() const;
  /// Queued work still reads the members.
  ~CudaOps() override { stream_.Synchronize(); }

  const OpsTraits& traits() const override { return traits_; }
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) override;
  void CopyToDevice(void* dst, const void* src, size_t bytes) override;
  void CopyToHost(void* dst, const void* src, size_t bytes) override {
    stream_.CopyAsync(dst, src, bytes);
    Sync();
  }
  void Sync() override { EndIfDeviceFailed(stream_.Synchronize()); }
  std::optional<DeviceMemory> device_memory() const override;
  DeviceRooms rooms() const override;
  absl::Status Prepare(const StepLimits& limits) override;
  absl::Status RunStep(const StepInputs& step, const StepCalls& issue) override;
  DeviceWork device_work() const override;
  std::string about() const override;
  void WhenDone(std::function<void()> work) override { stream_.Call(std::move(work)); }
  void EndStep() override {
    if (hands_over_) Sync();
  }
  void FollowStep() override;
  absl::StatusOr<std::unique_ptr<KvMover>> MakeKvMover(size_t staging_bytes, bool lends) override;
  absl::StatusOr<std::shared_ptr<RankGroup>> JoinGroup(const GroupSeat& seat) override;
  absl::StatusOr<std::unique_ptr<PackedLinear>> Pack(const Tensor& weight, const float* bias) override;
  absl::StatusOr<std::unique_ptr<PackedLinear>> PackQuantized(const QuantizedWeight& weight,
                                                              const float* bias) override;
  absl::StatusOr<std::unique_ptr<PackedExperts>> PackExperts(const Tensor& weights, const float* biases) override;

  void Embedding(std::span<const int32_t> ids, const Tensor& table, float scale, const Tensor& out) override;
  void RmsNorm(const Tensor& x, const float* weight, float weight_offset, float eps, const Tensor& out) override;
  void AddRmsNorm(const Tensor& x, const Tensor& residual, const float* weight, float weight_offset, float eps,
                  const Tensor& out) override;
  void Add(const Tensor& x, const Tensor& residual) override;
  void Linear(const Tensor& x, const PackedLinear& w, const Tensor& out) override;
  void GatedLinear(const Tensor& x, const PackedLinear& w, Activation act, const Tensor& gate_up,
                   const Tensor& out) override;
  void LinearAdd(const Tensor& x, const PackedLinear& w, const Tensor& product, const Tensor& residual) override;
  void GatedActivation(Activation act, const Tensor& gate_up, const Tensor& out) override;
  void GatherRows(const Tensor& x, std::span<const int32_t> rows, const Tensor& out) override;
  void NormRopeAndWriteKv(const Tensor& q, const Tensor& k, const Tensor& v, const float* q_norm, const float* k_norm,
                          float norm_offset, float norm_eps, const RopeParams& rope, const RaggedBatch& batch,
                          const KvLayerView& kv) override;
  void Attention(const Tensor& q, const RaggedBatch& batch, const KvLayerView& kv, const AttentionParams& params,
                 const Tensor& out) override;
  void LatentAttention(const Tensor& q, const RaggedBatch& batch, const KvPlaneView& latents,
                       const AttentionParams& params, const Tensor& out) override;
  void RouteTokens(const Tensor& logits, bool renormalize, const MoeRoutes& routes) override;
  void ExpertLinear(const Tensor& x, bool by_row, const MoeRoutes& routes, const PackedExperts& w,
                    const Tensor& out) override;
  void CombineExperts(const Tensor& y, const MoeRoutes& routes, const Tensor& out) override;
  void CopyBlocks(std::span<const int32_t> src, std::span<const int32_t> dst, const KvLayerView& kv) override;
  void SoftCap(float cap, const Tensor& x) override;
  std::vector<SampleResult> Sample(const Tensor& logits, std::span<const SampleRow> rows) override;
  std::unique_ptr<Draw> BeginSample(const Tensor& logits, std::span<const SampleRow> rows) override;
  bool DrawsLater(std::span<const SampleRow> rows) const override;
  std::vector<SampleResult> Logprobs(const Tensor& logits, std::span<const int32_t> targets, int32_t k) override;

 private:
  /// StepInputs::draws of the step that was given last.
  struct GivenDraws {
    std::span<const SampleRow> rows;
    cuda::SampleLists lists;
    cuda::SampleInputs sent;
  };
  /// Calls of a step of decodes, and whether the sampler is the last of them.
  struct Recorded {
    gpu::Graph graph;
    bool draws = false;
  };
  template <typename In>
  void Norm(const Tensor* x, const Tensor& residual, const float* weight, float offset, float eps, const Tensor& out);
  template <typename Kv>
  void WriteKv(const Tensor& q, const Tensor& k, const Tensor& v, const float* q_norm, const float* k_norm,
               float norm_offset, float norm_eps, const RopeParams& rope, const cuda::StepOnDevice& step,
               const KvLayerView& kv);
  template <typename Kv>
  void Attend(const Tensor& q, const RaggedBatch& batch, const KvLayerView& kv, const AttentionParams& params,
              const Tensor& out);
  template <typename Kv>
  void AttendLatents(const Tensor& q, const RaggedBatch& batch, const KvPlaneView& latents,
                     const AttentionParams& params, const Tensor& out);
  int MaxPartials(int dim) const;
  int DecodeBlocks() const;
  cuda::StepUpload::Sharing SharingOf(int dim) const;
  int RecordedRows(const StepInputs& step) const;
  bool UploadStep(const StepInputs& step, int sequences, bool recorded);
  bool PackDraws(std::span<const SampleRow> draws, size_t at, cuda::StepPacker& packer);
  absl::Status PrepareDraws(const StepLimits& limits);
  absl::Status RunUploaded(const StepInputs& step, const StepCalls& issue);
  absl::Status Replay(const StepInputs& step, const StepCalls& issue);
  absl::StatusOr<Recorded> Record(const StepInputs& step, const StepCalls& issue);
  bool DrawsInRecord(const Tensor& logits) const;
  void CheckUnread(std::span<const SampleRow> rows) const;
  cuda::StepUpload& UploadOf(const RaggedBatch& batch, int tokens_per_block);
  int32_t* TokensOnDevice(std::span<const int32_t> tokens);
  const int32_t* RowsOnDevice(std::span<const int32_t> rows);
  bool TakesGemv(const Tensor& x, const PackedLinear& w) const;
  template <typename Out>
  void OwnDenseLinear(const cuda::GemmParams<Out>& p, bool overlapped);
  template <typename Out>
  void DenseLinear(const cuda::GemmParams<Out>& p, const void* narrow_bias, bool overlapped);
  template <typename Out>
  void OwnE4m3Linear(const cuda::E4m3GemmParams<Out>& p);
  void RunOwn(const cuda::DenseProduct& product);
  void OfferToLibrary(const cuda::PackedWeight& weight);
  void FindLibrary(const CudaOpsConfig& config);
  absl::Status MeasureLibrary(const StepLimits& limits);
  void DenseLinear(const Tensor& x, const cuda::PackedWeight& w, const Tensor& out, bool adds);
  template <typename Out>
  void LinearOfRounded(const Tensor& x, const cuda::PackedWeight& w, Out* out, int64_t out_stride);
  template <typename Out>
  void LinearOfExpanded(const cuda::PackedWeight& w, const cuda::QuantGemmParams<Out>& p);
  template <typename Kv, int kDim, bool kFixed>
  void LaunchPrefill(const cuda::PrefillParams<Kv>& p, int tiles);
  template <typename Kv>
  void TakePartials(const cuda::AttentionWork::Decode& slice, int rows, int dim, cuda::DecodeParams<Kv>& p);
  absl::StatusOr<const float*> MakeScales(float scale);
  const float* ScalesOf(const KvPlaneView& plane);
  const float* ones() const { return static_cast<const float*>(ones_.data()); }

  const bool deterministic_;
  bool gemv_ = false;             ///< a few rows have a form of their own
  bool wgmma_ = false;            ///< dense layers are multiplied by it
  bool wgmma_e4m3_ = false;       ///< and layers whose inputs become e4m3
  bool wgmma_attention_ = false;  ///< prompts attend with it
  const int64_t one_shot_bytes_;
  const size_t work_bytes_;
  gpu::DeviceInfo device_;
  OpsTraits traits_;
  gpu::Stream stream_;
  cuda::WeightUpload weights_;
  std::unique_ptr<cuda::LtLinear> library_;   ///< null: it is not there, or the deterministic form needs none
  cuda::LtLinear::Timer timer_;               ///< of it
  std::string no_library_;                    ///< why it is not there
  std::set<cuda::LtWeight> library_weights_;  ///< what it may multiply
  int not_its_scales_ = 0;                    ///< weights in e4m3 whose scales it has none like
  cuda::StepUploads steps_;
  cuda::StepArena step_arena_;           ///< all inputs of the step that runs
  std::optional<StepLimits> limits_;     ///< once prepared
  std::optional<StepInputs> step_;       ///< that runs
  int32_t* step_tokens_ = nullptr;       ///< of the last step, on the device
  size_t step_token_count_ = 0;          ///< of them
  const int32_t* step_rows_ = nullptr;   ///< of step_, on the device
  cuda::SampleInputs step_draws_;        ///< of a recorded step: of all its rows
  std::map<size_t, Recorded> recorded_;  ///< by number of rows
  std::set<size_t> connected_;           ///< numbers of rows of which a step was launched before one is recorded
  const void* recorded_memory_ = nullptr;
  cuda::RopeCache rope_;
  Scratch ids_, partial_o_, partial_ml_, sample_;
  std::optional<GivenDraws> given_draws_;
  size_t given_drawn_rows_ = 0;       ///< of the recorded step that has drawn them, padding included; 0: nobody has
  std::optional<gpu::Memory> drawn_;  ///< int32_t of the rows of the last BeginSample; once prepared
  size_t drawn_rows_ = 0;             ///< of it
  std::array<cuda::DrawSlot, 2> draw_slots_;
  size_t next_draw_ = 0;
  std::array<gpu::Event, 2> step_ends_;  ///< of the last two steps that were followed
  size_t next_end_ = 0;
  int64_t follow_waits_ = 0;             ///< for them
  CodeRooms codes_;                      ///< what the weights that are packed need of the three below
  Scratch ordered_;                      ///< x of a linear layer in the order of its weight's inputs
  Scratch expanded_;                     ///< outputs of a weight in codes, in bf16
  Scratch rounded_;                      ///< x of a linear layer in e4m3, and its scales
  gpu::Memory ones_;                     // scales of e4m3 KV
  std::map<float, gpu::Memory> scales_;  ///< others, by their number: one for each of kMaxKvHeads heads
  bool hands_over_ = false;              ///< another stream moves KV
  int64_t handoff_bytes_ = 0;            ///< that it has taken of the device
  bool has_peers_ = false;               ///< of a group, that run the steps that this one does
  std::vector<std::weak_ptr<RankGroup>> groups_;
};

}  // namespace baton::kernels
