// RoPE + KV write with digests, merging of attention states.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/cuda/attention/merge_state.cuh"
#include "kernels/cuda/rows/rope_kv_write.cuh"
#include "tests/kernels/cuda/shape_sweep.h"

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

/// cos and sin of every position below `positions`: [positions, 2, rotary / 2].
std::vector<float> RopeTable(int positions, int rotary) {
  std::vector<float> table;
  for (int p = 0; p < positions; ++p)
    for (int part = 0; part < 2; ++part)
      for (int i = 0; i < rotary / 2; ++i) {
        const double angle = p * std::pow(10000.0, -2.0 * i / rotary);
        table.push_back(static_cast<float>(part == 0 ? std::cos(angle) : std::sin(angle)));
      }
  return table;
}

struct RopeShape {
  int rows, q_heads, kv_heads, rotary;
  bool norms;
  bool in_place = false;  ///< q is rotated where it is
  bool apart = false;     ///< no two rows are of one unit, whose digest is something else before
};

/// Rows at random positions that go to shuffled slots; the last row (of several) has no slot. Every output is poisoned
/// before a launch, digests are zero, or kBefore where rows are `apart`.
template <typename Kv, int kDim>
struct RopeCase {
  static constexpr int kBlock = 32, kBlocks = 4, kUnits = kBlock / 16, kMaxPosition = 200;
  static constexpr uint32_t kLayer = 3, kFirstHead = 5;
  static constexpr uint64_t kBefore = 0x1111'1111'1111'1111;
  explicit RopeCase(const RopeShape& shape)
      : s(shape),
        data(static_cast<unsigned>(kDim + s.rows)),
        heads(s.q_heads + 2 * s.kv_heads),
        block_stride(static_cast<int64_t>(kBlock) * s.kv_heads * kDim),
        qkv(data.template Normal<px::bf16>(static_cast<size_t>(s.rows) * heads * kDim)),
        given(Copy(qkv)),
        q_norm(data.template Normal<float>(kDim, 0.2f)),
        k_norm(data.template Normal<float>(kDim, 0.2f)),
        table(RopeTable(kMaxPosition, s.rotary)),
        k_scale(static_cast<size_t>(s.kv_heads)),
        v_scale(k_scale.size()),
        positions(static_cast<size_t>(s.rows)),
        slots(static_cast<size_t>(s.rows)),
        q(static_cast<size_t>(s.rows) * s.q_heads * kDim),
        k(static_cast<size_t>(kBlocks * block_stride)),
        v(k.size()),
        k_digests(static_cast<size_t>(kBlocks) * kUnits * s.kv_heads),
        v_digests(k_digests.size()) {
    std::vector<int32_t> order(kBlocks * kBlock);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), data.rng());
    if (s.apart) {  // of each unit one token, the first of every other one
      order.resize(kBlocks * kUnits);
      for (int u = 0; u < kBlocks * kUnits; ++u) order[u] = u * 16 + (u % 2 == 0 ? 0 : data.Int(1, 15));
    }
    for (int r = 0; r < s.rows; ++r) slots[r] = order[r], positions[r] = data.Int(0, kMaxPosition - 1);
    if (s.rows > 1) slots[s.rows - 1] = -1;
    for (int h = 0; h < s.kv_heads; ++h)
      k_scale[h] = 0.02f + 0.01f * static_cast<float>(h), v_scale[h] = 0.05f - 0.01f * static_cast<float>(h % 4);
  }
  void Launch(gpu::Stream& stream) const {
    stream.Upload(qkv.data(), given.data(), given.size() * 2);
    stream.FillAsync(q.data(), 0xFF, q.size() * 2);
    stream.FillAsync(k.data(), 0xFF, k.size() * sizeof(Kv));
    stream.FillAsync(v.data(), 0xFF, v.size() * sizeof(Kv));
    for (const Array<uint64_t>* digests : {&k_digests, &v_digests})
      stream.FillAsync(digests->data(), s.apart ? 0x11 : 0, digests->size() * 8);
    const int64_t row = static_cast<int64_t>(heads) * kDim;
    cuda::RopeKvParams<Kv> p{qkv.data(),
                             qkv.data() + s.q_heads * kDim,
                             qkv.data() + (s.q_heads + s.kv_heads) * kDim,
                             row,
                             row,
                             row,
                             s.in_place ? qkv.data() : q.data(),
                             QStride(),
                             s.norms ? q_norm.data() : nullptr,
                             s.norms ? k_norm.data() : nullptr,
                             table.data(),
                             positions.data(),
                             slots.data(),
                             k.data(),
                             v.data(),
                             block_stride,
                             k_scale.data(),
                             v_scale.data(),
                             k_digests.data(),
                             v_digests.data(),
                             kUnits * s.kv_heads,
                             s.rows,
                             s.q_heads,
                             s.kv_heads,
                             s.rotary,
                             kBlock,
                             kLayer,
                             kFirstHead,
                             1e-6f,
                             1.0f,
                             s.apart};
    cuda::LaunchRopeKv<Kv, kDim>(stream, p);
  }
  int64_t QStride() const { return static_cast<int64_t>(s.in_place ? heads : s.q_heads) * kDim; }
  /// Head `h` of row r's q, k and v together, as it should come out.
  std::vector<double> Expected(int r, int h) const {
    const bool is_v = h >= s.q_heads + s.kv_heads;
    std::vector<double> want =
        RotatedHead(given.data() + (static_cast<size_t>(r) * heads + h) * kDim, kDim, is_v ? 0 : s.rotary,
                    !s.norms || is_v ? nullptr : (h < s.q_heads ? q_norm : k_norm).host(), is_v ? 0 : positions[r]);
    if (sizeof(Kv) == 1 && h >= s.q_heads)
      for (double& x : want) x /= double{is_v ? v_scale[h - s.q_heads - s.kv_heads] : k_scale[h - s.q_heads]};
    return want;
  }
  /// One head of one row in the cache; its digest is added to what the unit should hold.
  void CheckCached(int r, int h, bool is_v, std::vector<uint64_t>& digests) const {
    const int block = slots[r] / kBlock, offset = slots[r] % kBlock;
    const Kv* at = (is_v ? v : k).host() + block * block_stride + (offset * s.kv_heads + h) * kDim;
    EXPECT_TRUE(Near(at, Expected(r, s.q_heads + (is_v ? s.kv_heads : 0) + h))) << "row " << r << " head " << h;
    const KvCoordinate coordinate{kLayer, is_v ? 1u : 0u, kFirstHead + h, static_cast<uint32_t>(positions[r])};
    uint64_t& unit = digests[(block * kUnits + offset / 16) * s.kv_heads + h];
    if (s.apart && offset % 16 == 0) unit = 0;
    unit += KvDigestVector(coordinate, at, kDim * sizeof(Kv));
  }
  void Check(const std::string& policy) const {
    SCOPED_TRACE(policy);
    std::vector<uint64_t> want_k(k_digests.size(), s.apart ? kBefore : 0), want_v = want_k;
    for (int r = 0; r < s.rows; ++r) {
      if (slots[r] < 0) {
        CheckUntouched(r);
        continue;
      }
      for (int h = 0; h < s.q_heads; ++h)
        EXPECT_TRUE(Near((s.in_place ? qkv : q).host() + r * QStride() + h * kDim, Expected(r, h)));
      for (int h = 0; h < s.kv_heads; ++h) CheckCached(r, h, false, want_k), CheckCached(r, h, true, want_v);
    }
    EXPECT_EQ(Copy(k_digests), want_k);
    EXPECT_EQ(Copy(v_digests), want_v);
    CheckOtherSlots();
  }
  /// A row without a slot leaves q as it was: poisoned, or what it was given.
  void CheckUntouched(int r) const {
    const size_t bytes = static_cast<size_t>(s.q_heads) * kDim * 2;
    const std::vector<unsigned char> poison(bytes, 0xFF);
    const px::bf16* at = (s.in_place ? qkv : q).host() + r * QStride();
    const void* want = s.in_place ? static_cast<const void*>(given.data() + static_cast<size_t>(r) * heads * kDim)
                                  : static_cast<const void*>(poison.data());
    EXPECT_EQ(std::memcmp(at, want, bytes), 0) << "row " << r << " has no slot and is written";
  }
  /// Slots that no row was given are still poisoned, and so is what the fused row holds beside q.
  void CheckOtherSlots() const {
    const int64_t token = static_cast<int64_t>(s.kv_heads) * kDim;
    std::vector<bool> given_to(static_cast<size_t>(kBlocks) * kBlock, false);
    for (int r = 0; r < s.rows; ++r)
      if (slots[r] >= 0) given_to[slots[r]] = true;
    const std::vector<unsigned char> poison(static_cast<size_t>(token) * sizeof(Kv), 0xFF);
    for (size_t slot = 0; slot < given_to.size(); ++slot)
      for (const Array<Kv>* plane : {&k, &v})
        ASSERT_TRUE(given_to[slot] || std::memcmp(plane->host() + slot * token, poison.data(), poison.size()) == 0)
            << "slot " << slot << " is nobody's and is written";
    for (int r = 0; r < s.rows; ++r) {
      const size_t kv = (static_cast<size_t>(r) * heads + s.q_heads) * kDim;
      ASSERT_EQ(std::memcmp(qkv.host() + kv, given.data() + kv, 2 * token * sizeof(px::bf16)), 0) << "row " << r;
    }
  }

  RopeShape s;
  Data data;
  int heads;
  int64_t block_stride;
  Array<px::bf16> qkv;
  std::vector<px::bf16> given;  ///< qkv before the launch
  Array<float> q_norm, k_norm, table, k_scale, v_scale;
  Array<int32_t> positions, slots;
  Array<px::bf16> q;
  Array<Kv> k, v;
  Array<uint64_t> k_digests, v_digests;
};

