// The roofs as cases, which come before the others: bytes copied and read, products of bf16 in every SM, and what a
// launch costs, alone, in a replayed graph and behind another. A roof's own floor is what it moves or computes.
#include <memory>

#include "bench/gpu/kernel_case.h"
#include "bench/gpu/measure.h"
#include "bench/gpu/roofs.h"
#include "kernels/px/px.h"

namespace baton::bench {

constexpr int kPeakGroups = 2, kPeakThreads = kPeakGroups * 128, kPeakRows = 64, kPeakCols = 256, kPeakK = 64;
constexpr double kFlopsPerStep = 2.0 * kPeakGroups * kPeakRows * kPeakCols * kPeakK;  // of a block

struct alignas(1024) PeakShared {
  uint32_t x[kPeakGroups][kPeakRows * kPeakK / 2];  // pairs of bf16, as TmaLoad2D would leave them
  uint32_t w[kPeakCols * kPeakK / 2];
};

/// Pair number `n` of an operand: two numbers in ±[1, 2), as random as power draw asks for.
PX_BOTH uint32_t PeakPair(uint32_t n) {
  uint32_t h = (n + 1u) * 0x9E3779B1u;
  h ^= h >> 15;
  h *= 0x85EBCA77u;
  h ^= h >> 13;
  return (h & 0x807F807Fu) | 0x3F803F80u;
}

/// `steps` times the same 2 × 64 × 256 × 64 products in every block, from shared memory into registers: nothing but
/// wgmma. out [blocks, threads]: each thread's first sum.
PX_KERNEL void PX_BOUNDS(kPeakThreads) MatmulPeakKernel(float* out, int steps) {
#if PX_HAS_WGMMA
  PX_SHARED(PeakShared, smem);
  px::GridDependencyWait();
  const int t = px::ThreadX(), group = t / 128;
  constexpr int kX = kPeakGroups * kPeakRows * kPeakK / 2, kW = kPeakCols * kPeakK / 2;
  for (int i = t; i < kX; i += kPeakThreads) px::StoreShared(&smem.x[0][0] + i, PeakPair(static_cast<uint32_t>(i)));
  for (int i = t; i < kW; i += kPeakThreads) px::StoreShared(smem.w + i, PeakPair(static_cast<uint32_t>(kX + i)));
  px::FenceAsyncProxy();
  px::SyncThreads();
  const uint64_t x = px::WgmmaDescriptor(smem.x[group]), w = px::WgmmaDescriptor(smem.w);
  float d[kPeakCols / 2];
  for (int i = 0; i < steps; ++i) {
    px::WgmmaFence();
    PX_UNROLL
    for (int kk = 0; kk < kPeakK / 16; ++kk) px::WgmmaM64N256K16(d, x + kk * 2, w + kk * 2, (i | kk) != 0);
    px::WgmmaCommit();
    px::WgmmaWait<1>();
  }
  px::WgmmaWait<0>();
  px::WgmmaResult(d);
  px::Store(out + px::BlockX() * kPeakThreads + t, d[0]);
#else
  (void)out, (void)steps;
#endif
}

PX_KERNEL void PX_BOUNDS(32) EmptyKernel(int) { px::GridDependencyWait(); }

namespace {

/// Element (row, column) of the operand whose pairs begin at `first`: chunks of 8 are swizzled by row % 8.
double PeakValue(int first, int row, int column) {
  const int element = row * kPeakK + (column / 8 ^ row % 8) * 8 + column % 8;
  const uint32_t pair = PeakPair(static_cast<uint32_t>(first + element / 2));
  const uint32_t wide = (element % 2 == 0 ? pair : pair >> 16) << 16;
  return px::BitCast<float>(wide);
}

KernelCase MatmulRoof(const Sizes& s) {
  const int steps = s(4096, 2), blocks = s.tiny ? 1 : gpu::CurrentDevice().multiprocessors;
  auto out = std::make_shared<DeviceArray<float>>(static_cast<size_t>(blocks) * kPeakThreads);
  auto launch = [=](gpu::Stream& stream) {
    gpu::Launch(stream,
                {.grid = {static_cast<unsigned>(blocks)}, .block = {kPeakThreads}, .shared_bytes = sizeof(PeakShared)},
                &MatmulPeakKernel, out->data(), steps);
  };
  auto check = [=](gpu::Stream& stream) -> std::string {
    launch(stream);
    const std::vector<float> got = out->Download(stream, 0, kPeakThreads);
    for (const int t : {0, 5, 77, 200}) {
      const int row = t % 128 / 32 * 16 + t % 32 / 4, column = t % 4 * 2, group = t / 128;
      double want = 0;
      for (int k = 0; k < kPeakK; ++k) {
        want += PeakValue(group * kPeakRows * kPeakK / 2, row, k) *
                PeakValue(kPeakGroups * kPeakRows * kPeakK / 2, column, k);
      }
      want *= steps;
      if (auto wrong = CheckNear(got[static_cast<size_t>(t)], want, 1e-2 * std::abs(want) + steps * 0.05, "matmul");
          !wrong.empty())
        return wrong;
    }
    return {};
  };
  return {std::to_string(blocks) + "x" + std::to_string(steps), 0, kFlopsPerStep * steps * blocks, launch, check};
}

std::string Nothing(gpu::Stream&) { return {}; }

/// Memory of which no byte is one that ReadAll stores for.
std::shared_ptr<gpu::Memory> Filled(size_t bytes) {
  auto memory = std::make_shared<gpu::Memory>(bytes);
  BATON_CHECK(memory->data() != nullptr, "no ", bytes, " bytes of device memory");
  gpu::Stream stream;
  stream.FillAsync(memory->data(), 1, bytes);
  const std::string error = stream.Synchronize();
  BATON_CHECK(error.empty(), error);
  return memory;
}
std::string Megabytes(size_t bytes) { return std::to_string(bytes >> 20) + "MB"; }

KernelCase CopyRoof(const Sizes& s) {
  const size_t bytes = static_cast<size_t>(s(1 << 30, 1 << 20));
  const auto from = Filled(bytes), to = Filled(bytes);
  return {Megabytes(bytes), 2.0 * static_cast<double>(bytes), 0,
          [=](gpu::Stream& stream) { stream.CopyAsync(to->data(), from->data(), bytes); }, Nothing};
}

KernelCase ReadRoof(const Sizes& s) {
  const size_t bytes = static_cast<size_t>(s(1 << 30, 1 << 20));
  const auto from = Filled(bytes), sink = Filled(sizeof(uint32_t));
  return {Megabytes(bytes), static_cast<double>(bytes), 0,
          [=](gpu::Stream& stream) { ReadAll(stream, from->data(), bytes, static_cast<uint32_t*>(sink->data())); },
          [=](gpu::Stream& stream) -> std::string {
            ReadAll(stream, from->data(), bytes, static_cast<uint32_t*>(sink->data()));
            uint32_t got = 0;
            stream.CopyAsync(&got, sink->data(), sizeof got);
            const std::string error = stream.Synchronize();
            return !error.empty() ? error : got == 0x01010101u ? "" : "ReadAll wrote";
          }};
}

constexpr int kLaunches = 64;
void LaunchEmpty(gpu::Stream& stream, int times, bool programmatic) {
  for (int i = 0; i < times; ++i)
    gpu::Launch(stream, {.grid = {1}, .block = {32}, .programmatic = programmatic}, &EmptyKernel, i);
}

KernelCase LaunchesOf(int times, bool programmatic) {
  return {std::to_string(times), 0, 0, [=](gpu::Stream& stream) { LaunchEmpty(stream, times, programmatic); }, Nothing};
}

KernelCase ReplayOf(int times) {
  gpu::Stream stream;
  stream.BeginCapture();
  LaunchEmpty(stream, times, false);
  const auto graph = std::make_shared<gpu::Graph>(stream.EndCapture());
  return {std::to_string(times), 0, 0, [=](gpu::Stream& to) { to.Replay(*graph); }, Nothing};
}

}  // namespace

std::vector<CaseMaker> RoofCases(const Sizes& s) {
  return {{"roof_copy", [=] { return CopyRoof(s); }},
          {"roof_read", [=] { return ReadRoof(s); }},
          {"roof_matmul", [=] { return MatmulRoof(s); }},
          {"launch_empty", [] { return LaunchesOf(1, false); }},
          {"launch_in_row", [] { return LaunchesOf(kLaunches, false); }},
          {"launch_programmatic", [] { return LaunchesOf(kLaunches, true); }},
          {"launch_replayed", [] { return ReplayOf(kLaunches); }}};
}

void TakeRoof(const std::string& kernel, double bytes, double flops, double us, Roofs& roofs) {
  if (us <= 0) return;
  if (kernel == "roof_copy") roofs.copy_bytes_per_s = bytes / us * 1e6;
  if (kernel == "roof_read") roofs.read_bytes_per_s = bytes / us * 1e6;
  if (kernel == "roof_matmul") roofs.flops_per_s = flops / us * 1e6;
}

Roofs MeasureRoofs(bool tiny) {
  Roofs roofs;
  gpu::Stream stream;
  for (const CaseMaker& maker : RoofCases(Sizes{tiny})) {
    if (!maker.kernel.starts_with("roof_")) continue;
    const KernelCase c = maker.make();
    TakeRoof(maker.kernel, c.floor_bytes, c.floor_flops, Measure(c, stream).median_us, roofs);
  }
  return roofs;
}

}  // namespace baton::bench
