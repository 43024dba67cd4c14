// A prefix that several sequences share, attended once for all of them, and the rest of each, merged by log-sum-exp:
// the attention over the whole.
#include "kernels/cuda/attention/merge_state.cuh"
#include "tests/kernels/cuda/attention_case.h"
#include "tests/kernels/cuda/shape_sweep.h"

namespace baton::cuda_test {
namespace {

/// Not in the constructor that needs it: nvcc cannot take the braces there.
cuda::DecodePlan PlanOf(const std::vector<int32_t>& row_start, const std::vector<int32_t>& lengths, int q_heads,
                        int kv_heads) {
  return cuda::PlanDecode({.row_start = row_start, .lengths = lengths, .q_heads = q_heads, .kv_heads = kv_heads});
}

/// Decode attention of one token of each sequence over a part of its tokens.
template <typename Kv, int kDim>
struct Pass {
  Pass(const AttentionCase<Kv, kDim>& c, const std::vector<int32_t>& starts, const std::vector<int32_t>& tokens)
      : row_start(starts),
        lengths(tokens),
        plan(PlanOf(starts, tokens, c.shape.q_heads, c.shape.kv_heads)),
        groups(plan.groups),
        items(plan.items),
        counts(std::vector<int32_t>{static_cast<int32_t>(plan.groups.size()), static_cast<int32_t>(plan.items.size())}),
        out(static_cast<size_t>(c.rows()) * c.shape.q_heads * kDim),
        lse(static_cast<size_t>(c.rows()) * c.shape.q_heads),
        partial_o(static_cast<size_t>(plan.partials) * cuda::kRowsPerWarp * kDim),
        partial_ml(static_cast<size_t>(plan.partials) * cuda::kRowsPerWarp * 2) {}

  void Launch(gpu::Stream& stream, const AttentionCase<Kv, kDim>& c, int first_block, const uint32_t* tree,
              bool sinks) {
    stream.FillAsync(out.data(), 0xFF, out.size() * sizeof(px::bf16));
    stream.FillAsync(lse.data(), 0xFF, lse.size() * sizeof(float));
    cuda::PagedKv<Kv> cache = c.Cache();
    cache.tables += first_block;
    cache.lengths = lengths.data();
    cuda::AttentionOptions options = c.Options();
    if (!sinks) options.sinks = nullptr;
    cuda::LaunchDecodeAttention<Kv, kDim, true>(stream,
                                                {c.q.data(),
                                                 out.data(),
                                                 lse.data(),
                                                 c.QStride(),
                                                 c.shape.q_heads * kDim,
                                                 row_start.data(),
                                                 tree,
                                                 {groups.data(), items.data(), counts.data()},
                                                 partial_o.data(),
                                                 partial_ml.data(),
                                                 cache,
                                                 options,
                                                 c.shape.q_heads},
                                                5);
  }

  Array<int32_t> row_start, lengths;
  cuda::DecodePlan plan;
  Array<cuda::DecodeGroup> groups;
  Array<cuda::DecodeItem> items;
  Array<int32_t> counts;
  Array<px::bf16> out;
  Array<float> lse, partial_o, partial_ml;
};

/// `sequences` of one new token each share `prefix` tokens, whole blocks.
template <typename Kv, int kDim>
void CheckCascade(Draw& draw, int sequences) {
  AttentionShape shape{.tokens_per_block = draw.Pick({16, 32, 64})};
  shape.kv_heads = draw.Pick({1, 2});
  shape.q_heads = shape.kv_heads * draw.Int(1, 8);
  shape.sinks = draw.Chance(2);
  shape.softcap = draw.Chance(3) ? 15.0f : 0.0f;
  const int blocks = draw.Int((32 + shape.tokens_per_block - 1) / shape.tokens_per_block, 600 / shape.tokens_per_block);
  const int prefix = blocks * shape.tokens_per_block;
  for (int s = 0; s < sequences; ++s) {
    shape.new_rows.push_back(1);
    shape.lengths.push_back(prefix + draw.Size(300));
  }
  AttentionCase<Kv, kDim> c(shape, static_cast<unsigned>(draw.Int(1, 1 << 30)));
  const int64_t stride = c.Cache().table_stride;
  for (int s = 1; s < sequences; ++s) std::copy_n(c.tables.host(), blocks, c.tables.host() + s * stride);
  std::vector<double> want, want_lse;
  c.Reference(want, want_lse);

  std::vector<int32_t> suffixes;
  for (int length : shape.lengths) suffixes.push_back(length - prefix);
  Pass<Kv, kDim> shared(c, {0, sequences}, {prefix}),
      own(c, {c.row_start.host(), c.row_start.host() + sequences + 1}, suffixes);
  // To the kernel the prefix is one sequence whose newest tokens are the rows; each sees all of them.
  const Array<uint32_t> all(std::vector<uint32_t>(static_cast<size_t>(sequences), ~0u));
  UnderEveryPolicy(
      [&](gpu::Stream& stream) {
        shared.Launch(stream, c, 0, all.data(), false);
        own.Launch(stream, c, blocks, nullptr, true);
        cuda::LaunchMergeState(stream, {shared.out.data(), shared.lse.data(), own.out.data(), own.lse.data(),
                                        own.out.data(), own.lse.data(), sequences, shape.q_heads, kDim});
      },
      [&](const std::string& policy) {
        const std::string name =
            policy + ", " + std::to_string(sequences) + " sequences, prefix " + std::to_string(prefix);
        EXPECT_TRUE(Near(own.out.host(), want, kAttentionTolerance)) << name;
        EXPECT_TRUE(Near(own.lse.host(), want_lse, kernel_test::kLogSumExp)) << name;
      });
}

TEST(CudaAttention, ASharedPrefixAndTheRestsMergedAreTheWhole) {
  Sweep(4, [](Draw& draw) {
    CheckCascade<px::bf16, 64>(draw, draw.Size(32));
    CheckCascade<px::bf16, 128>(draw, draw.Size(6));
    CheckCascade<px::e4m3, 80>(draw, draw.Size(32));
  });
}

}  // namespace
}  // namespace baton::cuda_test
