// Every planted bug must be found under at least one policy, and the right kernels must pass under all. Prints the
// table.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <random>

#include "tests/simt/grids.h"
#include "tests/simt/planted_kernels.h"

namespace baton::simt_test {
namespace {

using Run = std::function<std::string(const simt::Policy&)>;  ///< empty: right; else how it was found

std::vector<float> Random(size_t n, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (float& x : v) x = normal(rng);
  return v;
}

std::string Compare(const float* got, const std::vector<double>& want, double tolerance) {
  for (size_t i = 0; i < want.size(); ++i)
    if (!(std::abs(got[i] - want[i]) <= tolerance)) return "wrong value";
  return {};
}

template <Bug kBug>
std::string RunSum(const simt::Policy& policy) {
  constexpr int kRows = 5, kN = 300;
  const auto values = Random(kRows * kN, 1);
  Array<float> in(values), out(kRows);
  std::string error = RunKernel(policy, {.grid = {1}, .block = {kSumThreads}, .shared_bytes = sizeof(SumShared)},
                                &SumRows<kBug>, in.data(), out.data(), kRows, kN);
  if (!error.empty()) return error;
  std::vector<double> want(kRows, 0.0);
  for (size_t i = 0; i < values.size(); ++i) want[i / kN] += values[i];
  return Compare(out.data(), want, 1e-3);
}

template <Bug kBug>
std::string RunTranspose(const simt::Policy& policy) {
  const auto values = Random(1024, 2);
  Array<float> in(values), out(1024);
  std::string error = RunKernel(policy, {.grid = {1}, .block = {32}, .shared_bytes = sizeof(TransposeShared)},
                                &Transpose<kBug>, in.data(), out.data());
  if (!error.empty()) return error;
  std::vector<double> want(1024);
  for (int r = 0; r < 32; ++r)
    for (int c = 0; c < 32; ++c) want[c * 32 + r] = values[r * 32 + c];
  return Compare(out.data(), want, 0);
}

template <Bug kBug>
std::string RunPipeline(const simt::Policy& policy) {
  constexpr int kTiles = 5, kValid = 37;
  auto values = Random(kTiles * kPipeRows * kPipeCols, 3);
  for (size_t i = kValid * kPipeCols; i < values.size(); ++i) values[i] = NAN;
  Array<float> in(values), out(kPipeCols);
  std::string error = RunKernel(policy, {.grid = {1}, .block = {kPipeThreads}, .shared_bytes = sizeof(PipeShared)},
                                &PipelinedColumnSum<kBug>, in.data(), out.data(), kValid, kTiles);
  if (!error.empty()) return error;
  std::vector<double> want(kPipeCols, 0.0);
  for (int i = 0; i < kValid * kPipeCols; ++i) want[i % kPipeCols] += values[i];
  return Compare(out.data(), want, 1e-4);
}

std::vector<px::bf16> ToBf16(const std::vector<float>& v) {
  std::vector<px::bf16> out;
  for (float x : v) out.push_back(px::FromFloat<px::bf16>(x));
  return out;
}

/// a[m, k] · b[n, k]ᵀ.
std::vector<double> Product(const std::vector<px::bf16>& a, const std::vector<px::bf16>& b, int m, int n, int k) {
  std::vector<double> c(static_cast<size_t>(m) * n, 0.0);
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j)
      for (int l = 0; l < k; ++l)
        c[i * n + j] += static_cast<double>(px::ToFloat(a[i * k + l])) * px::ToFloat(b[j * k + l]);
  return c;
}

template <Bug kBug>
std::string RunGemm(const simt::Policy& policy) {
  constexpr int kDepth = 448;
  const auto a = ToBf16(Random(kGemmM * kDepth, 4)), b = ToBf16(Random(kGemmN * kDepth, 5));
  Array<px::bf16> da(a), db(b);
  Array<float> c(kGemmM * kGemmN);
  const px::TensorMap2D ma{da.data(), kDepth, kGemmM, kDepth, kGemmM}, mb{db.data(), kDepth, kGemmN, kDepth, kGemmN};
  std::string error = RunKernel(policy, {.grid = {1}, .block = {kGemmThreads}, .shared_bytes = sizeof(GemmShared)},
                                &TmaGemm<kBug>, ma, mb, c.data(), kDepth);
  return error.empty() ? Compare(c.data(), Product(a, b, kGemmM, kGemmN, kDepth), 1e-2) : error;
}

template <Bug kBug>
std::string RunStoredGemm(const simt::Policy& policy) {
  const auto a = ToBf16(Random(kGemmM * kGemmK, 9)), b = ToBf16(Random(kGemmN * kGemmK, 10));
  Array<px::bf16> da(a), db(b);
  Array<float> c(kGemmM * kGemmN);
  std::string error = RunKernel(policy, {.grid = {1}, .block = {128}, .shared_bytes = sizeof(StoredShared)},
                                &StoredGemm<kBug>, da.data(), db.data(), c.data());
  return error.empty() ? Compare(c.data(), Product(a, b, kGemmM, kGemmN, kGemmK), 1e-2) : error;
}

template <Bug kBug>
std::string RunWarpProduct(const simt::Policy& policy) {
  const auto a = ToBf16(Random(256, 6)), b = ToBf16(Random(128, 7));
  Array<px::bf16> da(a), db(b);
  Array<float> d(128);
  std::string error = RunKernel(policy, {.grid = {1}, .block = {32}, .shared_bytes = sizeof(MmaShared)},
                                &WarpProduct<kBug>, da.data(), db.data(), d.data());
  return error.empty() ? Compare(d.data(), Product(a, b, 16, 8, 16), 1e-4) : error;
}

template <Bug kBug>
std::string RunDependent(const simt::Policy& policy) {
  constexpr int kN = 200;
  const auto values = Random(kN, 8);
  Array<float> x(values), y(kN), z(kN);
  gpu::Stream stream;
  stream.SetPolicy(policy);
  gpu::Launch(stream, {.grid = {2}, .block = {128}}, &Producer<kBug>, x.data(), y.data(), kN);
  gpu::Launch(stream, {.grid = {2}, .block = {128}, .programmatic = true}, &Consumer<kBug>, x.data(), y.data(),
              z.data(), kN);
  if (std::string error = stream.Synchronize(); !error.empty()) return error;
  std::vector<double> want;
  for (float v : values) want.push_back(2.0 * (v + 1.0f));
  return Compare(z.data(), want, 1e-5);
}

template <Bug kBug>
std::string RunThree(const simt::Policy& policy) {
  constexpr int kN = 200;
  constexpr gpu::LaunchConfig kDependent{.grid = {2}, .block = {128}, .programmatic = true};
  const auto values = Random(kN, 11);
  Array<float> x(values), first(kN), second(kN), sum(kN);
  gpu::Stream stream;
  stream.SetPolicy(policy);
  gpu::Launch(stream, {.grid = {2}, .block = {128}}, &Producer<kBug>, x.data(), first.data(), kN);
  gpu::Launch(stream, kDependent, &Between, first.data(), second.data(), kN);
  gpu::Launch(stream, kDependent, &Third<kBug>, first.data(), second.data(), sum.data(), kN);
  if (std::string error = stream.Synchronize(); !error.empty()) return error;
  std::vector<double> want;
  for (float v : values) want.push_back(double{v + 1.0f} + double{v + 1.0f + 1.0f});
  return Compare(sum.data(), want, 1e-5);
}

template <Bug kBug>
std::string RunMoved(const simt::Policy& policy) {
  Array<int> out(256);
  std::string error = RunKernel(policy, {.grid = {1}, .block = {kMovedThreads}}, &MoveRegisters<kBug>, out.data());
  return error.empty() && out[255] != 255 ? "wrong value" : error;
}

struct Planted {
  const char* name;
  Run run;
};

const Planted kRight[] = {
    {"block sum", RunSum<Bug::kNone>},
    {"warp transpose", RunTranspose<Bug::kNone>},
    {"cp.async pipeline", RunPipeline<Bug::kNone>},
    {"TMA + wgmma GEMM", RunGemm<Bug::kNone>},
    {"moved registers", RunMoved<Bug::kNone>},
    {"wgmma of stored operands", RunStoredGemm<Bug::kNone>},
    {"mma.sync", RunWarpProduct<Bug::kNone>},
    {"dependent launch", RunDependent<Bug::kNone>},
    {"three dependent launches", RunThree<Bug::kNone>},
};
const Planted kBugs[] = {
    {"no barrier before the read", RunSum<Bug::kNoBarrierBeforeRead>},
    {"no barrier before the reuse", RunSum<Bug::kNoBarrierBeforeReuse>},
    {"shuffle in divergent code", RunSum<Bug::kShuffleInDivergentCode>},
    {"__syncthreads in divergent code", RunSum<Bug::kBarrierInDivergentCode>},
    {"named barrier counts too many", RunSum<Bug::kNamedBarrierCount>},
    {"uninitialized shared memory", RunSum<Bug::kUninitializedShared>},
    {"shared array overrun", RunSum<Bug::kSharedOverrun>},
    {"no __syncwarp", RunTranspose<Bug::kNoWarpSync>},
    {"__syncwarp mask too small", RunTranspose<Bug::kWarpSyncMaskTooSmall>},
    {"cp.async wait too weak", RunPipeline<Bug::kWeakCopyWait>},
    {"no barrier after cp.async wait", RunPipeline<Bug::kNoBarrierAfterCopy>},
    {"stage refilled too early", RunPipeline<Bug::kNoBarrierBeforeStage>},
    {"tail not zero-filled", RunPipeline<Bug::kNoZeroFill>},
    {"wrong stage index", RunPipeline<Bug::kWrongStage>},
    {"wgmma before TMA arrived", RunGemm<Bug::kNoFullWait>},
    {"TMA into a stage in use", RunGemm<Bug::kNoEmptyWait>},
    {"wrong mbarrier parity", RunGemm<Bug::kWrongParity>},
    {"too few bytes expected", RunGemm<Bug::kTooFewBytesExpected>},
    {"no barrier after mbarrier.init", RunGemm<Bug::kNoBarrierAfterInit>},
    {"no fence after mbarrier.init", RunGemm<Bug::kNoInitFence>},
    {"no wgmma.fence", RunGemm<Bug::kNoWgmmaFence>},
    {"stage given back in flight", RunGemm<Bug::kReleasedInFlight>},
    {"accumulators read in flight", RunGemm<Bug::kNoWgmmaWait>},
    {"more bytes than an mbarrier counts", RunGemm<Bug::kTooManyBytes>},
    {"mbarrier.init twice", RunGemm<Bug::kInitTwice>},
    {"TMA that nobody waits for", RunGemm<Bug::kTmaAtTheEnd>},
    {"exit with wgmma in flight", RunGemm<Bug::kExitInFlight>},
    {"tile within a swizzle's pattern", RunGemm<Bug::kOperandOffPattern>},
    {"more registers than there are", RunMoved<Bug::kTooManyRegisters>},
    {"setmaxnreg by some warps", RunMoved<Bug::kRegistersOfSomeWarps>},
    {"setmaxnreg.dec to more", RunMoved<Bug::kDecreaseToMore>},
    {"no fence.proxy.async", RunStoredGemm<Bug::kNoProxyFence>},
    {"fence.proxy.async too early", RunStoredGemm<Bug::kEarlyProxyFence>},
    {"one thread's fence.proxy.async", RunStoredGemm<Bug::kFenceOfOneThread>},
    {"ldmatrix row addresses", RunWarpProduct<Bug::kLdMatrixRow>},
    {"no griddepcontrol.wait", RunDependent<Bug::kNoDependencyWait>},
    {"read of two grids before, no wait", RunThree<Bug::kEarlyReadOfTwoBefore>},
    {"third grid does not wait", RunThree<Bug::kThirdDoesNotWait>},
    {"writes before griddepcontrol.wait", RunDependent<Bug::kEarlyRelease>},
};

TEST(Simt, RightKernelsPassUnderEveryPolicyAndSeed) {
  for (uint64_t seed = 1; seed <= 5; ++seed)
    for (const simt::Policy& policy : simt::AllPolicies(seed))
      for (const Planted& kernel : kRight)
        EXPECT_EQ(kernel.run(policy), "") << kernel.name << " " << simt::PolicyName(policy);
}

TEST(Simt, EveryPlantedBugIsFoundUnderSomePolicy) {
  std::printf("%-34s", "planted bug");
  for (const simt::Policy& policy : simt::AllPolicies()) std::printf(" %-15s", simt::PolicyName(policy).c_str());
  std::printf(" first report\n");
  for (const Planted& bug : kBugs) {
    bool found = false;
    std::string report;
    std::printf("%-34s", bug.name);
    for (const simt::Policy& policy : simt::AllPolicies()) {
      const std::string error = bug.run(policy);
      std::printf(" %-15s", error.empty() ? "-" : "found");
      found |= !error.empty();
      if (report.empty()) report = error;
    }
    std::printf(" %.90s\n", report.c_str());
    EXPECT_TRUE(found) << bug.name;
  }
}

}  // namespace
}  // namespace baton::simt_test
