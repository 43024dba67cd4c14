// RoPE + KV write with digests, gather and verified scatter, merging of attention states.
#include <algorithm>
#include <cstring>

#include "kernels/cuda/kv_segments.cuh"
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
        cuda::RopeKvParams<Kv> p{dqkv.data(), heads * kDim, q.data(), q_heads * kDim, norms ? dnorm.data() : nullptr,
                                 norms ? dnorm.data() : nullptr, dtable.data(), dpositions.data(), dslots.data(), k.data(), v.data(),
                                 block_stride, scale.data(), scale.data(), kd.data(), vd.data(), units * kv_heads, rows, q_heads,
                                 kv_heads, rotary, kBlock, 3, 5, 1e-6f, 1.0f};
        cuda::LaunchRopeKv<Kv, kDim>(stream, p);
      },
      [&](const std::string& policy) {
        std::vector<uint64_t> want_kd(kd.size(), 0), want_vd(kd.size(), 0);
        for (int r = 0; r < rows; ++r) {
          if (slots[r] < 0) continue;
          const px::bf16* row = qkv.data() + static_cast<size_t>(r) * heads * kDim;
          for (int h = 0; h < q_heads; ++h)
            EXPECT_TRUE(Near(q.data() + (static_cast<size_t>(r) * q_heads + h) * kDim,
                             RotatedHead(row + h * kDim, kDim, rotary, norms ? norm.data() : nullptr, positions[r]))) << policy;
          for (int h = 0; h < kv_heads; ++h) {
            const int block = slots[r] / kBlock, offset = slots[r] % kBlock;
            const int64_t at = block * block_stride + (offset * kv_heads + h) * kDim;
            auto want_k = RotatedHead(row + (q_heads + h) * kDim, kDim, rotary, norms ? norm.data() : nullptr, positions[r]);
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

/// Two heads of 64 bf16 in blocks of 16 tokens, gathered to a segment and scattered into another cache.
struct Handoff {
  static constexpr int kHeads = 2, kDim = 64, kBytes = kDim * 2, kUnits = 3;
  static constexpr int64_t kTokenStride = kHeads * kBytes, kBlockBytes = 16 * kTokenStride;
  std::vector<cuda::KvPiece> Pieces(std::vector<int> blocks, int64_t stride, int64_t bytes) const {
    std::vector<cuda::KvPiece> pieces;
    for (int u = 0; u < kUnits; ++u)
      for (int h = 0; h < kHeads; ++h) {
        const int tokens = u == kUnits - 1 ? 5 : 16;  // the last block is partial
        pieces.push_back({blocks[u] * 16 * stride + h * bytes, static_cast<int64_t>(pieces.size()) * 16 * kBytes, stride, 7, 1,
                          static_cast<uint32_t>(h), static_cast<uint32_t>(u * 16), tokens, 0, 0,
                          static_cast<int64_t>(pieces.size())});
      }
    return pieces;
  }
};

TEST(CudaKvSegments, GatherThenScatterMovesBytesAndCatchesDamage) {
  const Handoff h;
  Data data(1);
  Array<px::bf16> source(data.Normal<px::bf16>(4 * Handoff::kBlockBytes / 2));
  Array<unsigned char> target(5 * Handoff::kBlockBytes), packed(6 * 16 * Handoff::kBytes), narrow(5 * Handoff::kBlockBytes / 2);
  Array<uint64_t> digests(6), kept(6);
  Array<int32_t> bad(1);
  Array<cuda::KvPiece> out_pieces(h.Pieces({3, 0, 2}, Handoff::kTokenStride, Handoff::kBytes));
  Array<cuda::KvPiece> in_pieces(h.Pieces({1, 4, 0}, Handoff::kTokenStride, Handoff::kBytes));
  Array<cuda::KvPiece> narrow_pieces(h.Pieces({1, 4, 0}, Handoff::kTokenStride / 2, Handoff::kBytes / 2));
  const int count = 6;
  for (bool damage : {false, true})
    UnderEveryPolicy(
        [&](gpu::Stream& stream) {
          stream.FillAsync(target.data(), 0xFF, target.size());
          stream.FillAsync(bad.data(), 0, 4);
          cuda::LaunchGatherSegments(stream, {reinterpret_cast<unsigned char*>(source.data()), packed.data(), out_pieces.data(),
                                              digests.data(), nullptr, count, Handoff::kBytes});
          ASSERT_EQ(stream.Synchronize(), "");
          for (int i = 0; i < count; ++i) in_pieces[i].digest = narrow_pieces[i].digest = digests[i];
          if (damage) packed[3 * 16 * Handoff::kBytes + 77] ^= 4;
          cuda::LaunchScatterSegments(stream, {target.data(), packed.data(), in_pieces.data(), kept.data(), bad.data(), count, Handoff::kBytes}, 0);
          cuda::LaunchScatterSegments(stream, {narrow.data(), packed.data(), narrow_pieces.data(), kept.data(), bad.data(), count, Handoff::kBytes}, 0.05f);
        },
        [&](const std::string& policy) {
          EXPECT_EQ(bad[0], damage ? 2 : 0) << policy;
          for (int i = 0; i < count; ++i) {
            const auto& from = out_pieces[i];
            const auto& to = in_pieces[i];
            for (int t = 0; t < to.tokens; ++t) {
              const unsigned char* got = target.data() + to.cache_offset + t * to.token_stride;
              const auto* want = reinterpret_cast<unsigned char*>(source.data()) + from.cache_offset + t * from.token_stride;
              if (damage && i == 3) {
                EXPECT_EQ(got[0], 0xFF) << "a bad piece must leave the cache untouched";
                continue;
              }
              EXPECT_EQ(std::memcmp(got, want, Handoff::kBytes), 0) << policy << " piece " << i;
              const auto* e4m3 = narrow.data() + narrow_pieces[i].cache_offset + t * narrow_pieces[i].token_stride;
              for (int e = 0; e < Handoff::kDim; ++e)
                EXPECT_EQ(e4m3[e], px::FloatToE4m3Bits(px::ToFloat(reinterpret_cast<const px::bf16*>(want)[e]) * (1.0f / 0.05f)));
            }
            if (damage) continue;
            uint64_t want_digest = 0;  // of what the cache now holds (e4m3, written last)
            for (int t = 0; t < to.tokens; ++t)
              want_digest += KvDigestVector({7, 1, to.head, to.first_token + t}, narrow.data() + narrow_pieces[i].cache_offset + t * narrow_pieces[i].token_stride,
                                            Handoff::kBytes / 2);
            EXPECT_EQ(kept[i], want_digest);
          }
        });
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
      want.push_back(n == 7 ? 0.0 : (px::ToFloat(a[n * kDim + d]) * wa + px::ToFloat(b[n * kDim + d]) * wb) / (wa + wb));
    }
  Array<px::bf16> da(a), db(b), out(a.size());
  Array<float> dla(la), dlb(lb), lse(kN);
  UnderEveryPolicy(
      [&](gpu::Stream& stream) {
        stream.FillAsync(out.data(), 0xFF, out.size() * 2);
        cuda::LaunchMergeState(stream, {da.data(), dla.data(), db.data(), dlb.data(), out.data(), lse.data(), kRows, kHeads, kDim});
      },
      [&](const std::string& policy) {
        EXPECT_TRUE(Near(out.data(), want)) << policy;
        EXPECT_NEAR(lse[0], std::log(std::exp(la[0]) + std::exp(lb[0])), 1e-4);
        EXPECT_EQ(lse[7], -INFINITY);
      });
}

}  // namespace
}  // namespace baton::cuda_test
