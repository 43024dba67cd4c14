// RoPE, KV writes and attention of CudaOps.
#include <algorithm>
#include <iterator>
#include <type_traits>

#include "common/kv_layout.h"
#include "common/status.h"
#include "kernels/cuda/host/cuda_ops_class.h"
#include "kernels/cuda/host/device_memory.h"
#include "kernels/cuda/instances/instances.h"
#include "kernels/device_shapes.h"

namespace baton::kernels {
namespace {

#define BATON_ITEM(dim) dim,
constexpr int kCompiledDims[] = {BATON_FOR_HEAD_DIMS(BATON_ITEM)};
#undef BATON_ITEM
static_assert(std::equal(std::begin(kCompiledDims), std::end(kCompiledDims), kDeviceHeadDims.begin(),
                         kDeviceHeadDims.end()) &&
              kDeviceMostKvHeads == kMaxKvHeads);

}  // namespace

// A kernel reads them from the device, and a recorded step from where they lay when it was recorded.
absl::StatusOr<const float*> CudaOps::MakeScales(float scale) {
  if (scale == 1.0f) return ones();
  const auto found = scales_.find(scale);
  if (found != scales_.end()) return static_cast<const float*>(found->second.data());
  BATON_ASSIGN_OR_RETURN(gpu::Memory memory,
                         cuda::AllocateOnDevice(kMaxKvHeads * sizeof(float), "a scale of KV for each head"));
  const std::vector<float> values(kMaxKvHeads, scale);
  stream_.Upload(memory.data(), values.data(), memory.bytes());
  return static_cast<const float*>(scales_.emplace(scale, std::move(memory)).first->second.data());
}

// Those of StepLimits::kv_scales are there.
const float* CudaOps::ScalesOf(const KvPlaneView& plane) {
  const absl::StatusOr<const float*> scales = MakeScales(plane.dtype == DType::kF8E4M3 ? plane.scale : 1.0f);
  BATON_CHECK(scales.ok(), scales.status().ToString());
  return *scales;
}

template <typename Kv>
void CudaOps::WriteKv(const Tensor& q, const Tensor& k, const Tensor& v, const float* q_norm, const float* k_norm,
                      float norm_offset, float norm_eps, const RopeParams& rope, const cuda::StepOnDevice& step,
                      const KvLayerView& kv) {
  const float* table = rope_.Get(rope, step.last_position + 1);
  const cuda::RopeKvParams<Kv> p{Row<const bf16>(q),
                                 Row<const bf16>(k),
                                 Row<const bf16>(v),
                                 q.row_stride,
                                 k.row_stride,
                                 v.row_stride,
                                 Row<bf16>(q),
                                 q.row_stride,
                                 q_norm,
                                 k_norm,
                                 table,
                                 step.positions,
                                 step.slots,
                                 static_cast<Kv*>(kv.k.base),
                                 static_cast<Kv*>(kv.v.base),
                                 kv.k.block_stride_bytes / static_cast<int64_t>(sizeof(Kv)),
                                 ScalesOf(kv.k),
                                 ScalesOf(kv.v),
                                 kv.k.digests,
                                 kv.v.digests,
                                 kv.k.digest_block_stride,
                                 step.rows,
                                 Int(q.cols() / kv.k.dim),
                                 kv.k.heads,
                                 rope.rotary_dim,
                                 kv.k.tokens_per_block,
                                 kv.layer,
                                 kv.first_head,
                                 norm_eps,
                                 norm_offset,
                                 step.apart};
  switch (kv.k.dim) {
#define BATON_CASE(dim) \
  case dim: return cuda::LaunchRopeKv<Kv, dim>(stream_, p, kOverlapped);
    BATON_FOR_HEAD_DIMS(BATON_CASE)
#undef BATON_CASE
    default: BATON_CHECK(false, "head_dim ", kv.k.dim);
  }
}

void CudaOps::NormRopeAndWriteKv(const Tensor& q, const Tensor& k, const Tensor& v, const float* q_norm,
                                 const float* k_norm, float norm_offset, float norm_eps, const RopeParams& rope,
                                 const RaggedBatch& batch, const KvLayerView& kv) {
  BATON_CHECK(kv.k.dtype == traits_.kv && kv.k.dim == kv.v.dim && kv.k.block_stride_bytes == kv.v.block_stride_bytes &&
              kv.k.heads <= kMaxKvHeads && kv.k.digest_block_stride == kv.v.digest_block_stride &&
              rope.rotary_dim <= kv.k.dim);
  const cuda::StepOnDevice& step = UploadOf(batch, kv.k.tokens_per_block).Get(batch, kv.k.tokens_per_block);
  BATON_CHECK(q.rows() == step.rows && k.rows() == step.rows && v.rows() == step.rows, "q of ", q.rows(),
              " rows, batch of ", step.rows);
  if (step.rows == 0) return;
  if (kv.k.digests != nullptr && !step.apart) {  // else the write begins units, in the same launch
    cuda::LaunchBeginUnits(stream_,
                           {kv.k.digests, kv.v.digests, kv.k.digest_block_stride, step.slots, step.rows, kv.k.heads,
                            kv.k.tokens_per_block, kUnitTokens},
                           kOverlapped);
  }
  if (traits_.kv == DType::kBF16)
    WriteKv<bf16>(q, k, v, q_norm, k_norm, norm_offset, norm_eps, rope, step, kv);
  else
    WriteKv<e4m3>(q, k, v, q_norm, k_norm, norm_offset, norm_eps, rope, step, kv);
}

// `keys` with the values at `values` (null: none), of whole sequences.
template <typename Kv>
cuda::PagedKv<Kv> CacheOf(const KvPlaneView& keys, const void* values, const cuda::StepOnDevice& step,
                          const float* key_scales, const float* value_scales) {
  return {static_cast<const Kv*>(keys.base),
          static_cast<const Kv*>(values),
          keys.block_stride_bytes / static_cast<int64_t>(sizeof(Kv)),
          step.tables,
          step.table_stride,
          0,
          step.lengths,
          1,
          0,
          cuda::MakeBlockSize(keys.tokens_per_block),
          keys.heads,
          key_scales,
          value_scales};
}

// All but the work and where its partials go, which TakePartials says.
template <typename Kv>
cuda::DecodeParams<Kv> DecodeOf(const Tensor& q, const Tensor& out, const cuda::StepOnDevice& step,
                                const cuda::PagedKv<Kv>& kv, const cuda::AttentionOptions& options, int q_heads) {
  return {Row<const bf16>(q),
          Row<bf16>(out),
          nullptr,
          q.row_stride,
          out.row_stride,
          step.row_start,
          nullptr,
          {},
          nullptr,
          nullptr,
          kv,
          options,
          q_heads};
}

// Partials that one launch may leave for its combination.
int CudaOps::MaxPartials(int dim) const {
  return Int(std::max<int64_t>(1, static_cast<int64_t>(work_bytes_) / (int64_t{cuda::kRowsPerWarp} * dim * 4)));
}

int CudaOps::DecodeBlocks() const {
  return device_.multiprocessors *
         (traits_.kv == DType::kBF16 ? cuda::kDecodeBlocksPerSm<bf16> : cuda::kDecodeBlocksPerSm<e4m3>);
}

cuda::StepUpload::Sharing CudaOps::SharingOf(int dim) const {
  return {deterministic_ ? 0 : DecodeBlocks(), MaxPartials(dim)};
}

// The next slice's launch waits for this one's to read the partials before it writes its own: stream order.
template <typename Kv>
void CudaOps::TakePartials(const cuda::AttentionWork::Decode& slice, int rows, int dim, cuda::DecodeParams<Kv>& p) {
  const size_t count = static_cast<size_t>(slice.partials) * static_cast<size_t>(rows);
  p.work = slice.work;
  p.partial_o = partial_o_.Room<float>(count * static_cast<size_t>(dim));
  p.partial_ml = partial_ml_.Room<float>(count * 2);
}

template <typename Kv, int kDim, bool kFixed>
void CudaOps::LaunchPrefill(const cuda::PrefillParams<Kv>& p, int tiles) {
  if constexpr (cuda::kWgmmaPrefills<Kv, kDim>) {
    if (wgmma_attention_ && cuda::WgmmaPrefillSuits<kDim>(p))
      return cuda::LaunchWgmmaPrefill<kDim, kFixed>(stream_, p, tiles, kOverlapped);
  }
  cuda::LaunchPrefillAttention<Kv, kDim, kFixed>(stream_, p, tiles, kOverlapped);
}

template <typename Kv>
void CudaOps::Attend(const Tensor& q, const RaggedBatch& batch, const KvLayerView& kv, const AttentionParams& params,
                     const Tensor& out) {
  const int q_heads = Int(q.cols() / kv.k.dim);
  cuda::StepUpload& upload = UploadOf(batch, kv.k.tokens_per_block);
  const cuda::StepOnDevice& step = upload.Get(batch, kv.k.tokens_per_block);
  const cuda::AttentionWork& work = upload.Work({q_heads, kv.k.heads, params.window}, SharingOf(kv.k.dim));
  const auto cache = CacheOf<Kv>(kv.k, kv.v.base, step, ScalesOf(kv.k), ScalesOf(kv.v));
  const cuda::AttentionOptions options{params.scale, params.window, params.logit_softcap, params.sinks};
  const cuda::PrefillParams<Kv> prefill{Row<const bf16>(q), Row<bf16>(out), nullptr, q.row_stride, out.row_stride,
                                        work.tiles,         step.row_start, cache,   options,      q_heads};
  cuda::DecodeParams<Kv> decode = DecodeOf(q, out, step, cache, options, q_heads);
  auto launch_form = [&]<int kDim, bool kFixed>() {
    LaunchPrefill<Kv, kDim, kFixed>(prefill, work.tile_count);
    for (const cuda::AttentionWork::Decode& slice : work.decode) {
      TakePartials(slice, cuda::kRowsPerWarp, kDim, decode);
      cuda::LaunchDecodeAttention<Kv, kDim, kFixed>(stream_, decode, DecodeBlocks(), kOverlapped);
    }
  };
  auto launch = [&]<int kDim>(std::integral_constant<int, kDim>) {
    if (deterministic_)
      launch_form.template operator()<kDim, true>();
    else
      launch_form.template operator()<kDim, false>();
  };
  switch (kv.k.dim) {
#define BATON_CASE(dim) \
  case dim: return launch(std::integral_constant<int, dim>{});
    BATON_FOR_HEAD_DIMS(BATON_CASE)
#undef BATON_CASE
    default: BATON_CHECK(false, "head_dim ", kv.k.dim);
  }
}

void CudaOps::Attention(const Tensor& q, const RaggedBatch& batch, const KvLayerView& kv, const AttentionParams& params,
                        const Tensor& out) {
  BATON_CHECK(q.cols() == out.cols() && q.rows() == out.rows() && q.cols() % kv.k.dim == 0 &&
              q.cols() / kv.k.dim % kv.k.heads == 0);
  if (traits_.kv == DType::kBF16)
    Attend<bf16>(q, batch, kv, params, out);
  else
    Attend<e4m3>(q, batch, kv, params, out);
}

template <typename Kv>
void CudaOps::AttendLatents(const Tensor& q, const RaggedBatch& batch, const KvPlaneView& latents,
                            const AttentionParams& params, const Tensor& out) {
  const int q_heads = Int(q.cols() / kLatentDim), blocks = device_.multiprocessors;
  cuda::StepUpload& upload = UploadOf(batch, latents.tokens_per_block);
  const cuda::StepOnDevice& step = upload.Get(batch, latents.tokens_per_block);
  constexpr int kPartialRows = cuda::kMlaRows;
  const cuda::AttentionWork& work =
      upload.Work({.q_heads = q_heads, .kv_heads = 1, .latent = true},
                  {deterministic_ ? 0 : blocks, MaxPartials(kPartialRows / cuda::kRowsPerWarp * kLatentValues)});
  const auto cache = CacheOf<Kv>(latents, nullptr, step, ones(), ones());
  const cuda::AttentionOptions options{params.scale, 0, params.logit_softcap, nullptr};
  cuda::DecodeParams<Kv> p = DecodeOf(q, out, step, cache, options, q_heads);
  for (const cuda::AttentionWork::Decode& slice : work.decode) {
    TakePartials(slice, kPartialRows, kLatentValues, p);
    if (deterministic_)
      cuda::LaunchMlaDecode<true>(stream_, p, blocks, kOverlapped);
    else
      cuda::LaunchMlaDecode<false>(stream_, p, blocks, kOverlapped);
  }
}

void CudaOps::LatentAttention(const Tensor& q, const RaggedBatch& batch, const KvPlaneView& latents,
                              const AttentionParams& params, const Tensor& out) {
  static_assert(kLatentDim == cuda::kMlaDim && kLatentValues == cuda::kMlaLatent);
  BATON_CHECK(q.cols() % kLatentDim == 0 && out.cols() == q.cols() / kLatentDim * kLatentValues &&
                  q.rows() == out.rows() && q.rows() == batch.row_start.back() && q.dtype == DType::kBF16 &&
                  out.dtype == DType::kBF16,
              "q [", q.rows(), ", ", q.cols(), "], out [", out.rows(), ", ", out.cols(), "]");
  BATON_CHECK(latents.heads == 1 && latents.dim == kLatentDim && latents.dtype == traits_.kv && params.window == 0 &&
                  params.sinks == nullptr,
              latents.heads, " heads of ", latents.dim, ", window ", params.window);
  if (traits_.kv == DType::kBF16)
    AttendLatents<bf16>(q, batch, latents, params, out);
  else
    AttendLatents<e4m3>(q, batch, latents, params, out);
}

}  // namespace baton::kernels
