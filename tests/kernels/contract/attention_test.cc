// RoPE, KV writes with digests, and paged attention: against double precision, and bitwise over chunks, batches,
// threads, block sizes and instruction sets.
#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "common/kv_digest.h"
#include "tests/kernels/contract/backends.h"
#include "tests/kernels/contract/host_tensor_ops.h"
#include "tests/kernels/contract/paged_kv.h"
#include "tests/kernels/tolerance.h"

namespace baton::kernels {
namespace {

struct Case {
  int q_heads, kv_heads, dim;
  AttentionParams params;
  DType kv = DType::kF32;
  int tokens_per_block = 16;
  float k_scale = 1.0f, v_scale = 1.0f;  ///< of e4m3
  KvShape Shape(int block = 0) const {
    return {kv_heads, dim, block != 0 ? block : tokens_per_block, kv, k_scale, v_scale};
  }
};

class AttentionContract : public testing::TestWithParam<Backend> {
 protected:
  const DType compute_ = GetParam().compute;
  const bool slow_ = GetParam().slow;
};

RopeParams Rope(int dim) {
  RopeParams rope;
  rope.rotary_dim = dim;
  for (int i = 0; i < dim / 2; ++i)
    rope.inv_freq.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(dim)));
  return rope;
}

// One sequence's q, k, v for `tokens` positions.
struct Stream {
  HostTensor q, k, v;
  Stream(const Case& c, int tokens, DType compute, std::mt19937& rng)
      : q(compute, tokens, c.q_heads * c.dim),
        k(compute, tokens, c.kv_heads * c.dim),
        v(compute, tokens, c.kv_heads * c.dim) {
    q.Fill(rng), k.Fill(rng), v.Fill(rng);
  }
};

void CopyRows(const HostTensor& from, int first, int count, HostTensor& to, int at) {
  for (int r = 0; r < count; ++r) {
    for (int64_t i = 0; i < from.cols(); ++i) to.Set(at + r, i, from.At(first + r, i));
  }
}

// Runs sequences through the ops in steps of `chunk` rows each (all sequences in every
// step); returns each one's output.
std::vector<HostTensor> Feed(Ops& ops, const Case& c, const std::vector<Stream>& streams, PagedKv& kv, int chunk) {
  const RopeParams rope = Rope(c.dim);
  const DType compute = ops.traits().compute;
  std::vector<HostTensor> outs;
  std::vector<int> done(streams.size(), 0);
  for (const Stream& s : streams) outs.emplace_back(compute, s.q.rows(), s.q.cols());
  for (bool more = true; more;) {
    more = false;
    Step step;
    std::vector<std::pair<int, int>> pieces;  // sequence, rows
    for (size_t s = 0; s < streams.size(); ++s) {
      const int rows = std::min<int>(chunk, static_cast<int>(streams[s].q.rows()) - done[s]);
      if (rows == 0) continue;
      step.Add(kv, static_cast<int>(s), done[s], rows);
      pieces.emplace_back(s, rows);
    }
    if (pieces.empty()) break;
    HostTensor q(compute, step.rows(), c.q_heads * c.dim, 8), k(compute, step.rows(), c.kv_heads * c.dim, 8), v = k,
                                                                                                              out = q;
    int at = 0;
    for (auto [s, rows] : pieces) {
      CopyRows(streams[s].q, done[s], rows, q, at), CopyRows(streams[s].k, done[s], rows, k, at),
          CopyRows(streams[s].v, done[s], rows, v, at);
      at += rows;
    }
    ops.NormRopeAndWriteKv(q.view(), k.view(), v.view(), nullptr, nullptr, 0, 1e-6f, rope, step.batch(), kv.view());
    ops.Attention(q.view(), step.batch(), kv.view(), c.params, out.view());
    ops.Sync();
    at = 0;
    for (auto [s, rows] : pieces) {
      CopyRows(out, at, rows, outs[s], done[s]);
      at += rows;
      done[s] += rows;
      more = true;
    }
  }
  return outs;
}

