// Weights, linear layers with what is fused to them, and mixtures of experts of CudaOps.
#include "common/status.h"
#include "common/str_cat.h"
#include "kernels/cuda/host/cuda_ops_class.h"
#include "kernels/cuda/host/packed_weight.h"
#include "kernels/cuda/instances/instances.h"
#include "kernels/cuda/moe/moe_limits.h"
#include "kernels/packed_size.h"

namespace baton::kernels {
namespace {

using cuda::GemvParams;
using cuda::GemvStore;
using cuda::PackedWeight;
using cuda::WeightFormat;

const PackedWeight& Packed(const PackedLinear& weight) { return static_cast<const PackedWeight&>(weight); }

void CheckShapes(const Tensor& x, const PackedLinear& w, const Tensor& out) {
  BATON_CHECK(
      x.cols() == w.in_features() && out.cols() == w.out_features() && x.rows() == out.rows() && x.row_stride % 8 == 0,
      "x [", x.rows(), ", ", x.cols(), "], weight [", w.out_features(), ", ", w.in_features(), "], out [", out.rows(),
      ", ", out.cols(), "]");
}

/// All but where x comes from.
GemvParams GemvOf(const PackedWeight& w, const Tensor& out, GemvStore store) {
  GemvParams p{.w = w.data(), .w_stride = w.row_stride(), .meta = w.meta(), .group = w.group(), .bias = w.bias()};
  p.out = out.data;
  p.out_stride = out.row_stride;
  p.store = store;
  p.m = Int(out.rows());
  p.n = Int(out.cols());
  p.k = Int(w.k());
  p.inputs = w.inputs();
  return p;
}
void ReadRows(GemvParams& p, const Tensor& x) {
  p.x = Row<const bf16>(x);
  p.x_stride = x.row_stride;
}
GemvStore StoreOf(const Tensor& out) { return out.dtype == DType::kF32 ? GemvStore::kF32 : GemvStore::kBf16; }

template <bool kGated>
void RunGemv(gpu::Stream& stream, WeightFormat format, const GemvParams& p) {
  switch (format) {
    case WeightFormat::kBf16: return cuda::LaunchGemv<WeightFormat::kBf16, kGated>(stream, p, kOverlapped);
    case WeightFormat::kInt8: return cuda::LaunchGemv<WeightFormat::kInt8, kGated>(stream, p, kOverlapped);
    case WeightFormat::kInt4: return cuda::LaunchGemv<WeightFormat::kInt4, kGated>(stream, p, kOverlapped);
    case WeightFormat::kE4m3: return cuda::LaunchGemv<WeightFormat::kE4m3, kGated>(stream, p, kOverlapped);
  }
}

template <typename Out>
void RunQuantGemm(gpu::Stream& stream, WeightFormat format, const cuda::QuantGemmParams<Out>& p) {
  switch (format) {
    case WeightFormat::kBf16: break;
    case WeightFormat::kInt8: return cuda::LaunchQuantGemm<WeightFormat::kInt8>(stream, p, kOverlapped);
    case WeightFormat::kInt4: return cuda::LaunchQuantGemm<WeightFormat::kInt4>(stream, p, kOverlapped);
    case WeightFormat::kE4m3: return cuda::LaunchQuantGemm<WeightFormat::kE4m3>(stream, p, kOverlapped);
  }
  BATON_CHECK(false, "a weight in bf16 has no codes");
}

void RunDequantize(gpu::Stream& stream, WeightFormat format, const cuda::DequantizeParams& p) {
  switch (format) {
    case WeightFormat::kBf16: break;
    case WeightFormat::kInt8: return cuda::LaunchDequantize<WeightFormat::kInt8>(stream, p);
    case WeightFormat::kInt4: return cuda::LaunchDequantize<WeightFormat::kInt4>(stream, p);
    case WeightFormat::kE4m3: return cuda::LaunchDequantize<WeightFormat::kE4m3>(stream, p);
  }
  BATON_CHECK(false, "a weight in bf16 has no codes");
}

int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

static_assert(kRoundedShape.rows == cuda::kE4m3PadM && kRoundedShape.columns == cuda::kRoundedPadK);

/// fn(const Out*) with the element type of `out`.
template <typename Fn>
void WithOutput(const Tensor& out, Fn&& fn) {
  if (out.dtype == DType::kF32)
    fn(Row<float>(out));
  else
    fn(Row<bf16>(out));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PackedLinear>> CudaOps::Pack(const Tensor& weight, const float* bias) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<PackedWeight> packed,
                         PackedWeight::Make(stream_, weights_, traits_, weight, bias));
  OfferToLibrary(*packed);
  return packed;
}
absl::StatusOr<std::unique_ptr<PackedLinear>> CudaOps::PackQuantized(const QuantizedWeight& weight, const float* bias) {
  codes_.Add(weight.n, weight.k, weight.group, !weight.inputs.empty(), static_cast<bool>(weight.rounding));
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<PackedWeight> packed,
                         PackedWeight::Make(stream_, weights_, traits_, weight, bias));
  OfferToLibrary(*packed);
  return packed;
}
absl::StatusOr<std::unique_ptr<PackedExperts>> CudaOps::PackExperts(const Tensor& weights, const float* biases) {
  return cuda::PackedExpertWeights::Make(stream_, weights_, weights, biases);
}

