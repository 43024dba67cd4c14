// MLA decode: against double precision over a shuffled paged cache with NaN in unused slots, and its synchronization
// against mutants.
#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>

#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/instances/instances.h"
#include "tests/kernels/cuda/mutants.h"
#include "tests/kernels/cuda/shape_sweep.h"

namespace baton::cuda_test {
namespace {

constexpr int kDim = cuda::kMlaDim, kLatent = cuda::kMlaLatent;

struct MlaShape {
  std::vector<int> new_rows, lengths;  ///< per sequence; lengths include the new rows
  int q_heads = 16, tokens_per_block = 16;
  float softcap = 0.0f;
  int window = 0;
  bool sinks = false, tree = false;
};

template <typename Kv>
struct MlaCase {
  explicit MlaCase(const MlaShape& s, unsigned seed)
      : shape(s),
        data(seed),
        rows(std::accumulate(s.new_rows.begin(), s.new_rows.end(), 0)),
        tables(MakeTables()),
        kv(static_cast<size_t>(blocks) * s.tokens_per_block * kDim),
        scale(std::vector<float>(1, kKvScale)),
        q(MakeQueries()),
        out(static_cast<size_t>(rows) * OutStride() + 8),
        lse(static_cast<size_t>(rows) * s.q_heads + 1),
        row_start(RowStart()),
        lengths(std::vector<int32_t>(s.lengths.begin(), s.lengths.end())),
        sinks(data.Normal<float>(static_cast<size_t>(s.q_heads))),
        tree(MakeTree()) {
    std::fill_n(kv.host(), kv.size(), Nan<Kv>());
    for (size_t seq = 0; seq < s.lengths.size(); ++seq)
      for (int t = 0; t < s.lengths[seq]; ++t) {
        const auto vector = data.Normal<Kv>(kDim, 1 / kKvScale);
        std::copy(vector.begin(), vector.end(), At(seq, t));
      }
  }
  Kv* At(size_t seq, int token) const {
    return kv.host() +
           (static_cast<size_t>(tables[seq * stride + token / shape.tokens_per_block]) * shape.tokens_per_block +
            token % shape.tokens_per_block) *
               kDim;
  }
  template <bool kFixed>
  void Launch(gpu::Stream& stream, int tiles_per_item, int grid = 3) {
    std::fill_n(out.host(), out.size(), Nan<px::bf16>());
    std::fill_n(lse.host(), lse.size(), NAN);
    const auto plan = cuda::PlanDecode({.row_start = {row_start.host(), row_start.size()},
                                        .lengths = {lengths.host(), lengths.size()},
                                        .q_heads = shape.q_heads,
                                        .kv_heads = 1,
                                        .window = shape.window,
                                        .tiles_per_item = tiles_per_item,
                                        .fixed_tiles = kFixed,
                                        .rows_per_group = cuda::kMlaRows});
    groups = std::make_unique<Array<cuda::DecodeGroup>>(plan.groups);
    items = std::make_unique<Array<cuda::DecodeItem>>(plan.items);
    counts = std::make_unique<Array<int32_t>>(
        std::vector<int32_t>{static_cast<int32_t>(plan.groups.size()), static_cast<int32_t>(plan.items.size())});
    partial_o = std::make_unique<Array<float>>(static_cast<size_t>(plan.partials) * cuda::kMlaRows * kLatent);
    partial_ml = std::make_unique<Array<float>>(static_cast<size_t>(plan.partials) * cuda::kMlaRows * 2);
    const cuda::PagedKv<Kv> cache{kv.data(),
                                  nullptr,
                                  static_cast<int64_t>(shape.tokens_per_block) * kDim,
                                  tables.data(),
                                  stride,
                                  0,
                                  lengths.data(),
                                  1,
                                  0,
                                  cuda::MakeBlockSize(shape.tokens_per_block),
                                  1,
                                  scale.data(),
                                  scale.data()};
    const cuda::DecodeParams<Kv> p{q.data(),
                                   out.data(),
                                   lse.data(),
                                   QStride(),
                                   OutStride(),
                                   row_start.data(),
                                   shape.tree ? tree.data() : nullptr,
                                   {groups->data(), items->data(), counts->data()},
                                   partial_o->data(),
                                   partial_ml->data(),
                                   cache,
                                   {kScale, shape.window, shape.softcap, shape.sinks ? sinks.data() : nullptr},
                                   shape.q_heads};
    cuda::LaunchMlaDecode<kFixed>(stream, p, grid);
  }
  std::string Check() const {
    for (size_t s = 0; s < shape.lengths.size(); ++s)
      for (int r = 0; r < shape.new_rows[s]; ++r)
        for (int h = 0; h < shape.q_heads; ++h)
          if (std::string wrong = CheckHead(s, r, h); !wrong.empty()) return wrong;
    for (size_t at = 0; at < out.size(); ++at)
      if (at % OutStride() >= static_cast<size_t>(shape.q_heads) * kLatent && out[at].bits != Nan<px::bf16>().bits)
        return "writes between its rows";
    return {};
  }
  int64_t QStride() const { return shape.q_heads * kDim + 8; }
  int64_t OutStride() const { return shape.q_heads * kLatent + 4; }
  std::string CheckHead(size_t s, int r, int h) const {
    const int64_t row = row_start[s] + r;
    const px::bf16* query = q.host() + row * QStride() + h * kDim;
    std::vector<double> o(kLatent, 0.0);
    double sum = shape.sinks ? std::exp(double{sinks[h]}) : 0.0;
    for (int t = 0; t < shape.lengths[s]; ++t) {
      if (!Visible(s, r, t)) continue;
      const Kv* vector = At(s, t);
      double logit = 0;
      for (int d = 0; d < kDim; ++d)
        logit += static_cast<double>(px::ToFloat(query[d])) * px::ToFloat(vector[d]) * kKvScale;
      logit *= static_cast<double>(kScale);
      if (shape.softcap > 0) logit = shape.softcap * std::tanh(logit / shape.softcap);
      const double p = std::exp(logit);
      sum += p;
      for (int d = 0; d < kLatent; ++d) o[d] += p * px::ToFloat(vector[d]) * kKvScale;
    }
    for (double& x : o) x /= sum;
    const std::string at = " of row " + std::to_string(row) + " head " + std::to_string(h);
    if (!Near(out.host() + row * OutStride() + h * kLatent, o, kernel_test::ToleranceOf(DType::kBF16).attention))
      return "another output" + at;
    if (!kernel_test::kLogSumExp.Holds(lse[row * shape.q_heads + h], std::log(sum))) return "another log-sum-exp" + at;
    return {};
  }

