// Inputs in e4m3: codes and scales to the bit of input_rounding.h. The GEMM of e4m3 with e4m3: equals a double sum over
// what the codes stand for, for every grouping; a row's bits are the same in every batch.
#include "kernels/cuda/linear/gemm_e4m3.cuh"

#include "tests/kernels/cuda/e4m3_case.h"
#include "tests/kernels/cuda/mutants.h"

namespace baton::cuda_test {
namespace {

void CheckE4m3Sums(int m, int n, int k, int group, float fixed = 0.0f) {
  E4m3Case c(m, n, k, group, fixed);
  UnderEveryPolicy([&](gpu::Stream& stream) { c.Launch(stream); },
                   [&](const std::string& policy) {
                     EXPECT_EQ(c.Check(), "") << policy << " m " << m << " n " << n << " k " << k << " group " << group
                                              << " fixed " << fixed;
                   });
}

TEST(InputRounding, IsThatOfE4m3OverEveryExponent) {
  std::mt19937 rng(3);
  std::vector<float> values = {0.0f,    -0.0f,    448.0f,    449.0f,    1e30f, -INFINITY, 0x1p-6f, 0x1.fp-7f,
                               0x1p-9f, 0x1p-10f, 0x1.8p-9f, 0x1.4p-8f, 17.0f, 19.0f,     464.0f};
  for (int i = 0; i < 100000; ++i) values.push_back(px::BitCast<float>(static_cast<uint32_t>(rng())));
  for (const float v : values) {
    const float want = FloatOfE4m3(E4m3OfFloat(v)), got = kernels::NearestE4m3(v);
    if (std::isnan(want))
      ASSERT_TRUE(std::isnan(got)) << v;
    else
      ASSERT_EQ(px::BitCast<uint32_t>(got), px::BitCast<uint32_t>(want)) << v;
  }
}

TEST(CudaRoundInputs, HasTheBitsOfTheRule) {
  Data data(7);
  for (const auto& [m, k, group, fixed] : {std::tuple{3, 128, 32, 0.0f},
                                           {1, 192, 64, 0.0f},
                                           {5, 384, 128, 0.0f},
                                           {2, 576, 192, 0.0f},
                                           {3, 72, 72, 0.0f},
                                           {2, 2056, 2056, 0.0f},
                                           {9, 200, 200, 0.01f},
                                           {2, 1288, 1288, 0.02f},
                                           {2, 2048, 1024, 0.0f}}) {
    Inputs inputs(m, k, group, fixed, data);
    UnderEveryPolicy([&](gpu::Stream& stream) { inputs.Launch(stream); },
                     [&](const std::string& policy) {
                       EXPECT_EQ(inputs.Check(), "") << policy << " m " << m << " k " << k << " group " << group;
                     });
  }
}

TEST(CudaE4m3Gemm, EqualsASumOfWhatTheCodesStandFor) {
  CheckE4m3Sums(1, 40, 256, 128);          // blocks
  CheckE4m3Sums(16, 33, 200, 200);         // a scale for each output, a token's for its inputs
  CheckE4m3Sums(19, 72, 384, 64);          // blocks that a cut between ranks divides
  CheckE4m3Sums(5, 17, 160, 32);           // … to 32
  CheckE4m3Sums(3, 20, 576, 192);          // a step of K meets two groups
  CheckE4m3Sums(65, 16, 264, 264, 0.02f);  // the checkpoint's scale
  CheckE4m3Sums(130, 150, 128, 128);       // the largest tile
}

TEST(CudaE4m3Gemm, AnyShape) {
  Sweep(8, [](Draw& draw) {
    const int m = draw.Chance(8) ? 0 : draw.Size(150), n = draw.Size(90);
    const float fixed = draw.Chance(3) ? 0.02f : 0.0f;
    if (draw.Chance(3)) {
      const int k = draw.Multiple(8, 500);
      CheckE4m3Sums(m, n, k, k, fixed);
    } else {
      const int group = draw.Pick({32, 64, 128, 192, 256});
      CheckE4m3Sums(m, n, draw.Multiple(group, 768), group, fixed);
    }
  });
}

TEST(CudaE4m3Gemm, ARowHasItsBitsInEveryBatch) {
  constexpr int kMost = 300, kN = 40, kK = 192;
  for (const int group : {64, 192}) {
    E4m3Case all(kMost, kN, kK, group);
    gpu::Stream stream;
    all.Launch(stream);
    ASSERT_EQ(stream.Synchronize(), "");
    ASSERT_EQ(all.Check(), "");
    for (int m = 1; m < kMost; m += m < 20 ? 1 : 37) {
      E4m3Case few(m, kN, kK, group);
      const int first = (m * 7) % (kMost - m);
      const auto copy = [&stream](const auto& to, const auto& from, size_t at, size_t count) {
        stream.CopyAsync(to.data(), from.data() + at, count * sizeof(*from.data()));
      };
      copy(few.inputs.x_there, all.inputs.x_there, static_cast<size_t>(first) * (kK + 8), few.inputs.x.size());
      copy(few.codes, all.codes, 0, all.codes.size());
      copy(few.meta, all.meta, 0, all.meta.size());
      copy(few.bias_there, all.bias_there, 0, kN);
      few.Launch(stream);
      ASSERT_EQ(stream.Synchronize(), "");
      const std::vector<float> got = few.out.Read(), want = all.out.Read();
      for (int r = 0; r < m; ++r)
        for (int c = 0; c < kN; ++c)
          ASSERT_EQ(got[r * (kN + 2) + c], want[(first + r) * (kN + 2) + c]) << "of " << m << ", row " << r;
    }
  }
}

#if !defined(__CUDACC__)
TEST(CudaE4m3Gemm, EveryMissingSynchronizationIsFound) {
  E4m3Case c(5, 40, 128 * 10, 1280);
  ExpectEveryMutantFound([&](const simt::Policy& policy) {
    gpu::Stream stream;
    stream.SetPolicy(policy);
    c.Launch(stream);
    const std::string error = stream.Synchronize();
    return error.empty() ? c.Check() : error;
  });
}
#endif

}  // namespace
}  // namespace baton::cuda_test