// ---- linear layers

bool CudaOps::TakesGemv(const Tensor& x, const PackedLinear& w) const {
  return gemv_ && !w.rounds_inputs() && cuda::GemvFits(Int(x.rows()), Int(Packed(w).k()));
}

template <typename Out>
void CudaOps::OwnDenseLinear(const cuda::GemmParams<Out>& p, bool overlapped) {
  if (!wgmma_)
    cuda::LaunchGemm(stream_, p, overlapped);
  else if (cuda::NarrowSuits(p.m, p.n, device_.multiprocessors))
    cuda::LaunchNarrowGemm(stream_, p, device_.multiprocessors, overlapped);
  else
    cuda::LaunchWgmmaGemm(stream_, p, device_.multiprocessors, overlapped);
}

// `narrow_bias`: p.bias in bf16, or null.
template <typename Out>
void CudaOps::DenseLinear(const cuda::GemmParams<Out>& p, const void* narrow_bias, bool overlapped) {
  constexpr bool kWide = std::is_same_v<Out, float>;
  const void* const bias = kWide ? p.bias : narrow_bias;
  const cuda::DenseProduct product{p.x, p.w, p.out, p.x_stride, p.w_stride, p.out_stride,
                                   p.m, p.n, p.k,   kWide,      p.adds,     bias};
  const bool has_it = (p.bias == nullptr) == (bias == nullptr);
  const bool taken = library_ != nullptr && has_it && library_->Run(product);
  if (!taken) OwnDenseLinear(p, overlapped);
}

template <typename Out>
void CudaOps::OwnE4m3Linear(const cuda::E4m3GemmParams<Out>& p) {
  if (wgmma_e4m3_ && cuda::E4m3WgmmaTakes(p.k, p.group))
    cuda::LaunchE4m3Wgmma(stream_, p, device_.multiprocessors, kOverlapped);
  else
    cuda::LaunchE4m3Gemm(stream_, p, kOverlapped);
}

void CudaOps::OfferToLibrary(const PackedWeight& w) {
  if (library_ == nullptr) return;
  const std::optional<cuda::LtNumbers> numbers = w.library_numbers();
  if (!numbers) {
    not_its_scales_ += w.rounds_inputs();
    return;
  }
  library_weights_.insert({Int(w.out_features()), Int(w.k()), w.bias() != nullptr, *numbers});
}

// What measuring asks for: all scales are one, wherever a kernel looks for them.
void CudaOps::RunOwn(const cuda::DenseProduct& p) {
  const auto launch = [&]<typename Out>(Out* out) {
    const auto* const bias = static_cast<const float*>(p.bias);
    if (p.numbers == cuda::LtNumbers::kBf16) {
      return OwnDenseLinear(cuda::GemmParams<Out>{static_cast<const bf16*>(p.x), static_cast<const bf16*>(p.w), bias,
                                                  out, p.x_stride, p.w_stride, p.out_stride, p.m, p.n, p.k, p.adds},
                            kOverlapped);
    }
    const int group = p.numbers == cuda::LtNumbers::kBlockScales ? kLibraryBlock : p.k;
    OwnE4m3Linear(cuda::E4m3GemmParams<Out>{static_cast<const e4m3*>(p.x), p.x_scales, static_cast<const e4m3*>(p.w),
                                            reinterpret_cast<const cuda::QuantMeta*>(p.w_scales), bias, out,
                                            RoundUp(p.m, cuda::kE4m3PadM), p.out_stride, p.m, p.n, p.k, group});
  };
  if (p.wide)
    launch(static_cast<float*>(p.out));
  else
    launch(static_cast<bf16*>(p.out));
}

