#include "common/kv_layout.h"
#include "common/status.h"
#include "kernels/cuda/host/cublas_lt_library.h"
#include "kernels/cuda/host/cuda_ops_class.h"
#include "kernels/cuda/host/device_buffer.h"
#include "kernels/cuda/host/device_memory.h"
#include "kernels/cuda/host/sample_rows.h"
#include "kernels/cuda/host/wgmma_bits.h"
#include "kernels/cuda/instances/instances.h"
#include "kernels/packed_size.h"

namespace baton::kernels {

CudaOps::CudaOps(const CudaOpsConfig& config, gpu::Memory ones)
    : deterministic_(config.deterministic),
      one_shot_bytes_(config.one_shot_bytes),
      work_bytes_(config.work_bytes),
      device_(gpu::CurrentDevice()),
      weights_(stream_),
      steps_(stream_),
      step_arena_(stream_),
      rope_(stream_),
      ids_(stream_),
      partial_o_(stream_),
      partial_ml_(stream_),
      sample_(stream_),
      codes_(static_cast<int64_t>(config.work_bytes)),
      ordered_(stream_),
      expanded_(stream_),
      rounded_(stream_),
      ones_(std::move(ones)) {
#if !defined(__CUDACC__)
  stream_.SetPolicy(config.policy);
  if (config.multiprocessors > 0) device_.multiprocessors = config.multiprocessors;
#endif
  traits_ = {
      DType::kBF16,      config.kv_dtype, device_.architecture, deterministic_ ? "cuda-5" : "cuda-5-fast", 1, true, 8,
      cuda::kGemvMaxRows};
  traits_.work_bytes = static_cast<int64_t>(config.work_bytes);
  if (!made().ok()) return;
  const std::vector<float> values(kMaxKvHeads, 1.0f);
  stream_.Upload(ones_.data(), values.data(), ones_.bytes());
  const bool has_wgmma = cuda::HasWgmma(device_.architecture);
  cuda::DenseForms dense{.wgmma = has_wgmma};
#if defined(__CUDACC__)
  for (const int k : cuda::kCheckedProducts)
    if (deterministic_) dense = cuda::AddAsMmaSync(stream_, k, dense);
  const auto tiles_agree = [&] { return cuda::E4m3WgmmaTilesAgree(stream_); };
  const auto attends_alike = [&] { return cuda::WgmmaAttendsAsMmaSync(stream_); };
#else
  const auto keeps_bits = [&] { return !config.wgmma_differs; };  // what asking says: cuda_gemm_wgmma_test
  const auto tiles_agree = keeps_bits, attends_alike = keeps_bits;
  if (deterministic_) dense = {has_wgmma && keeps_bits(), !config.gemv_differs};
#endif
  gemv_ = dense.gemv;
  wgmma_ = dense.wgmma;
  wgmma_e4m3_ = has_wgmma && tiles_agree();
  if (has_wgmma && !wgmma_e4m3_) traits_.kernel_version += "-e4m3mma";  // whose sums may have other bits
  wgmma_attention_ = wgmma_ && attends_alike();
  if (!deterministic_) FindLibrary(config);
}

absl::Status CudaOps::made() const {
  BATON_RETURN_IF_ERROR(cuda::CheckMade(stream_));
  for (const gpu::Event& end : step_ends_) BATON_RETURN_IF_ERROR(cuda::CheckMade(end));
  return absl::OkStatus();
}

// Its version is in the numerics id: another one adds in another order.
void CudaOps::FindLibrary([[maybe_unused]] const CudaOpsConfig& config) {
#if defined(__CUDACC__)
  static const absl::StatusOr<gpu::CublasLtApi> api = cuda::FindCublasLt();
  timer_ = cuda::HostTimer(stream_);
#else
  const absl::StatusOr<gpu::CublasLtApi> api = config.cublas_lt != nullptr
                                                   ? absl::StatusOr<gpu::CublasLtApi>(*config.cublas_lt)
                                                   : absl::NotFoundError("no cuBLASLt: the emulator was given none");
  timer_ = [wins = config.library_wins](const cuda::DenseProduct& like, bool library,
                                        const std::function<void(int)>& run) {
    if (!library && like.m <= 16 && !like.wide) run(0);  // an emulated GEMM takes its time; a product was tried before
    return library && (!wins || wins(like.m, like.n, like.k)) ? 0.5 : library ? 2.0 : 1.0;
  };
#endif
  auto library = api.ok() ? cuda::LtLinear::Make(*api, stream_) : api.status();
  if (!library.ok()) {
    no_library_ = std::string(library.status().message());
    return;
  }
  library_ = *std::move(library);
  traits_.library_bytes = kLibraryBytes;
  traits_.kernel_version += StrCat("-cublaslt", library_->version());
}

absl::StatusOr<std::unique_ptr<Buffer>> CudaOps::Allocate(size_t bytes) {
  stream_.Bind();
  BATON_ASSIGN_OR_RETURN(gpu::Memory memory, cuda::AllocateOnDevice((bytes + 63) / 64 * 64, "a buffer"));
  auto buffer = std::make_unique<DeviceBuffer>(stream_, std::move(memory), bytes);
  stream_.FillAsync(buffer->data(), 0, bytes);
  return buffer;
}

// A table that is loaded goes through the pinned memory of weights, where the host has that.
void CudaOps::CopyToDevice(void* dst, const void* src, size_t bytes) {
  const bool table = !limits_ && bytes >= static_cast<size_t>(kWeightHalfBytes);
  if (!table || !weights_.Bytes(src, dst, bytes).ok()) stream_.Upload(dst, src, bytes);
}

std::optional<DeviceMemory> CudaOps::device_memory() const {
  stream_.Bind();
  const gpu::DeviceInfo now = gpu::CurrentDevice();
  return DeviceMemory{static_cast<int64_t>(now.free_bytes), static_cast<int64_t>(now.total_bytes)};
}

// ---- dense

void CudaOps::Embedding(std::span<const int32_t> ids, const Tensor& table, float scale, const Tensor& out) {
  BATON_CHECK(out.rows() == static_cast<int64_t>(ids.size()) && out.cols() == table.cols() &&
              out.dtype == DType::kF32 && out.cols() % 8 == 0);
  for (int32_t id : ids) {
    BATON_CHECK(id < 0 ? static_cast<size_t>(~id) < drawn_rows_ : id < table.rows(), "token ", id,
                " of a vocabulary of ", table.rows(), ", ", drawn_rows_, " are drawn");
  }
  int32_t* on_device = TokensOnDevice(ids);
  auto launch = [&]<typename T>(const T* data) {
    cuda::LaunchEmbedding(stream_,
                          cuda::EmbeddingParams<T>{on_device, data, Row<float>(out), table.row_stride, out.row_stride,
                                                   Int(ids.size()), Int(out.cols()), 0, Int(table.rows()), scale,
                                                   drawn_ ? static_cast<const int32_t*>(drawn_->data()) : nullptr},
                          kOverlapped);
  };
  switch (table.dtype) {
    case DType::kF32: return launch(Row<const float>(table));
    case DType::kBF16: return launch(Row<const bf16>(table));
    case DType::kF16: return launch(Row<const px::f16>(table));
    default: BATON_CHECK(false, "embedding of ", DTypeName(table.dtype));
  }
}

template <typename In>
void CudaOps::Norm(const Tensor* x, const Tensor& residual, const float* weight, float offset, float eps,
                   const Tensor& out) {
  BATON_CHECK(residual.dtype == DType::kF32 && residual.rows() == out.rows() && residual.cols() == out.cols() &&
              out.cols() % 8 == 0);
  auto launch = [&]<typename Out>(Out* to) {
    cuda::LaunchRmsNorm(
        stream_,
        cuda::RmsNormParams<In, Out>{x != nullptr ? Row<const In>(*x) : nullptr, Row<float>(residual), weight, to,
                                     x != nullptr ? x->row_stride : 0, residual.row_stride, out.row_stride,
                                     Int(out.rows()), Int(out.cols()), eps, offset, 1.0f},
        kOverlapped);
  };
  if (out.dtype == DType::kF32)
    launch(Row<float>(out));
  else
    launch(Row<bf16>(out));
}

void CudaOps::RmsNorm(const Tensor& x, const float* weight, float weight_offset, float eps, const Tensor& out) {
  Norm<float>(nullptr, x, weight, weight_offset, eps, out);
}

void CudaOps::AddRmsNorm(const Tensor& x, const Tensor& residual, const float* weight, float weight_offset, float eps,
                         const Tensor& out) {
  BATON_CHECK(x.rows() == residual.rows() && x.cols() == residual.cols());
  if (x.dtype == DType::kF32)
    Norm<float>(&x, residual, weight, weight_offset, eps, out);
  else
    Norm<bf16>(&x, residual, weight, weight_offset, eps, out);
}

void CudaOps::Add(const Tensor& x, const Tensor& residual) {
  BATON_CHECK(residual.dtype == DType::kF32 && x.rows() == residual.rows() && x.cols() == residual.cols() &&
              x.cols() % 8 == 0);
  auto launch = [&]<typename In>(const In* data) {
    cuda::LaunchAddRows(stream_, cuda::AddRowsParams<In>{data, Row<float>(residual), x.row_stride, residual.row_stride,
                                                         Int(x.rows()), Int(x.cols())});
  };
  if (x.dtype == DType::kF32)
    launch(Row<const float>(x));
  else
    launch(Row<const bf16>(x));
}

void CudaOps::GatedActivation(Activation act, const Tensor& gate_up, const Tensor& out) {
  BATON_CHECK(gate_up.cols() == 2 * out.cols() && gate_up.rows() == out.rows() && gate_up.dtype == DType::kBF16 &&
              out.dtype == DType::kBF16 && out.cols() % 8 == 0);
  const cuda::GatedActivationParams<bf16> p{Row<const bf16>(gate_up),
                                            Row<bf16>(out),
                                            gate_up.row_stride,
                                            out.row_stride,
                                            Int(out.rows()),
                                            Int(out.cols()),
                                            1.0f};
  if (act == Activation::kSilu)
    cuda::LaunchGatedActivation<cuda::Gate::kSilu>(stream_, p, kOverlapped);
  else
    cuda::LaunchGatedActivation<cuda::Gate::kGeluTanh>(stream_, p, kOverlapped);
}

void CudaOps::GatherRows(const Tensor& x, std::span<const int32_t> rows, const Tensor& out) {
  const int64_t element = static_cast<int64_t>(DTypeBytes(x.dtype));
  BATON_CHECK(out.rows() == static_cast<int64_t>(rows.size()) && out.cols() == x.cols() && out.dtype == x.dtype &&
              x.cols() * element % 4 == 0);
  for (int32_t r : rows) BATON_CHECK(r >= 0 && r < x.rows(), "row ", r, " of ", x.rows());
  cuda::LaunchGatherRows(
      stream_, {Row<const unsigned char>(x), Row<unsigned char>(out), RowsOnDevice(rows), x.row_stride * element,
                out.row_stride * element, Int(rows.size()), Int(x.cols() * element)});
}

void CudaOps::SoftCap(float cap, const Tensor& x) {
  BATON_CHECK(x.dtype == DType::kF32 && cap > 0);
  cuda::LaunchSoftCap(stream_, {Row<float>(x), x.row_stride, Int(x.rows()), Int(x.cols()), cap});
}

void CudaOps::CopyBlocks(std::span<const int32_t> src, std::span<const int32_t> dst, const KvLayerView& kv) {
  BATON_CHECK(src.size() == dst.size());
  constexpr size_t kPairs = Scratch::kSmallest / (2 * sizeof(int32_t));
  if (src.size() > kPairs) {
    CopyBlocks(src.first(kPairs), dst.first(kPairs), kv);
    return CopyBlocks(src.subspan(kPairs), dst.subspan(kPairs), kv);
  }
  std::vector<int32_t> pairs;
  for (size_t i = 0; i < src.size(); ++i) pairs.insert(pairs.end(), {src[i], dst[i]});
  const int32_t* on_device = ids_.Upload(std::span<const int32_t>(pairs));
  for (const KvPlaneView* plane : {&kv.k, &kv.v}) {
    const int64_t bytes = static_cast<int64_t>(plane->tokens_per_block) * plane->heads * plane->dim *
                          static_cast<int64_t>(DTypeBytes(plane->dtype));
    cuda::LaunchCopyBlocks(stream_, {static_cast<unsigned char*>(plane->base), plane->block_stride_bytes, bytes,
                                     plane->digests, plane->digest_block_stride, on_device, Int(src.size()),
                                     plane->tokens_per_block / kUnitTokens * plane->heads});
  }
}

// ---- logits

void CudaOps::CheckUnread(std::span<const SampleRow> rows) const {
  for (const SampleRow& row : rows)
    BATON_CHECK(row.unread_row < Int(step_token_count_), "row ", row.unread_row, " of ", step_token_count_);
}

std::vector<SampleResult> CudaOps::Sample(const Tensor& logits, std::span<const SampleRow> rows) {
  BATON_CHECK(logits.rows() == static_cast<int64_t>(rows.size()) && logits.dtype == DType::kF32);
  CheckUnread(rows);
  return cuda::RunSample(stream_, sample_, logits, rows, step_tokens_, work_bytes_);
}

bool CudaOps::DrawsLater(std::span<const SampleRow> rows) const {
  return drawn_ && limits_ && rows.size() * sizeof(int32_t) <= drawn_->bytes() &&
         cuda::FitOneLaunch(rows, Int(limits_->vocab), work_bytes_);
}

// As Sample, when they do not fit into one launch, or nothing is prepared.
std::unique_ptr<Draw> CudaOps::BeginSample(const Tensor& logits, std::span<const SampleRow> rows) {
  BATON_CHECK(logits.rows() == static_cast<int64_t>(rows.size()) && logits.dtype == DType::kF32);
  CheckUnread(rows);
  drawn_rows_ = 0;
  const bool given =
      given_draws_ && given_draws_->rows.data() == rows.data() && given_draws_->rows.size() == rows.size();
  if (given && given_drawn_rows_ > 0) {
    drawn_rows_ = rows.size();
    return cuda::ReadRecordedSample(stream_, sample_, std::exchange(given_draws_, std::nullopt)->lists.rows,
                                    {static_cast<int64_t>(std::exchange(given_drawn_rows_, 0)), logits.cols()},
                                    draw_slots_[next_draw_++ % draw_slots_.size()]);
  }
  if (!DrawsLater(rows)) return Ops::BeginSample(logits, rows);
  GivenDraws draws;
  if (given)
    draws = *std::exchange(given_draws_, std::nullopt);
  else
    draws.lists = cuda::PlanSample(rows, Int(logits.cols()));
  draws.sent.step_tokens = step_tokens_;
  drawn_rows_ = rows.size();
  return cuda::BeginSample(stream_, sample_, logits, std::move(draws.lists), draws.sent,
                           static_cast<int32_t*>(drawn_->data()), draw_slots_[next_draw_++ % draw_slots_.size()]);
}

std::vector<SampleResult> CudaOps::Logprobs(const Tensor& logits, std::span<const int32_t> targets, int32_t k) {
  BATON_CHECK(logits.rows() == static_cast<int64_t>(targets.size()) && logits.dtype == DType::kF32 &&
              k <= cuda::kMaxTopLogprobs);
  return cuda::RunLogprobs(stream_, sample_, logits, targets, k, work_bytes_);
}

absl::StatusOr<std::unique_ptr<Ops>> MakeCudaOps(const CudaOpsConfig& config) {
  if (config.kv_dtype != DType::kBF16 && config.kv_dtype != DType::kF8E4M3) {
    return absl::FailedPreconditionError(
        StrCat("the GPU keeps KV in bfloat16 or fp8_e4m3, not in ", DTypeName(config.kv_dtype)));
  }
  if (const std::string why = gpu::UseDevice(config.device); !why.empty())
    return absl::FailedPreconditionError(StrCat("no GPU can be used: ", why));
  if (const std::string why = gpu::OpenDevice(); !why.empty()) return absl::ResourceExhaustedError(why);
  BATON_ASSIGN_OR_RETURN(gpu::Memory ones,
                         cuda::AllocateOnDevice(kMaxKvHeads * sizeof(float), "the table of KV scales"));
  auto ops = std::make_unique<CudaOps>(config, std::move(ones));
  BATON_RETURN_IF_ERROR(ops->made());
  return ops;
}

}  // namespace baton::kernels