template <typename Kv, int kDim>
void CheckRope(int rows, int q_heads, int kv_heads, int rotary, bool norms, bool in_place = false) {
  const RopeCase<Kv, kDim> c({rows, q_heads, kv_heads, rotary, norms, in_place});
  UnderEveryPolicy([&](gpu::Stream& stream) { c.Launch(stream); }, [&](const std::string& policy) { c.Check(policy); });
}

// Of rows that are of a unit each the first token begins its digest, and others add to it.
TEST(CudaRopeKvWrite, BeginsTheDigestsOfRowsThatAreApart) {
  const RopeCase<px::bf16, 64> c({.rows = 8, .q_heads = 4, .kv_heads = 2, .rotary = 64, .norms = false, .apart = true});
  UnderEveryPolicy([&](gpu::Stream& stream) { c.Launch(stream); }, [&](const std::string& policy) { c.Check(policy); });
}

TEST(CudaRopeKvWrite, RotatesNormsStoresAndDigests) {
  CheckRope<px::bf16, 64>(1, 4, 2, 64, false);
  CheckRope<px::bf16, 128>(9, 2, 1, 128, true);
  CheckRope<px::bf16, 80>(4, 3, 1, 32, false);
  CheckRope<px::bf16, 96>(3, 1, 1, 96, true);
  CheckRope<px::e4m3, 256>(3, 2, 1, 256, true);
  CheckRope<px::e4m3, 128>(5, 4, 2, 64, false);
}