absl::Status CudaOps::MeasureLibrary(const StepLimits& limits) {
  if (library_ == nullptr) return absl::OkStatus();
  BATON_RETURN_IF_ERROR(library_->Reserve());
  std::set<int> rows(limits.recorded_rows.begin(), limits.recorded_rows.end());
  rows.insert({16, 64, 256, 512, 2048, Int(limits.rows)});
  rows.erase(rows.upper_bound(Int(limits.rows)), rows.end());
  const std::vector<cuda::LtWeight> weights(library_weights_.begin(), library_weights_.end());
  library_->Measure(
      weights, std::vector<int>(rows.begin(), rows.end()), [this](const cuda::DenseProduct& p) { RunOwn(p); }, timer_);
  return absl::OkStatus();
}

std::string CudaOps::about() const {
  if (library_ == nullptr) return no_library_;
  std::string out = library_->about();
  if (not_its_scales_ > 0) {
    out += StrCat("; ", not_its_scales_, " layers in e4m3 whose scales are of no token, row or block of ",
                  kLibraryBlock, " × ", kLibraryBlock, " are not its");
  }
  return out;
}

// `adds`: out += x · wᵀ + bias, in f32.
void CudaOps::DenseLinear(const Tensor& x, const PackedWeight& w, const Tensor& out, bool adds) {
  WithOutput(out, [&]<typename Out>(Out* to) {
    DenseLinear(
        cuda::GemmParams<Out>{Row<const bf16>(x), static_cast<const bf16*>(w.data()), w.bias(), to, x.row_stride,
                              w.row_stride(), out.row_stride, Int(x.rows()), Int(w.out_features()), Int(w.k()), adds},
        w.library_bias(), kOverlapped);
  });
}

// As many outputs at a time as there is room for. A dense GEMM that may begin before its weight is written is none:
// nothing here overlaps.
template <typename Out>
void CudaOps::LinearOfExpanded(const PackedWeight& w, const cuda::QuantGemmParams<Out>& p) {
  const int padded = Int(RoundUp(p.n, cuda::kGemmPadN)),
            most = Int(std::min<int64_t>(padded, codes_.OutputsAtOnce(p.k)));
  const int64_t stride = RoundUp(p.k, cuda::kGemmPadK);
  bf16* const rows = expanded_.Room<bf16>(static_cast<size_t>(most) * static_cast<size_t>(stride));
  for (int first = 0; first < padded; first += most) {
    const int outputs = std::min(most, padded - first);
    RunDequantize(stream_, w.format(), {p.w, p.meta, rows, first, outputs, p.n, p.k, p.group});
    DenseLinear(cuda::GemmParams<Out>{p.x, rows, p.bias != nullptr ? p.bias + first : nullptr, p.out + first,
                                      p.x_stride, stride, p.out_stride, p.m, std::min(outputs, p.n - first), p.k},
                nullptr, false);
  }
}

