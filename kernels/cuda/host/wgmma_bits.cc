#include "kernels/cuda/host/wgmma_bits.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "common/device_failure.h"
#include "kernels/cuda/instances/instances.h"

namespace baton::cuda {
namespace {

using px::bf16;

/// Of sizes from 2⁻⁸ to 2⁸, so that sums lose bits and cancel.
std::vector<bf16> UnevenNumbers(size_t n, unsigned seed) {
  constexpr size_t kDrawn = 65521;  // then again: a prime, so that no two rows of a matrix are alike
  std::mt19937 random(seed);
  std::vector<bf16> out(n);
  for (size_t i = 0; i < n; ++i) {
    if (i >= kDrawn) {
      out[i] = out[i - kDrawn];
      continue;
    }
    const uint32_t bits = random();
    const float size =
        std::ldexp(1.0f + static_cast<float>(bits & 0xffff) * 0x1p-16f, static_cast<int>(bits >> 16 & 15) - 8);
    out[i] = px::FromFloat<bf16>((bits >> 31) != 0 ? -size : size);
  }
  return out;
}

/// What `host` holds, on the device; data() is null where there is no memory for it.
template <typename T>
gpu::Memory OnDevice(gpu::Stream& stream, const std::vector<T>& host) {
  gpu::Memory memory(host.size() * sizeof(T));
  if (memory.data() != nullptr) stream.Upload(memory.data(), host.data(), memory.bytes());
  return memory;
}

/// Small beside the sums, so that no bit of these is hidden.
std::vector<float> SmallNumbers(size_t n) {
  std::vector<float> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<float>(i % 13) * 0x1p-6f - 0.1f;
  return out;
}

constexpr int kDenseRows = WgmmaTile<128>::kRows + 2, kDenseCols = 2 * kGemmPadN;  // two tiles of rows, one wide tile

/// What the forms of a dense layer multiply.
struct DenseInputs {
  DenseInputs(gpu::Stream& stream, int products)
      : k(products),
        stride((k + kGemmPadK - 1) / kGemmPadK * kGemmPadK),
        x_memory(OnDevice(stream, UnevenNumbers(static_cast<size_t>(kDenseRows * stride), 1))),
        w_memory(OnDevice(stream, UnevenNumbers(static_cast<size_t>(kDenseCols * stride), 2))),
        bias_memory(OnDevice(stream, SmallNumbers(kDenseCols))) {}
  const bf16* x() const { return static_cast<const bf16*>(x_memory.data()); }
  const bf16* w() const { return static_cast<const bf16*>(w_memory.data()); }
  const float* bias() const { return static_cast<const float*>(bias_memory.data()); }

  int k;
  int64_t stride;
  gpu::Memory x_memory, w_memory, bias_memory;
};

/// A dense layer over the same numbers, by any form: with a bias, and in f32 added to what is there.
template <typename Out>
class DenseProducts {
 public:
  static constexpr int kRows = kDenseRows, kCols = kDenseCols;
  static constexpr bool kAdds = std::is_same_v<Out, float>;