std::vector<double> Rotated(const HostTensor& x, int row, int head, int dim, const RopeParams& rope) {
  std::vector<double> y(static_cast<size_t>(dim));
  for (int i = 0; i < dim / 2; ++i) {
    const double angle = static_cast<float>(row) * rope.inv_freq[i];
    const double a = x.At(row, head * dim + i), b = x.At(row, head * dim + i + dim / 2);
    y[i] = a * std::cos(angle) - b * std::sin(angle);
    y[i + dim / 2] = a * std::sin(angle) + b * std::cos(angle);
  }
  return y;
}

// One output vector in double precision; K and V as stored.
std::vector<double> Expected(const Case& c, const Stream& s, const PagedKv& kv, int sequence, int row, int head) {
  const int kv_head = head / (c.q_heads / c.kv_heads);
  const std::vector<double> q = Rotated(s.q, row, head, c.dim, Rope(c.dim));
  const int first = c.params.window > 0 ? std::max(0, row - c.params.window + 1) : 0;
  double max = c.params.sinks != nullptr ? c.params.sinks[head] : -1e300;
  std::vector<double> scores;
  for (int t = first; t <= row; ++t) {
    double dot = 0;
    for (int i = 0; i < c.dim; ++i) dot += q[i] * kv.At(false, sequence, t, kv_head, i);
    dot *= c.params.scale;
    if (c.params.logit_softcap > 0) dot = c.params.logit_softcap * std::tanh(dot / c.params.logit_softcap);
    scores.push_back(dot);
    max = std::max(max, dot);
  }
  double sum = c.params.sinks != nullptr ? std::exp(c.params.sinks[head] - max) : 0;
  std::vector<double> out(static_cast<size_t>(c.dim), 0);
  for (int t = first; t <= row; ++t) {
    const double p = std::exp(scores[t - first] - max);
    sum += p;
    for (int i = 0; i < c.dim; ++i) out[i] += p * kv.At(true, sequence, t, kv_head, i);
  }
  for (double& x : out) x /= sum;
  return out;
}

// The cases with KV types that the backend keeps (else its compute type).
std::vector<Case> Cases(const Backend& backend) {
  static const std::vector<float> sinks{0.5f, -1, 2, 0, 0.1f, 3, -2, 1};
  std::vector<Case> all{
      {4, 4, 64, {.scale = 0.125f}, backend.compute},
      {6, 2, 80, {.scale = 0.11f}, DType::kBF16},
      {4, 1, 96, {.scale = 0.1f, .window = 100}, DType::kF16, 32},
      {2, 1, 128, {.scale = 0.09f, .logit_softcap = 20}, DType::kF32, 64},
      {8, 2, 64, {.scale = 0.125f, .window = 300, .sinks = sinks.data()}, backend.compute},
      {3, 1, 72, {.scale = 0.12f, .window = 40, .logit_softcap = 30}, backend.compute, 32},
      {20, 1, 64, {.scale = 0.125f}, backend.compute},
      {2, 1, 256, {.scale = 0.0625f}, DType::kBF16},
      {4, 2, 64, {.scale = 0.125f}, DType::kF8E4M3},
      {4, 2, 64, {.scale = 0.125f, .logit_softcap = 20}, DType::kF8E4M3, 16, 0.03f, 1.7f},  // the checkpoint's scales
  };
  // A GPU has kernels for these head sizes, and for 16 query heads of a KV head at most.
  if (backend.slow) std::erase_if(all, [](const Case& c) { return c.dim == 72 || c.q_heads / c.kv_heads > 16; });
  for (Case& c : all) {
    if (backend.make(c.kv) == nullptr) c.kv = backend.compute;
  }
  return all;
}

TEST_P(AttentionContract, EqualsDoublePrecisionOverTheStoredKv) {
  std::mt19937 rng(11);
  for (const Case& c : Cases(GetParam())) {
    auto ops = GetParam().make(c.kv);
    std::vector<Stream> streams;
    const double tolerance = kernel_test::ToleranceOf(compute_).rotated_attention.absolute;
    for (int tokens : {1, 37, slow_ ? 264 : 530}) streams.emplace_back(c, tokens, compute_, rng);
    PagedKv kv(c.Shape(), 3, 544, 5);
    const std::vector<HostTensor> out = Feed(*ops, c, streams, kv, 100);
    for (size_t s = 0; s < streams.size(); ++s) {
      const int tokens = static_cast<int>(streams[s].q.rows());
      for (int row = 0; row < tokens; row += row < 20 || row > tokens - 5 ? 1 : 61) {
        for (int head = 0; head < c.q_heads; ++head) {
          const std::vector<double> want = Expected(c, streams[s], kv, static_cast<int>(s), row, head);
          for (int i = 0; i < c.dim; ++i)
            ASSERT_NEAR(out[s].At(row, head * c.dim + i), want[i], tolerance) << "dim " << c.dim << " row " << row;
        }
      }
    }
  }
}