// Whatever the number of rows: the products of a weight that rounds its inputs are those of one GEMM alone, or of a
// library, which reads the scales of a group of inputs without room between them.
template <typename Out>
void CudaOps::LinearOfRounded(const Tensor& x, const PackedWeight& w, Out* out, int64_t out_stride) {
  const int m = Int(x.rows()), n = Int(w.out_features()), k = Int(w.k());
  const int64_t pitch = cuda::RoundedPitch(k), groups = k / w.group(), padded = RoundUp(m, cuda::kE4m3PadM);
  e4m3* const codes = rounded_.Room<e4m3>(static_cast<size_t>(CodeRooms::RoundedBytes(m, pitch, groups)));
  float* const scales = reinterpret_cast<float*>(codes + m * pitch);
  const float fixed = w.rounding().kind == InputRounding::Kind::kFixed ? w.rounding().scale : 0.0f;
  const auto round = [&](int64_t scale_stride) {
    cuda::LaunchRoundInputs(
        stream_, {Row<const bf16>(x), codes, scales, x.row_stride, scale_stride, m, k, w.group(), fixed}, kOverlapped);
  };
  if (library_ != nullptr && w.library_numbers() && (w.bias() == nullptr) == (w.library_bias() == nullptr)) {
    const cuda::DenseProduct product{codes,
                                     w.data(),
                                     out,
                                     pitch,
                                     pitch,
                                     out_stride,
                                     m,
                                     n,
                                     k,
                                     std::is_same_v<Out, float>,
                                     false,
                                     w.library_bias(),
                                     *w.library_numbers(),
                                     scales,
                                     w.library_scales()};
    if (library_->Wins(product)) {
      round(m);
      if (library_->Run(product)) return;
    }
  }
  round(padded);
  OwnE4m3Linear(cuda::E4m3GemmParams<Out>{codes, scales, static_cast<const e4m3*>(w.data()), w.meta(), w.bias(), out,
                                          padded, out_stride, m, n, k, w.group()});
}

void CudaOps::Linear(const Tensor& x, const PackedLinear& weight, const Tensor& out) {
  const PackedWeight& w = Packed(weight);
  BATON_CHECK(x.dtype == DType::kBF16, "x in ", DTypeName(x.dtype));
  CheckShapes(x, w, out);
  if (w.rounds_inputs()) {
    return WithOutput(out, [&]<typename Out>(Out* to) { LinearOfRounded(x, w, to, out.row_stride); });
  }
  if (w.format() == WeightFormat::kBf16 && wgmma_) return DenseLinear(x, w, out, false);
  if (TakesGemv(x, weight)) {  // the same bits as the GEMM
    GemvParams p = GemvOf(w, out, StoreOf(out));
    ReadRows(p, x);
    return RunGemv<false>(stream_, w.format(), p);
  }
  if (w.format() == WeightFormat::kBf16) return DenseLinear(x, w, out, false);
  const int m = Int(x.rows()), n = Int(w.out_features()), k = Int(w.k());
  const bf16* rows = Row<const bf16>(x);
  int64_t row_stride = x.row_stride;
  if (w.inputs() != nullptr) {
    bf16* const ordered = ordered_.Room<bf16>(static_cast<size_t>(m) * static_cast<size_t>(k));
    cuda::LaunchGatherColumns(stream_, {rows, w.inputs(), ordered, row_stride, m, k});
    rows = ordered;
    row_stride = k;
  }
  WithOutput(out, [&]<typename Out>(Out* to) {
    const cuda::QuantGemmParams<Out> p{
        rows,     static_cast<const px::U128*>(w.data()), w.meta(), w.bias(), to, row_stride, out.row_stride, m, n, k,
        w.group()};
    return m >= kExpandRows ? LinearOfExpanded(w, p) : RunQuantGemm(stream_, w.format(), p);
  });
}

void CudaOps::GatedLinear(const Tensor& x, const PackedLinear& weight, Activation act, const Tensor& gate_up,
                          const Tensor& out) {
  const PackedWeight& w = Packed(weight);
  const bool halves_fit = w.format() == WeightFormat::kBf16 || out.cols() % cuda::kGemvCols == 0;
  // Beyond these rows wgmma and the gate by itself take less time.
  constexpr int kGatedGemvRows = 4;
  const bool takes_gemm = w.format() == WeightFormat::kBf16 && wgmma_ && x.rows() > kGatedGemvRows;
  if (!TakesGemv(x, weight) || !halves_fit || takes_gemm) return Ops::GatedLinear(x, weight, act, gate_up, out);
  BATON_CHECK(x.dtype == DType::kBF16 && out.dtype == DType::kBF16 && 2 * out.cols() == w.out_features() &&
                  x.cols() == w.in_features() && x.rows() == out.rows(),
              "x [", x.rows(), ", ", x.cols(), "], weight [", w.out_features(), ", ", w.in_features(), "], out [",
              out.rows(), ", ", out.cols(), "]");
  GemvParams p = GemvOf(w, out, GemvStore::kBf16);
  ReadRows(p, x);
  p.gate = act == Activation::kSilu ? cuda::Gate::kSilu : cuda::Gate::kGeluTanh;
  RunGemv<true>(stream_, w.format(), p);
}