  DenseProducts(gpu::Stream& stream, const DenseInputs& in)
      : stream_(stream),
        in_(in),
        residual_(size_t{kRows} * kCols),
        out_(residual_.size() * sizeof(Out)),
        gated_(out_.bytes()) {
    const std::vector<float> numbers = SmallNumbers(residual_.size());
    for (size_t i = 0; i < numbers.size(); ++i) residual_[i] = px::FromFloat<Out>(numbers[i]);
  }
  bool has_room() const {
    for (const gpu::Memory* memory : {&in_.x_memory, &in_.w_memory, &in_.bias_memory, &out_, &gated_})
      if (memory->data() == nullptr) return false;
    return true;
  }
  GemmParams<Out> Gemm(int rows) const {
    return {in_.x(), in_.w(), in_.bias(), out(), in_.stride, in_.stride, kCols, rows, kCols, in_.k, kAdds};
  }
  /// `gated`: the first half of the outputs is the gate of the other.
  GemvParams Gemv(int rows, bool gated = false) const {
    GemvParams p{.x = in_.x(), .x_stride = in_.stride, .w = in_.w(), .w_stride = in_.stride, .bias = in_.bias()};
    p.out = out();
    p.out_stride = p.n = gated ? kCols / 2 : kCols;
    p.m = rows;
    p.k = in_.k;
    p.store = kAdds ? GemvStore::kAddF32 : GemvStore::kBf16;
    return p;
  }
  template <Gate kGate>
  void GateByItself(int rows) const {
    LaunchGatedActivation<kGate>(stream_, GatedActivationParams<bf16>{out(), static_cast<bf16*>(gated_.data()), kCols,
                                                                      kCols / 2, rows, kCols / 2, 1.0f});
  }
  /// What `launch` makes of what is there; `gated`: it is half as wide, and by GateByItself elsewhere.
  template <typename Launch>
  std::vector<Out> Run(int rows, Launch&& launch, int cols = kCols, bool gated = false) {
    std::vector<Out> result(static_cast<size_t>(rows) * static_cast<size_t>(cols));
    stream_.Upload(out_.data(), residual_.data(), out_.bytes());
    launch();
    stream_.CopyAsync(result.data(), gated ? gated_.data() : out_.data(), result.size() * sizeof(Out));
    EndIfDeviceFailed(stream_.Synchronize());
    return result;
  }

 private:
  Out* out() const { return static_cast<Out*>(out_.data()); }