  /// Whether new row r of the sequence sees the token.
  bool Visible(size_t s, int r, int token) const {
    const int context = shape.lengths[s] - shape.new_rows[s];
    if (shape.window > 0 && token <= context + r - shape.window) return false;
    if (shape.tree && token >= context) return tree[row_start[s] + r] >> (token - context) & 1;
    return token <= context + r;
  }

  static constexpr float kScale = 0.0416667f;  // 1 / sqrt(576)
  static constexpr float kKvScale = sizeof(Kv) == 1 ? 0.25f : 1.0f;
  MlaShape shape;
  Data data;
  int rows, blocks = 2;
  int64_t stride = 1;
  Array<int32_t> tables;
  Array<Kv> kv;
  Array<float> scale;
  Array<px::bf16> q, out;
  Array<float> lse;
  Array<int32_t> row_start, lengths;
  Array<float> sinks;
  Array<uint32_t> tree;
  std::unique_ptr<Array<cuda::DecodeGroup>> groups;
  std::unique_ptr<Array<cuda::DecodeItem>> items;
  std::unique_ptr<Array<int32_t>> counts;
  std::unique_ptr<Array<float>> partial_o, partial_ml;

 private:
  std::vector<px::bf16> MakeQueries() {
    auto queries = data.Normal<px::bf16>(static_cast<size_t>(rows) * QStride() + 8);
    for (int r = 0; r < rows; ++r)  // between rows lies what nobody may read
      std::fill_n(queries.begin() + r * QStride() + shape.q_heads * kDim, 8, Nan<px::bf16>());
    return queries;
  }
  std::vector<int32_t> MakeTables() {
    auto of = [&](int length) { return (length + shape.tokens_per_block - 1) / shape.tokens_per_block; };
    for (int l : shape.lengths) blocks += of(l), stride = std::max<int64_t>(stride, of(l) + 1);
    std::vector<int32_t> free(blocks), t(shape.lengths.size() * stride + 1, 1 << 28);
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), data.rng());
    for (size_t s = 0; s < shape.lengths.size(); ++s)
      for (int b = 0; b < of(shape.lengths[s]); ++b) t[s * stride + b] = free.back(), free.pop_back();
    return t;
  }
  /// Every draft token sees itself and the ancestors of a random earlier one.
  std::vector<uint32_t> MakeTree() {
    std::vector<uint32_t> bits;
    if (!shape.tree) return bits;
    for (int n : shape.new_rows)
      for (int r = 0; r < n; ++r) bits.push_back(1u << r | (r > 0 ? bits[bits.size() - 1 - data.Int(0, r - 1)] : 0u));
    return bits;
  }
  std::vector<int32_t> RowStart() const {
    std::vector<int32_t> starts = {0};
    for (int n : shape.new_rows) starts.push_back(starts.back() + n);
    return starts;
  }
};