void CudaOps::LinearAdd(const Tensor& x, const PackedLinear& weight, const Tensor& product, const Tensor& residual) {
  const PackedWeight& w = Packed(weight);
  const bool dense = w.format() == WeightFormat::kBf16 && (wgmma_ || !TakesGemv(x, weight));
  if (!dense && !TakesGemv(x, weight)) return Ops::LinearAdd(x, weight, product, residual);
  BATON_CHECK(x.dtype == DType::kBF16 && residual.dtype == DType::kF32, "x in ", DTypeName(x.dtype), ", residual in ",
              DTypeName(residual.dtype));
  CheckShapes(x, weight, residual);
  if (dense) return DenseLinear(x, w, residual, true);
  GemvParams p = GemvOf(w, residual, GemvStore::kAddF32);
  ReadRows(p, x);
  RunGemv<false>(stream_, w.format(), p);
}

// ---- mixture of experts

void CudaOps::RouteTokens(const Tensor& logits, bool renormalize, const MoeRoutes& r) {
  BATON_CHECK(logits.dtype == DType::kF32 && logits.rows() == r.tokens && logits.cols() == r.experts &&
                  r.experts <= cuda::kMaxExperts && r.per_token >= 1 &&
                  r.per_token <= std::min(r.experts, cuda::kMaxChosenExperts),
              "logits [", logits.rows(), ", ", logits.cols(), "], ", r.per_token, " of ", r.experts, " experts for ",
              r.tokens, " tokens");
  cuda::LaunchMoeRoute(
      stream_,
      {Row<const float>(logits), logits.row_stride, r.chosen, r.weights, r.tokens, r.experts, r.per_token, renormalize},
      kOverlapped);
  cuda::LaunchMoeLists(stream_, {r.chosen, r.offsets, r.row_of_pair, r.token_of_row, r.rows(), r.experts, r.per_token},
                       kOverlapped);
}

void CudaOps::ExpertLinear(const Tensor& x, bool by_row, const MoeRoutes& r, const PackedExperts& weights,
                           const Tensor& out) {
  const auto& w = static_cast<const cuda::PackedExpertWeights&>(weights);
  BATON_CHECK(w.experts() == r.experts && out.rows() == r.rows() && x.rows() == (by_row ? r.rows() : r.tokens) &&
                  x.cols() == w.in_features() && out.cols() == w.out_features() && x.dtype == DType::kBF16 &&
                  x.row_stride % 8 == 0,
              w.experts(), " weights [", w.out_features(), ", ", w.in_features(), "] for ", r.experts, " experts, x [",
              x.rows(), ", ", x.cols(), "], out [", out.rows(), ", ", out.cols(), "], routes of ", r.rows());
  WithOutput(out, [&]<typename Out>(Out* to) {
    const cuda::GroupedGemmParams<Out> p{Row<const bf16>(x),
                                         by_row ? nullptr : r.token_of_row,
                                         r.offsets,
                                         w.data(),
                                         w.biases(),
                                         to,
                                         x.row_stride,
                                         w.row_stride(),
                                         w.expert_stride(),
                                         out.row_stride,
                                         r.rows(),
                                         Int(w.out_features()),
                                         Int(w.in_features()),
                                         r.experts};
    cuda::LaunchGroupedGemm(stream_, p, kOverlapped);
  });
}

void CudaOps::CombineExperts(const Tensor& y, const MoeRoutes& r, const Tensor& out) {
  BATON_CHECK(y.rows() == r.rows() && out.rows() == r.tokens && y.cols() == out.cols() && y.dtype == DType::kBF16 &&
                  out.dtype == DType::kF32 && y.cols() % 8 == 0,
              "y [", y.rows(), ", ", y.cols(), "], out [", out.rows(), ", ", out.cols(), "], routes of ", r.rows());
  cuda::LaunchMoeCombine(stream_,
                         {Row<const bf16>(y), r.row_of_pair, r.weights, Row<float>(out), y.row_stride, out.row_stride,
                          r.tokens, r.per_token, Int(y.cols())},
                         kOverlapped);
}

}  // namespace baton::kernels