template <int kDim>
void CheckDrawnRope(Draw& draw) {
  const int rows = draw.Int(0, 20), q_heads = draw.Size(16), kv_heads = draw.Size(4);
  const int rotary = draw.Chance(2) ? kDim : draw.Multiple(2, kDim);
  const bool norms = draw.Chance(2), in_place = draw.Chance(3);
  SCOPED_TRACE("head_dim " + std::to_string(kDim) + " rows " + std::to_string(rows) + " heads " +
               std::to_string(q_heads) + "/" + std::to_string(kv_heads) + " rotary " + std::to_string(rotary));
  if (draw.Chance(2))
    CheckRope<px::bf16, kDim>(rows, q_heads, kv_heads, rotary, norms, in_place);
  else
    CheckRope<px::e4m3, kDim>(rows, q_heads, kv_heads, rotary, norms, in_place);
}
TEST(CudaRopeKvWrite, AnyShape) {
  Sweep(6, [](Draw& draw) {
    CheckDrawnRope<64>(draw);
    CheckDrawnRope<80>(draw);
    CheckDrawnRope<96>(draw);
    CheckDrawnRope<128>(draw);
    CheckDrawnRope<256>(draw);
  });
}

/// Two states of which some saw nothing, one of them, or both; out may be one of the inputs.
void CheckMerge(int rows, int heads, int dim, bool in_place, unsigned seed) {
  const int n = rows * heads;
  Data data(seed);
  const auto a = data.Normal<px::bf16>(static_cast<size_t>(n) * dim), b = data.Normal<px::bf16>(a.size());
  auto la = data.Normal<float>(n, 3.0f), lb = data.Normal<float>(n, 3.0f);
  for (int i = 0; i < n; ++i) {
    if (i % 8 == 2 || i % 8 == 7) la[i] = -INFINITY;
    if (i % 8 == 4 || i % 8 == 7) lb[i] = -INFINITY;
  }
  std::vector<double> want, want_lse;
  for (int i = 0; i < n; ++i) {
    const double wa = std::exp(la[i]), wb = std::exp(lb[i]), sum = wa + wb;
    want_lse.push_back(std::log(sum));
    for (int d = 0; d < dim; ++d)
      want.push_back(sum == 0 ? 0.0 : (px::ToFloat(a[i * dim + d]) * wa + px::ToFloat(b[i * dim + d]) * wb) / sum);
  }
  Array<px::bf16> da(a), db(b), apart(a.size());
  Array<float> dla(la), dlb(lb), lse_apart(static_cast<size_t>(n));
  const Array<px::bf16>& out = in_place ? db : apart;
  const Array<float>& lse = in_place ? dla : lse_apart;
  UnderEveryPolicy(
      [&](gpu::Stream& stream) {
        stream.FillAsync(apart.data(), 0xFF, apart.size() * 2);
        stream.Upload(db.data(), b.data(), b.size() * 2);
        stream.Upload(dla.data(), la.data(), la.size() * 4);
        cuda::LaunchMergeState(
            stream, {da.data(), dla.data(), db.data(), dlb.data(), out.data(), lse.data(), rows, heads, dim});
      },
      [&](const std::string& policy) {
        EXPECT_TRUE(Near(out.host(), want)) << policy;
        for (int i = 0; i < n; ++i) {
          if (std::isinf(want_lse[i]))
            EXPECT_EQ(lse[i], -INFINITY) << policy;
          else
            EXPECT_TRUE(kernel_test::kLogSumExp.Holds(lse[i], want_lse[i])) << policy << " got " << lse[i];
        }
      });
}

TEST(CudaMergeState, WeighsByLogSumExp) {
  CheckMerge(5, 3, 80, false, 2);
  CheckMerge(5, 3, 64, true, 3);
  CheckMerge(0, 4, 64, false, 4);
  Sweep(8, [](Draw& draw) {
    CheckMerge(draw.Size(20), draw.Size(32), draw.Pick({64, 80, 96, 128, 256, 512}), draw.Chance(2),
               static_cast<unsigned>(draw.Int(1, 1 << 30)));
  });
}

}  // namespace
}  // namespace baton::cuda_test
