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

}  // namespace baton::cuda
