#include "kernels/cuda/host/wgmma_bits.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "common/device_failure.h"
#include "kernels/cuda/instances/instances.h"

namespace baton::cuda {
namespace {

using px::bf16;

/// Of sizes from 2⁻⁸ to 2⁸, so that sums lose bits and cancel.
std::vector<bf16> UnevenNumbers(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<bf16> out(n);
  for (bf16& value : out) {
    const uint32_t bits = random();
    const float size =
        std::ldexp(1.0f + static_cast<float>(bits & 0xffff) * 0x1p-16f, static_cast<int>(bits >> 16 & 15) - 8);
    value = px::FromFloat<bf16>((bits >> 31) != 0 ? -size : size);
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

}  // namespace

bool WgmmaAddsAsMmaSync(gpu::Stream& stream, int k) {
  constexpr int kRows = WgmmaTile<128>::kRows + 2, kCols = 2 * kGemmPadN;  // two tiles of rows, one wide tile
  const int64_t stride = (k + kGemmPadK - 1) / kGemmPadK * kGemmPadK;
  const std::vector<bf16> x = UnevenNumbers(static_cast<size_t>(kRows * stride), 1),
                          w = UnevenNumbers(static_cast<size_t>(kCols * stride), 2);
  std::vector<float> want(size_t{kRows} * kCols), got(want.size());
  const gpu::Memory dx(x.size() * sizeof(bf16)), dw(w.size() * sizeof(bf16)), out(want.size() * sizeof(float));
  if (dx.data() == nullptr || dw.data() == nullptr || out.data() == nullptr) return false;
  stream.Upload(dx.data(), x.data(), dx.bytes());
  stream.Upload(dw.data(), w.data(), dw.bytes());
  const auto run = [&](int rows, std::vector<float>& result,
                       const std::function<void(const GemmParams<float>&)>& launch) {
    launch({static_cast<const bf16*>(dx.data()), static_cast<const bf16*>(dw.data()), nullptr,
            static_cast<float*>(out.data()), stride, stride, kCols, rows, kCols, k});
    stream.CopyAsync(result.data(), out.data(), static_cast<size_t>(rows) * kCols * sizeof(float));
    EndIfDeviceFailed(stream.Synchronize());
  };
  const auto same = [&](int rows, const std::function<void(const GemmParams<float>&)>& launch) {
    run(rows, got, launch);
    return std::memcmp(got.data(), want.data(), static_cast<size_t>(rows) * kCols * sizeof(float)) == 0;
  };
  run(kRows, want, [&](const GemmParams<float>& p) { LaunchGemm(stream, p); });
  for (const int rows : {9, 32, 64, kRows})
    if (!same(rows, [&](const GemmParams<float>& p) { LaunchNarrowGemm(stream, p, 1); })) return false;
  return same(kRows, [&](const GemmParams<float>& p) { LaunchWgmmaGemm(stream, p, 1); }) &&
         same(kRows, [&](const GemmParams<float>& p) { LaunchWgmmaGemm(stream, p, 1000); });
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
  constexpr int kFew = 1, kEnough = 1000;  // multiprocessors
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