template <bool kFixed, typename Kv = px::bf16>
void CheckMla(const MlaShape& shape, unsigned seed, int tiles_per_item) {
  MlaCase<Kv> c(shape, seed);
  UnderEveryPolicy(
      [&](gpu::Stream& stream) { c.template Launch<kFixed>(stream, tiles_per_item); },
      [&](const std::string& policy) { EXPECT_EQ(c.Check(), "") << policy << (kFixed ? " fixed tiles" : " fast"); });
}

TEST(CudaMlaDecode, EqualsDoublePrecision) {
  CheckMla<true>({.new_rows = {1, 1}, .lengths = {1, 300}}, 1, 1);
  CheckMla<false>({.new_rows = {2}, .lengths = {530}, .tokens_per_block = 64}, 2, 2);
  CheckMla<true>({.new_rows = {1}, .lengths = {45}, .q_heads = 128, .softcap = 8.0f}, 3, 1);  // two groups of 64 rows
  CheckMla<true>({.new_rows = {3}, .lengths = {33}, .q_heads = 22}, 4, 1);  // a group's last rows are empty
}

TEST(CudaMlaDecode, AnEmptyBatchIsNothing) {
  CheckMla<true>({.new_rows = {}, .lengths = {}}, 12, 1);
  CheckMla<false, px::e4m3>({.new_rows = {0, 1}, .lengths = {40, 1}}, 13, 1);
}

/// Contexts around the ends of blocks, sub-tiles and tiles, with every option at once.
template <typename Kv>
void CheckEndsAndOptions(unsigned seed) {
  MlaShape s{.q_heads = 5, .softcap = 9.0f, .window = 200, .sinks = true, .tree = true};
  for (int length : {1, 15, 16, 17, 31, 32, 33, 255, 256, 257, 289})
    s.new_rows.push_back(1), s.lengths.push_back(length);
  s.new_rows.back() = 3;
  CheckMla<true, Kv>(s, seed, 1);
  CheckMla<false, Kv>(s, seed, 2);
}
TEST(CudaMlaDecode, EndsOfTilesAndOptionsTogether) {
  CheckEndsAndOptions<px::bf16>(14);
  CheckEndsAndOptions<px::e4m3>(15);
}

TEST(CudaMlaDecode, WindowsSinksAndDraftTrees) {
  CheckMla<true>({.new_rows = {5, 1}, .lengths = {300, 9}, .q_heads = 20, .sinks = true, .tree = true}, 10, 1);
  CheckMla<false>({.new_rows = {2}, .lengths = {600}, .window = 250}, 11, 2);
}

TEST(CudaMlaDecode, AnE4m3CacheEqualsDoublePrecision) {
  CheckMla<true, px::e4m3>({.new_rows = {1, 1}, .lengths = {1, 290}, .q_heads = 40}, 7, 1);
  CheckMla<false, px::e4m3>({.new_rows = {2}, .lengths = {70}, .tokens_per_block = 64, .softcap = 8.0f}, 8, 2);
}