// Without the promise of equal bits a GPU walks several tiles before it writes a partial result: as right.
TEST(CudaOpsAttention, TheFastFormsAreRight) {
  const Case c{4, 1, 64, {.scale = 0.125f}, DType::kBF16};
  const double tolerance = kernel_test::ToleranceOf(DType::kBF16).rotated_attention.absolute;
  auto ops = *MakeHostTensorOps({.deterministic = false});
  std::mt19937 rng(13);
  std::vector<Stream> streams;
  for (int tokens : {290, 290, 3}) streams.emplace_back(c, tokens, DType::kBF16, rng);
  PagedKv kv(c.Shape(), 3, 304, 7);
  const std::vector<HostTensor> out =
      Feed(*ops, c, streams, kv, 288);  // the last 2 tokens are decoded: 2 tiles an item
  for (size_t s = 0; s < streams.size(); ++s) {
    const int tokens = static_cast<int>(streams[s].q.rows());
    for (int row = 0; row<tokens; row += row> tokens - 4 ? 1 : 97) {
      for (int head = 0; head < c.q_heads; ++head) {
        const std::vector<double> want = Expected(c, streams[s], kv, static_cast<int>(s), row, head);
        for (int i = 0; i < c.dim; ++i)
          ASSERT_NEAR(out[s].At(row, head * c.dim + i), want[i], tolerance) << "row " << row;
      }
    }
  }
}

TEST_P(AttentionContract, StoredKvIsTheRotatedInputAndItsDigest) {
  std::mt19937 rng(12);
  for (const Case& c : Cases(GetParam())) {
    auto ops = GetParam().make(c.kv);
    std::vector<Stream> streams;
    streams.emplace_back(c, 75, compute_, rng);
    PagedKv kv(c.Shape(), 1, 96, 6);
    Feed(*ops, c, streams, kv, 9);
    const double grain = std::max(Grain(c.kv), Grain(compute_)) + 1e-6,
                 least = c.kv == DType::kF8E4M3 ? 0x1p-10 * std::max(c.k_scale, c.v_scale) : 1e-6;  // steps of 2⁻⁹
    for (int head = 0; head < c.kv_heads; ++head) {
      for (int unit = 0; unit < 75; unit += 16) {
        uint64_t digest[2] = {0, 0};
        for (int t = unit; t < std::min(75, unit + 16); ++t) {
          const std::vector<double> k = Rotated(streams[0].k, t, head, c.dim, Rope(c.dim));
          for (int i = 0; i < c.dim; ++i) {
            ASSERT_NEAR(kv.At(false, 0, t, head, i), k[i], grain * (std::abs(k[i]) + 1e-3) + least);
            ASSERT_NEAR(kv.At(true, 0, t, head, i), streams[0].v.At(t, head * c.dim + i),
                        grain * std::abs(streams[0].v.At(t, head * c.dim + i)) + least);
          }
          for (uint32_t plane : {0u, 1u}) {
            digest[plane] +=
                KvDigestVector({3, plane, 2 + static_cast<uint32_t>(head), static_cast<uint32_t>(t)},
                               kv.VectorAt(plane == 1, 0, t, head), static_cast<uint32_t>(c.dim * DTypeBytes(c.kv)));
          }
        }
        ASSERT_EQ(kv.DigestAt(false, 0, unit, head), digest[0]) << "unit at " << unit;
        ASSERT_EQ(kv.DigestAt(true, 0, unit, head), digest[1]) << "unit at " << unit;
      }
    }
  }
}

