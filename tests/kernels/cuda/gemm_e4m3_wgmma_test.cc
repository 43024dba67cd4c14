// The GEMM of e4m3 with e4m3 by TMA and wgmma: against a double sum, against the bits of mma.sync (emulator),
// independent of M and of the tile, and its pipeline against mutants.
#include "kernels/cuda/linear/gemm_e4m3_wgmma.cuh"

#include <cstring>

#include "kernels/cuda/host/wgmma_bits.h"
#include "tests/kernels/cuda/e4m3_case.h"
#include "tests/kernels/cuda/mutants.h"

namespace baton::cuda_test {
namespace {

using Few = cuda::E4m3WgmmaFew;
using Some = cuda::E4m3WgmmaSome;
using Many = cuda::E4m3WgmmaMany;

/// With room for the outputs of mma.sync.
struct E4m3WgmmaCase : E4m3Case {
  using E4m3Case::E4m3Case;
#if !defined(__CUDACC__)
  bool SameBits() const { return std::memcmp(out.Read().data(), other.data(), other.size() * sizeof(float)) == 0; }
#endif
  std::vector<float> other = std::vector<float>(out.size());
};

template <typename Tile>
void CheckE4m3WgmmaTile(int m, int n, int k, int group, float fixed = 0.0f) {
  E4m3WgmmaCase c(m, n, k, group, fixed);
  UnderEveryPolicy(
      [&](gpu::Stream& stream) {
        c.Launch(stream);
        EXPECT_EQ(stream.Synchronize(), "");
        c.other = c.out.Read();
        c.out.Poison(stream);
        cuda::LaunchE4m3WgmmaTile<Tile>(stream, c.Params(c.out.data()));
      },
      [&](const std::string& policy) {
        EXPECT_EQ(c.Check(), "") << policy << " m " << m << " n " << n << " k " << k << " group " << group;
#if !defined(__CUDACC__)  // a GPU's mma.sync may keep more bits of 128 products
        EXPECT_TRUE(c.SameBits()) << policy << ": not the bits of mma.sync, m " << m << " n " << n << " k " << k;
#endif
      });
}

TEST(CudaE4m3Wgmma, EqualsASumOfWhatTheCodesStandFor) {
  CheckE4m3WgmmaTile<Few>(1, 1, 8, 8);
  CheckE4m3WgmmaTile<Few>(13, 130, 128 * 12, 128);  // the ring goes around
  CheckE4m3WgmmaTile<Few>(16, 65, 200, 200, 0.02f);
  CheckE4m3WgmmaTile<Some>(47, 40, 128 * 8, 256);
  CheckE4m3WgmmaTile<Some>(64, 70, 136, 136);
  CheckE4m3WgmmaTile<Many>(130, 150, 128 * 8, 128);
  CheckE4m3WgmmaTile<Many>(70, 33, 520, 520);
}

TEST(CudaE4m3Wgmma, AnyShape) {
  Sweep(4, [](Draw& draw) {
    const bool blocks = draw.Chance(2);
    const int group = draw.Pick({128, 256, 384}), k = blocks ? draw.Multiple(group, 1536) : draw.Multiple(8, 900);
    const int n = draw.Size(200), m = draw.Size(140);
    const float fixed = draw.Chance(3) ? 0.02f : 0.0f;
    if (m <= Few::kRows)
      CheckE4m3WgmmaTile<Few>(m, n, k, blocks ? group : k, fixed);
    else if (draw.Chance(2))
      CheckE4m3WgmmaTile<Some>(m, n, k, blocks ? group : k, fixed);
    else
      CheckE4m3WgmmaTile<Many>(m, n, k, blocks ? group : k, fixed);
  });
}

TEST(CudaE4m3Wgmma, TakesGroupsThatAStepDoesNotCut) {
  EXPECT_TRUE(cuda::E4m3WgmmaTakes(4096, 128));
  EXPECT_TRUE(cuda::E4m3WgmmaTakes(4096, 256));
  EXPECT_TRUE(cuda::E4m3WgmmaTakes(200, 200));
  EXPECT_FALSE(cuda::E4m3WgmmaTakes(4096, 64));
  EXPECT_FALSE(cuda::E4m3WgmmaTakes(192, 32));
  EXPECT_FALSE(cuda::E4m3WgmmaTakes(576, 192));
}

// What a worker on a GPU asks at its start.
TEST(CudaE4m3Wgmma, TilesAgree) {
  gpu::Stream stream;
  EXPECT_TRUE(cuda::E4m3WgmmaTilesAgree(stream));
}
#if !defined(__CUDACC__)
TEST(CudaE4m3Wgmma, AWorkerNoticesTilesThatDisagree) {
  for (const int columns : {16, 64, 128}) {
    gpu::Stream stream;
    stream.SetPolicy({.odd_wgmma = columns});
    EXPECT_FALSE(cuda::E4m3WgmmaTilesAgree(stream)) << columns;
  }
}
#endif
TEST(CudaE4m3Wgmma, SumsOfOtherOperandsAreNotNearlyEqual) {
  EXPECT_TRUE(cuda::NearlyEqual({100.0f, -3.0f, 0.0f}, {100.1f, -3.0f, 0.05f}));
  EXPECT_FALSE(cuda::NearlyEqual({100.0f, -3.0f, 0.0f}, {100.0f, -3.0f, 2.0f}));
  EXPECT_FALSE(cuda::NearlyEqual({-3.0f, 100.0f}, {100.0f, -3.0f}));
  EXPECT_FALSE(cuda::NearlyEqual({NAN, 1.0f}, {1.0f, 1.0f}));
}

#if !defined(__CUDACC__)
template <typename Tile>
void ExpectE4m3MutantsFound(int m) {
  E4m3WgmmaCase c(m, Tile::kCols + 3, 128 * (Tile::kStages + 3), 128);
  ExpectEveryMutantFound([&](const simt::Policy& policy) {
    gpu::Stream stream;
    stream.SetPolicy(policy);
    c.inputs.Launch(stream);
    c.out.Poison(stream);
    cuda::LaunchE4m3WgmmaTile<Tile>(stream, c.Params(c.out.data()));
    const std::string error = stream.Synchronize();
    return error.empty() ? c.Check() : error;
  });
}
TEST(CudaE4m3Wgmma, EveryMissingSynchronizationIsFound) {
  ExpectE4m3MutantsFound<Few>(5);
  ExpectE4m3MutantsFound<Many>(20);
}
#endif

}  // namespace
}  // namespace baton::cuda_test