  gpu::Stream& stream_;
  const DenseInputs& in_;
  std::vector<Out> residual_;
  const gpu::Memory out_, gated_;
};

/// Whether `got` is the beginning of `want`.
template <typename Out>
bool Begins(const std::vector<Out>& got, const std::vector<Out>& want) {
  return got.size() <= want.size() && std::memcmp(got.data(), want.data(), got.size() * sizeof(Out)) == 0;
}

constexpr int kFew = 1, kEnough = 1000;  // multiprocessors: of what tiles are chosen by, each side of every border

template <typename Out>
bool WgmmaAdds(gpu::Stream& stream, DenseProducts<Out>& products, const std::vector<Out>& want) {
  constexpr int kRows = kDenseRows;
  const auto narrow = [&](int rows, int multiprocessors) {
    return Begins(products.Run(rows, [&] { LaunchNarrowGemm(stream, products.Gemm(rows), multiprocessors); }), want);
  };
  const auto wide = [&](int multiprocessors) {
    const auto launch = [&] { LaunchWgmmaGemm(stream, products.Gemm(kRows), multiprocessors); };
    return Begins(products.Run(kRows, launch), want);
  };
  return narrow(9, kFew) && narrow(32, kFew) && narrow(64, kFew) && narrow(64, kEnough) && narrow(kRows, kFew) &&
         narrow(kRows, kEnough) && wide(kFew) && wide(kEnough);
}

template <typename Out>
bool GemvAdds(gpu::Stream& stream, DenseProducts<Out>& products, const std::vector<Out>& want, int k) {
  for (const int rows : {1, 3, kGemvMaxRows}) {
    const auto launch = [&] { LaunchGemv<WeightFormat::kBf16, false>(stream, products.Gemv(rows), false); };
    if (GemvFits(rows, k) && !Begins(products.Run(rows, launch), want)) return false;
  }
  return true;
}

template <Gate kGate>
bool GemvGates(gpu::Stream& stream, DenseProducts<bf16>& products, int k) {
  constexpr int kRows = kDenseRows, kGated = kDenseCols / 2;
  const auto in_parts = [&] {
    LaunchGemm(stream, products.Gemm(kRows));
    products.GateByItself<kGate>(kRows);
  };
  const auto want = products.Run(kRows, in_parts, kGated, true);
  for (const int rows : {1, 4, kGemvMaxRows}) {
    const auto launch = [&] {
      GemvParams p = products.Gemv(rows, true);
      p.gate = kGate;
      LaunchGemv<WeightFormat::kBf16, true>(stream, p, false);
    };
    if (GemvFits(rows, k) && !Begins(products.Run(rows, launch, kGated), want)) return false;
  }
  return true;
}

/// Those of `asked` that add as mma.sync does, of outputs of one type.
template <typename Out>
DenseForms FormsThatAdd(gpu::Stream& stream, const DenseInputs& in, DenseForms asked) {
  DenseProducts<Out> products(stream, in);
  if (!products.has_room()) return {false, false};
  const auto want = products.Run(kDenseRows, [&] { LaunchGemm(stream, products.Gemm(kDenseRows)); });
  asked.wgmma = asked.wgmma && WgmmaAdds(stream, products, want);
  asked.gemv = asked.gemv && GemvAdds(stream, products, want, in.k);
  if constexpr (std::is_same_v<Out, bf16>) {
    asked.gemv = asked.gemv && GemvGates<Gate::kSilu>(stream, products, in.k) &&
                 GemvGates<Gate::kGeluTanh>(stream, products, in.k);
  }
  return asked;
}

}  // namespace

DenseForms AddAsMmaSync(gpu::Stream& stream, int k, DenseForms asked) {
  const DenseInputs in(stream, k);
  return FormsThatAdd<bf16>(stream, in, FormsThatAdd<float>(stream, in, asked));
}

namespace {

/// Random codes of both signs, none a NaN.
std::vector<px::e4m3> UnevenCodes(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<px::e4m3> out(n);
  for (px::e4m3& code : out)
    code = px::FromFloat<px::e4m3>(
        std::ldexp(static_cast<float>(random() % 31) - 15.0f, static_cast<int>(random() % 10) - 5));
  return out;
}

/// A prompt of 100 tokens behind 470 others, and one of 65: tiles that are full and that are not, blocks in no order.
template <int kDim>
bool AttendsAlike(gpu::Stream& stream) {
  constexpr int kHeads = 3, kBlockTokens = 16, kBlocks = 48, kRows = 165, kTable = 36;  // 570 tokens
  std::vector<int32_t> tables(2 * kTable);
  for (int i = 0; i < 2 * kTable; ++i) tables[i] = i * 7 % kBlocks;
  const size_t block_elements = size_t{kBlockTokens} * kDim;
  const gpu::Memory q = OnDevice(stream, UnevenNumbers(size_t{kRows} * kHeads * kDim, 3)),
                    k = OnDevice(stream, UnevenNumbers(kBlocks * block_elements, 4)),
                    v = OnDevice(stream, UnevenNumbers(kBlocks * block_elements, 5)), table = OnDevice(stream, tables),
                    row_start = OnDevice(stream, std::vector<int32_t>{0, 100, kRows}),
                    lengths = OnDevice(stream, std::vector<int32_t>{570, 65}),
                    tiles = OnDevice(stream, std::vector<PrefillTile>{{0, 64}, {0, 0}, {1, 64}, {1, 0}}),
                    out(q.bytes());
  for (const gpu::Memory* memory : {&q, &k, &v, &table, &row_start, &lengths, &tiles, &out})
    if (memory->data() == nullptr) return false;
  const auto at = [](const gpu::Memory& memory) { return static_cast<const bf16*>(memory.data()); };
  const auto ints = [](const gpu::Memory& memory) { return static_cast<const int32_t*>(memory.data()); };
  const PagedKv<bf16> cache{
      at(k), at(v), static_cast<int64_t>(block_elements), ints(table), kTable,  0,      ints(lengths),
      1,     0,     MakeBlockSize(kBlockTokens),          1,           nullptr, nullptr};
  const PrefillParams<bf16> p{at(q),
                              static_cast<bf16*>(out.data()),
                              nullptr,
                              kHeads * kDim,
                              kHeads * kDim,
                              static_cast<const PrefillTile*>(tiles.data()),
                              ints(row_start),
                              cache,
                              {0.01f, 0, 0.0f, nullptr},
                              kHeads};
  const auto run = [&](auto&& launch) {
    std::vector<bf16> rows(size_t{kRows} * kHeads * kDim);
    stream.FillAsync(out.data(), 0xFF, out.bytes());
    launch();
    stream.CopyAsync(rows.data(), out.data(), out.bytes());
    EndIfDeviceFailed(stream.Synchronize());
    return rows;
  };
  constexpr int kTiles = 4;
  const auto want = run([&] { LaunchPrefillAttention<bf16, kDim, true>(stream, p, kTiles); });
  const auto got = run([&] { LaunchWgmmaPrefill<kDim, true>(stream, p, kTiles); });
  return std::memcmp(got.data(), want.data(), out.bytes()) == 0;
}

}  // namespace

bool E4m3WgmmaTilesAgree(gpu::Stream& stream) {
  constexpr int kRows = E4m3WgmmaMany::kRows + 2, kCols = E4m3WgmmaMany::kCols + 8, kK = 1024, kGroup = 256;
  constexpr int kScaleStride = 2 * kE4m3PadM, kGroups = kK / kGroup;
  std::vector<float> scales(size_t{kGroups} * kScaleStride);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = 0.01f + 0.001f * static_cast<float>(i % 37);
  std::vector<QuantMeta> meta(size_t{(kCols + 15) / 16} * kGroups * 8);
  for (size_t i = 0; i < meta.size(); ++i)
    meta[i] = {px::BitCast<uint32_t>(scales[i % 29]), px::BitCast<uint32_t>(scales[i % 31])};
  const gpu::Memory x = OnDevice(stream, UnevenCodes(size_t{kRows} * kK, 6)),
                    w = OnDevice(stream, UnevenCodes(size_t{kCols} * kK, 7)), x_scales = OnDevice(stream, scales),
                    w_scales = OnDevice(stream, meta), out(size_t{kRows} * kCols * sizeof(float));
  for (const gpu::Memory* memory : {&x, &w, &x_scales, &w_scales, &out})
    if (memory->data() == nullptr) return false;
  const auto run = [&](int rows, const std::function<void(const E4m3GemmParams<float>&)>& launch) {
    std::vector<float> result(static_cast<size_t>(rows) * kCols);
    const E4m3GemmParams<float> p{static_cast<const px::e4m3*>(x.data()),
                                  static_cast<const float*>(x_scales.data()),
                                  static_cast<const px::e4m3*>(w.data()),
                                  static_cast<const QuantMeta*>(w_scales.data()),
                                  nullptr,
                                  static_cast<float*>(out.data()),
                                  kScaleStride,
                                  kCols,
                                  rows,
                                  kCols,
                                  kK,
                                  kGroup};
    stream.FillAsync(out.data(), 0xFF, out.bytes());
    launch(p);
    stream.CopyAsync(result.data(), out.data(), result.size() * sizeof(float));
    EndIfDeviceFailed(stream.Synchronize());
    return result;
  };
  const auto by_wgmma = [&](int rows, int multiprocessors) {
    return run(rows, [&](const E4m3GemmParams<float>& p) { LaunchE4m3Wgmma(stream, p, multiprocessors); });
  };
  const auto want = by_wgmma(kRows, kFew);
  for (const auto& got : {by_wgmma(kRows, kEnough), by_wgmma(E4m3WgmmaFew::kRows, kFew)})
    if (std::memcmp(got.data(), want.data(), got.size() * sizeof(float)) != 0) return false;
  return NearlyEqual(want, run(kRows, [&](const E4m3GemmParams<float>& p) { LaunchE4m3Gemm(stream, p); }));
}

bool NearlyEqual(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += std::pow(double{got[i]} - want[i], 2);
    size += std::pow(double{want[i]}, 2);
  }
  return error <= size * 0x1p-14;  // false of a NaN
}

bool WgmmaAttendsAsMmaSync(gpu::Stream& stream) { return AttendsAlike<64>(stream) && AttendsAlike<128>(stream); }

}  // namespace baton::cuda