/// The output of one sequence fed a few tokens at a time, as decode does, by the reference of `backend`; `number`: of
/// the case. Emulated devices have one reference and the same streams, so it is fed once.
const HostTensor& FedInSmallSteps(const Backend& backend, size_t number, const Case& c, const Stream& stream) {
  static std::map<std::tuple<DType, bool, size_t>, HostTensor> known;
  const auto [at, missing] = known.try_emplace({backend.compute, backend.slow, number}, stream.q);
  if (missing) {
    PagedKv kv(c.Shape(), 1, 304, 1);
    at->second = Feed(*ReferenceOf(backend).make(c.kv), c, {stream}, kv, backend.slow ? 4 : 1)[0];
  }
  return at->second;
}

TEST_P(AttentionContract, ARowHasItsBitsWhateverTheChunkTheBatchAndTheBlocks) {
  std::mt19937 rng(13);
  const std::vector<Case> cases = Cases(GetParam());
  for (size_t number = 0; number < cases.size(); ++number) {
    const Case& c = cases[number];
    if (slow_ && (c.q_heads == 8 || c.dim == 80 || c.dim == 128)) continue;
    auto ops = GetParam().make(c.kv);
    const int tokens = slow_ ? 264 : 300;
    std::vector<Stream> streams;
    for (int n : {tokens, 5, slow_ ? 40 : tokens - 30}) streams.emplace_back(c, n, compute_, rng);
    const HostTensor& want = FedInSmallSteps(GetParam(), number, c, streams[0]);
    for (int chunk : slow_ ? std::vector<int>{77} : std::vector<int>{16, 77, 512}) {
      PagedKv kv(c.Shape(slow_ ? 64 : 48), 3, 304, static_cast<uint32_t>(chunk));
      const HostTensor got = Feed(*ops, c, streams, kv, chunk)[0];
      for (int r = 0; r < tokens; ++r)
        ASSERT_EQ(got.Row(r), want.Row(r)) << "row " << r << " chunk " << chunk << " dim " << c.dim;
    }
  }
}

// A value that is not a number belongs to the rows that see its token and to no other, whatever is computed beside
// them.
TEST_P(AttentionContract, AnInfiniteValueIsInvisibleToRowsBeforeIt) {
  std::mt19937 rng(16);
  const Case c{6, 2, 64, {.scale = 0.125f}, compute_};
  auto ops = GetParam().make(c.kv);
  std::vector<Stream> whole, wounded;
  whole.emplace_back(c, 60, compute_, rng);
  wounded.push_back(whole[0]);
  wounded[0].v.Set(41, 3, std::numeric_limits<float>::infinity());
  PagedKv kv({c.kv_heads, c.dim, 16, c.kv}, 1, 64, 1), other({c.kv_heads, c.dim, 16, c.kv}, 1, 64, 2);
  const HostTensor want = Feed(*ops, c, whole, kv, 60)[0], got = Feed(*ops, c, wounded, other, 60)[0];
  for (int r = 0; r < 41; ++r) ASSERT_EQ(got.Row(r), want.Row(r)) << "row " << r;
  PagedKv decoded({c.kv_heads, c.dim, 16, c.kv}, 1, 64, 3);
  const HostTensor alone = Feed(*ops, c, wounded, decoded, 1)[0];
  for (int r = 0; r < 60; ++r) ASSERT_EQ(got.Row(r), alone.Row(r)) << "row " << r;
  EXPECT_FALSE(std::isfinite(got.At(59, 3)));
}