TEST(CudaMlaDecode, AnyShape) {
  Sweep(2, [](Draw& draw) {
    MlaShape s{.q_heads = draw.Size(128), .tokens_per_block = draw.Pick({16, 48, 64, 128})};
    if (draw.Chance(3)) s.softcap = 5.0f + static_cast<float>(draw.Int(0, 40));
    if (draw.Chance(4)) s.window = draw.Size(400);
    s.sinks = draw.Chance(4), s.tree = draw.Chance(3);
    for (int n = draw.Int(0, 3), left = s.q_heads > 16 ? 700 : 5000; n > 0 && left > 0; --n) {
      s.new_rows.push_back(draw.Chance(8) ? 0 : draw.Chance(2) ? 1 : draw.Size(s.tree ? 12 : 4));
      s.lengths.push_back(std::max(s.new_rows.back(), std::min(left, draw.Size(5000))));
      left -= s.lengths.back();
    }
    std::string name = std::to_string(s.q_heads) + " heads, blocks of " + std::to_string(s.tokens_per_block);
    for (size_t i = 0; i < s.lengths.size(); ++i)
      name += "; " + std::to_string(s.new_rows[i]) + " rows of " + std::to_string(s.lengths[i]);
    SCOPED_TRACE(name);
    const unsigned seed = static_cast<unsigned>(draw.Int(1, 1 << 30));
    const int tiles = draw.Size(8);
    switch (draw.Int(0, 3)) {
      case 0: return CheckMla<true>(s, seed, tiles);
      case 1: return CheckMla<false>(s, seed, tiles);
      case 2: return CheckMla<true, px::e4m3>(s, seed, tiles);
      default: return CheckMla<false, px::e4m3>(s, seed, tiles);
    }
  });
}

TEST(CudaMlaDecode, AFixedTilesBitsDoNotDependOnTheItems) {
  MlaCase<px::bf16> c({.new_rows = {1}, .lengths = {600}}, 5);
  std::vector<px::bf16> want;
  for (int tiles_per_item : {1, 2, 3}) {
    gpu::Stream stream;
    c.Launch<true>(stream, tiles_per_item);
    ASSERT_EQ(stream.Synchronize(), "");
    const std::vector<px::bf16> got = Copy(c.out);
    if (want.empty()) want = got;
    EXPECT_EQ(std::memcmp(want.data(), got.data(), got.size() * sizeof(px::bf16)), 0) << tiles_per_item;
  }
}

TEST(CudaMlaDecode, AnInfinityReachesOnlyRowsThatSeeIt) {
  MlaCase<px::bf16> c({.new_rows = {4}, .lengths = {290}, .q_heads = 20}, 9);
  auto run = [&] {
    gpu::Stream stream;
    c.Launch<true>(stream, 1);
    ASSERT_EQ(stream.Synchronize(), "");
  };
  run();
  const std::vector<px::bf16> healthy = Copy(c.out);
  c.At(0, 288)[7] = px::bf16{0x7F80};  // rows 2 and 3 see it
  run();
  const size_t hidden = size_t{2} * static_cast<size_t>(c.OutStride());
  EXPECT_EQ(std::memcmp(healthy.data(), c.out.host(), hidden * sizeof(px::bf16)), 0);
  EXPECT_FALSE(std::isfinite(px::ToFloat(c.out[hidden + 7])));
}

#if !defined(__CUDACC__)
template <typename Kv>
void CheckMutants() {
  MlaCase<Kv> c({.new_rows = {1}, .lengths = {150}, .q_heads = 40}, 6);
  ExpectEveryMutantFound([&](const simt::Policy& policy) {
    gpu::Stream stream;
    stream.SetPolicy(policy);
    c.template Launch<true>(stream, 1, 1);  // one block: the combine kernel may start beside it
    const std::string error = stream.Synchronize();
    return error.empty() ? c.Check() : error;
  });
}
TEST(CudaMlaDecode, EveryMissingSynchronizationIsFound) { CheckMutants<px::bf16>(); }
TEST(CudaMlaDecode, EveryMissingSynchronizationOfE4m3IsFound) { CheckMutants<px::e4m3>(); }
#endif

}  // namespace
}  // namespace baton::cuda_test
