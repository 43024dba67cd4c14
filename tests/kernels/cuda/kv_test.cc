// RoPE + KV write with digests, merging of attention states.
#include <algorithm>
#include <cstring>

#include "kernels/cuda/merge_state.cuh"
#include "kernels/cuda/rope_kv_write.cuh"
#include "tests/kernels/cuda/device_test.h"

namespace baton::cuda_test {
namespace {

/// One head through norm and RoPE in double precision.
std::vector<double> RotatedHead(const px::bf16* x, int dim, int rotary, const float* norm, int position) {
  std::vector<double> v, out;
  double squares = 0;
  for (int i = 0; i < dim; ++i) {
    v.push_back(px::ToFloat(x[i]));
    squares += v[i] * v[i];
  }
  if (norm != nullptr)
    for (int i = 0; i < dim; ++i) v[i] = v[i] / std::sqrt(squares / dim + 1e-6) * (norm[i] + 1.0);
  out = v;
  const int half = rotary / 2;
  for (int i = 0; i < half; ++i) {
    const double angle = position * std::pow(10000.0, -2.0 * i / rotary);
    out[i] = v[i] * std::cos(angle) - v[i + half] * std::sin(angle);
    out[i + half] = v[i + half] * std::cos(angle) + v[i] * std::sin(angle);
  }
  return out;
}

template <typename Kv, int kDim>
void CheckRope(int rows, int q_heads, int kv_heads, int rotary, bool norms) {
  constexpr int kBlock = 32, kBlocks = 4, kMaxPosition = 200;
  Data data(kDim + rows);
  const int heads = q_heads + 2 * kv_heads;
  const auto qkv = data.Normal<px::bf16>(static_cast<size_t>(rows) * heads * kDim);
  const auto norm = data.Normal<float>(kDim, 0.2f);
  std::vector<float> table;
  for (int p = 0; p < kMaxPosition; ++p)
    for (int part = 0; part < 2; ++part)
      for (int i = 0; i < rotary / 2; ++i) {
        const double angle = p * std::pow(10000.0, -2.0 * i / rotary);
        table.push_back(static_cast<float>(part == 0 ? std::cos(angle) : std::sin(angle)));
      }
  std::vector<int32_t> slots(kBlocks * kBlock), positions;
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int32_t>(i);
  std::shuffle(slots.begin(), slots.end(), data.rng());
  slots.resize(rows);
  for (int r = 0; r < rows; ++r) positions.push_back(data.Int(0, kMaxPosition - 1));
  if (rows > 1) slots[rows - 1] = -1;

  const int64_t block_stride = kBlock * kv_heads * kDim, units = kBlock / 16;
  Array<px::bf16> dqkv(qkv), q(static_cast<size_t>(rows) * q_heads * kDim);
  Array<float> dnorm(norm), dtable(table), scale(std::vector<float>(kv_heads, 0.02f));
  Array<int32_t> dpositions(positions), dslots(slots);
  Array<Kv> k(kBlocks * block_stride), v(kBlocks * block_stride);
  Array<uint64_t> kd(kBlocks * units * kv_heads), vd(kd.size());
  UnderEveryPolicy(
      [&](gpu::Stream& stream) {
        stream.FillAsync(q.data(), 0xFF, q.size() * 2);
        stream.FillAsync(k.data(), 0xFF, k.size() * sizeof(Kv));
        stream.FillAsync(v.data(), 0xFF, v.size() * sizeof(Kv));
        stream.FillAsync(kd.data(), 0, kd.size() * 8);
        stream.FillAsync(vd.data(), 0, vd.size() * 8);
        cuda::RopeKvParams<Kv> p{dqkv.data(),
                                 dqkv.data() + q_heads * kDim,
                                 dqkv.data() + (q_heads + kv_heads) * kDim,
                                 heads * kDim,
                                 heads * kDim,
                                 heads * kDim,
                                 q.data(),
                                 q_heads * kDim,
                                 norms ? dnorm.data() : nullptr,
                                 norms ? dnorm.data() : nullptr,
                                 dtable.data(),
                                 dpositions.data(),
                                 dslots.data(),
                                 k.data(),
                                 v.data(),
                                 block_stride,
                                 scale.data(),
                                 scale.data(),
                                 kd.data(),
                                 vd.data(),
                                 units * kv_heads,
                                 rows,
                                 q_heads,
                                 kv_heads,
                                 rotary,
                                 kBlock,
                                 3,
                                 5,
                                 1e-6f,
                                 1.0f};
        cuda::LaunchRopeKv<Kv, kDim>(stream, p);
      },
      [&](const std::string& policy) {
        std::vector<uint64_t> want_kd(kd.size(), 0), want_vd(kd.size(), 0);
        for (int r = 0; r < rows; ++r) {
          if (slots[r] < 0) continue;
          const px::bf16* row = qkv.data() + static_cast<size_t>(r) * heads * kDim;
          for (int h = 0; h < q_heads; ++h)
            EXPECT_TRUE(Near(q.data() + (static_cast<size_t>(r) * q_heads + h) * kDim,
                             RotatedHead(row + h * kDim, kDim, rotary, norms ? norm.data() : nullptr, positions[r])))
                << policy;
          for (int h = 0; h < kv_heads; ++h) {
            const int block = slots[r] / kBlock, offset = slots[r] % kBlock;
            const int64_t at = block * block_stride + (offset * kv_heads + h) * kDim;
            auto want_k =
                RotatedHead(row + (q_heads + h) * kDim, kDim, rotary, norms ? norm.data() : nullptr, positions[r]);
            auto want_v = RotatedHead(row + (q_heads + kv_heads + h) * kDim, kDim, 0, nullptr, 0);
            if (sizeof(Kv) == 1)
              for (int i = 0; i < kDim; ++i) want_k[i] /= 0.02f, want_v[i] /= 0.02f;
            EXPECT_TRUE(Near(k.data() + at, want_k)) << policy;
            EXPECT_TRUE(Near(v.data() + at, want_v)) << policy;
            const size_t unit = (block * units + offset / 16) * kv_heads + h;
            const KvCoordinate c{3, 0, 5u + h, static_cast<uint32_t>(positions[r])}, cv{3, 1, 5u + h, c.token};
            want_kd[unit] += KvDigestVector(c, k.data() + at, kDim * sizeof(Kv));
            want_vd[unit] += KvDigestVector(cv, v.data() + at, kDim * sizeof(Kv));
          }
        }
        EXPECT_EQ(Copy(kd), want_kd) << policy;
        EXPECT_EQ(Copy(vd), want_vd) << policy;
      });
}

TEST(CudaRopeKvWrite, RotatesNormsStoresAndDigests) {
  CheckRope<px::bf16, 64>(1, 4, 2, 64, false);
  CheckRope<px::bf16, 128>(9, 2, 1, 128, true);
  CheckRope<px::bf16, 80>(4, 3, 1, 32, false);
  CheckRope<px::bf16, 96>(3, 1, 1, 96, true);
  CheckRope<px::e4m3, 256>(3, 2, 1, 256, true);
  CheckRope<px::e4m3, 128>(5, 4, 2, 64, false);
}

TEST(CudaMergeState, WeighsByLogSumExp) {
  constexpr int kRows = 5, kHeads = 3, kDim = 80, kN = kRows * kHeads;
  Data data(2);
  const auto a = data.Normal<px::bf16>(kN * kDim), b = data.Normal<px::bf16>(kN * kDim);
  auto la = data.Normal<float>(kN, 3.0f), lb = data.Normal<float>(kN, 3.0f);
  la[2] = lb[4] = -INFINITY;
  la[7] = lb[7] = -INFINITY;
  std::vector<double> want;
  for (int n = 0; n < kN; ++n)
    for (int d = 0; d < kDim; ++d) {
      const double wa = std::exp(la[n]), wb = std::exp(lb[n]);
      want.push_back(n == 7 ? 0.0
                            : (px::ToFloat(a[n * kDim + d]) * wa + px::ToFloat(b[n * kDim + d]) * wb) / (wa + wb));
    }
  Array<px::bf16> da(a), db(b), out(a.size());
  Array<float> dla(la), dlb(lb), lse(kN);
  UnderEveryPolicy(
      [&](gpu::Stream& stream) {
        stream.FillAsync(out.data(), 0xFF, out.size() * 2);
        cuda::LaunchMergeState(
            stream, {da.data(), dla.data(), db.data(), dlb.data(), out.data(), lse.data(), kRows, kHeads, kDim});
      },
      [&](const std::string& policy) {
        EXPECT_TRUE(Near(out.data(), want)) << policy;
        EXPECT_NEAR(lse[0], std::log(std::exp(la[0]) + std::exp(lb[0])), 1e-4);
        EXPECT_EQ(lse[7], -INFINITY);
      });
}

}  // namespace
}  // namespace baton::cuda_test
