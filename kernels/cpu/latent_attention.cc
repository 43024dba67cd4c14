#include "kernels/cpu/latent_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/check.h"

namespace baton::kernels::cpu {
namespace {

constexpr int kHeadsPerItem = 16;  ///< a token is converted once for so many heads

// Eight sums side by side, so that the compiler may use vectors; the order is fixed.
float Dot(const float* a, const float* b, int n) {
  float sums[8] = {};
  for (int i = 0; i < n; i += 8) {
    for (int j = 0; j < 8; ++j) sums[j] += a[i + j] * b[i + j];
  }
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

// Where one query row's tokens lie.
struct LatentRow {
  const KvPlaneView& latents;
  const int32_t* blocks;
  int tokens;
  const char* TokenAt(int t) const {
    const int64_t slot = t % latents.tokens_per_block;
    return static_cast<const char*>(latents.base) + blocks[t / latents.tokens_per_block] * latents.block_stride_bytes +
           slot * kLatentDim * static_cast<int64_t>(DTypeBytes(latents.dtype));
  }
};

void AttendHeads(const KernelTable& kernels, const LatentRow& row, const char* q, DType dtype, int heads,
                 const AttentionParams& params, char* out) {
  const auto element = static_cast<int64_t>(DTypeBytes(dtype));
  std::vector<float> queries(static_cast<size_t>(heads) * kLatentDim), token(kLatentDim),
      scores(static_cast<size_t>(heads) * static_cast<size_t>(row.tokens)),
      sums(static_cast<size_t>(heads) * kLatentValues, 0.0f);
  kernels.convert(q, dtype, 1.0f, queries.data(), DType::kF32, heads * kLatentDim);
  for (int t = 0; t < row.tokens; ++t) {
    kernels.convert(row.TokenAt(t), row.latents.dtype, 1.0f, token.data(), DType::kF32, kLatentDim);
    for (int h = 0; h < heads; ++h) {
      float s = Dot(queries.data() + h * kLatentDim, token.data(), kLatentDim) * params.scale;
      if (params.logit_softcap > 0) s = params.logit_softcap * std::tanh(s / params.logit_softcap);
      scores[static_cast<size_t>(h) * row.tokens + t] = s;
    }
  }
  std::vector<float> total(static_cast<size_t>(heads), 0.0f);
  for (int h = 0; h < heads; ++h) {
    float* s = scores.data() + static_cast<int64_t>(h) * row.tokens;
    const float best = *std::max_element(s, s + row.tokens);
    for (int t = 0; t < row.tokens; ++t) total[h] += s[t] = std::exp(s[t] - best);
  }
  for (int t = 0; t < row.tokens; ++t) {
    kernels.convert(row.TokenAt(t), row.latents.dtype, 1.0f, token.data(), DType::kF32, kLatentDim);
    for (int h = 0; h < heads; ++h) {
      const float p = scores[static_cast<size_t>(h) * row.tokens + t];
      float* sum = sums.data() + h * kLatentValues;
      for (int i = 0; i < kLatentValues; ++i) sum[i] += p * token[static_cast<size_t>(i)];
    }
  }
  for (int h = 0; h < heads; ++h) {
    kernels.convert(sums.data() + h * kLatentValues, DType::kF32, 1.0f / total[h], out + h * kLatentValues * element,
                    dtype, kLatentValues);
  }
}

}  // namespace

void LatentAttention(const KernelTable& kernels, Pool& pool, const Tensor& q, const RaggedBatch& batch,
                     const KvPlaneView& latents, const AttentionParams& params, const Tensor& out) {
  const int heads = static_cast<int>(q.cols() / kLatentDim);
  BATON_CHECK(q.cols() % kLatentDim == 0 && out.cols() == static_cast<int64_t>(heads) * kLatentValues &&
                  q.rows() == out.rows() && q.rows() == batch.row_start.back() && q.dtype == out.dtype,
              "q [", q.rows(), ", ", q.cols(), "], out [", out.rows(), ", ", out.cols(), "]");
  BATON_CHECK(latents.heads == 1 && latents.dim == kLatentDim && params.window == 0 && params.sinks == nullptr,
              latents.heads, " heads of ", latents.dim, ", window ", params.window);
  const int parts = (heads + kHeadsPerItem - 1) / kHeadsPerItem;
  const auto element = static_cast<int64_t>(DTypeBytes(q.dtype));
  for (int s = 0; s < batch.sequences(); ++s) {
    const int64_t first = batch.row_start[s], rows = batch.row_start[s + 1] - first;
    pool.Run(rows * parts, [&](int64_t i) {
      const int64_t r = i / parts;
      const int head = static_cast<int>(i % parts) * kHeadsPerItem;
      const LatentRow row{latents, batch.block_tables.data() + s * batch.table_stride,
                          batch.context[s] + static_cast<int>(r) + 1};
      AttendHeads(kernels, row, q.Rows(first + r, 1).Data<const char>() + head * kLatentDim * element, q.dtype,
                  std::min(kHeadsPerItem, heads - head), params,
                  out.Rows(first + r, 1).Data<char>() + head * kLatentValues * element);
    });
  }
}

}  // namespace baton::kernels::cpu