TEST_P(AttentionContract, QkNormComesBeforeTheRotation) {
  const Case c{2, 1, 64, {.scale = 0.125f}, compute_};
  auto ops = GetParam().make(c.kv);
  std::mt19937 rng(14);
  std::vector<float> norm(64);
  for (float& x : norm) x = std::normal_distribution<float>(1, 0.2f)(rng);
  HostTensor q(compute_, 20, 128), k(compute_, 20, 64), v(compute_, 20, 64);
  q.Fill(rng, 5), k.Fill(rng, 5), v.Fill(rng);
  HostTensor normed(DType::kF32, 20, 128), per_head(DType::kF32, 40, 64), head_out(DType::kF32, 40, 64);
  for (int r = 0; r < 40; ++r) {
    for (int i = 0; i < 64; ++i) per_head.Set(r, i, q.At(r / 2, r % 2 * 64 + i));
  }
  ops->RmsNorm(per_head.view(), norm.data(), 1, 1e-6f, head_out.view());
  ops->Sync();
  for (int r = 0; r < 40; ++r) {
    for (int i = 0; i < 64; ++i) normed.Set(r / 2, r % 2 * 64 + i, head_out.At(r, i));
  }
  PagedKv kv({1, 64, 16, compute_}, 1, 32, 4);
  Step step;
  step.Add(kv, 0, 0, 20);
  ops->NormRopeAndWriteKv(q.view(), k.view(), v.view(), norm.data(), norm.data(), 1, 1e-6f, Rope(64), step.batch(),
                          kv.view());
  ops->Sync();
  for (int r = 0; r < 20; ++r) {
    for (int h = 0; h < 2; ++h) {
      const std::vector<double> want = Rotated(normed, r, h, 64, Rope(64));
      for (int i = 0; i < 64; ++i) {
        // Narrow types may round a normed pair before its rotation, and the result after it.
        const double pair = std::hypot(normed.At(r, h * 64 + i), normed.At(r, h * 64 + (i + 32) % 64));
        ASSERT_NEAR(q.At(r, h * 64 + i), want[i],
                    1e-5 + (compute_ == DType::kF32 ? 0 : Grain(compute_) * (std::abs(want[i]) + 1.5 * pair)));
      }
    }
  }
}

TEST_P(AttentionContract, TheFactorForAttentionIsOfAllThatIsRotated) {
  const Case c{1, 1, 64, {.scale = 0.125f}, compute_};
  auto ops = GetParam().make(c.kv);
  std::mt19937 rng(16);
  RopeParams rope = Rope(64);
  rope.attention_factor = 0.5f;
  HostTensor q(compute_, 20, 64), k(compute_, 20, 64), v(compute_, 20, 64);
  q.Fill(rng), k.Fill(rng), v.Fill(rng);
  const HostTensor queries = q, keys = k;
  PagedKv kv({1, 64, 16, compute_}, 1, 32, 4);
  Step step;
  step.Add(kv, 0, 0, 20);
  ops->NormRopeAndWriteKv(q.view(), k.view(), v.view(), nullptr, nullptr, 0, 1e-6f, rope, step.batch(), kv.view());
  ops->Sync();
  const double grain = compute_ == DType::kF32 ? 1e-5 : 2 * Grain(compute_);
  for (int r = 0; r < 20; ++r) {
    const std::vector<double> query = Rotated(queries, r, 0, 64, rope), key = Rotated(keys, r, 0, 64, rope);
    for (int i = 0; i < 64; ++i) {
      ASSERT_NEAR(q.At(r, i), query[i] / 2, 1e-5 + grain * std::abs(query[i])) << r << " " << i;
      ASSERT_NEAR(kv.At(false, 0, r, 0, i), key[i] / 2, 1e-5 + grain * std::abs(key[i])) << r << " " << i;
    }
  }
}

TEST_P(AttentionContract, CopiedBlocksCarryBothPlanesAndDigests) {
  const Case c{2, 2, 64, {.scale = 0.125f}, compute_};
  auto ops = GetParam().make(c.kv);
  std::mt19937 rng(15);
  std::vector<Stream> streams;
  for (int i = 0; i < 2; ++i) streams.emplace_back(c, 32, compute_, rng);
  PagedKv kv({2, 64, 16, compute_}, 2, 32, 9);
  Feed(*ops, c, streams, kv, 32);
  const std::vector<int32_t> src{kv.tables()[0], kv.tables()[1]}, dst{kv.tables()[2], kv.tables()[3]};
  ops->CopyBlocks(src, dst, kv.view());
  ops->Sync();
  for (int t = 0; t < 32; ++t) {
    for (int h = 0; h < 2; ++h) {
      for (bool value : {false, true}) {
        ASSERT_EQ(std::memcmp(kv.VectorAt(value, 0, t, h), kv.VectorAt(value, 1, t, h), 64 * DTypeBytes(compute_)), 0);
        ASSERT_EQ(kv.DigestAt(value, 0, t, h), kv.DigestAt(value, 1, t, h));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, AttentionContract, testing::ValuesIn(Backends()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace baton::kernels
