#include "kernels/cpu/experts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/check.h"
#include "common/status.h"

namespace baton::kernels::cpu {
namespace {

// Rows of every expert one after another, each expert's in order of its pairs.
void ListRows(const MoeRoutes& r) {
  std::fill_n(r.offsets, r.experts + 1, 0);
  for (int pair = 0; pair < r.rows(); ++pair) ++r.offsets[r.chosen[pair] + 1];
  std::partial_sum(r.offsets, r.offsets + r.experts + 1, r.offsets);
  std::vector<int32_t> next(r.offsets, r.offsets + r.experts);
  for (int pair = 0; pair < r.rows(); ++pair) {
    const int32_t row = next[static_cast<size_t>(r.chosen[pair])]++;
    r.row_of_pair[pair] = row;
    r.token_of_row[row] = pair / r.per_token;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuExperts>> CpuExperts::Make(Ops& ops, const Tensor& weights, const float* biases) {
  BATON_CHECK(weights.rank == 3 && weights.rows() > 0, "weights of rank ", weights.rank, ", ", weights.rows(),
              " experts");
  auto experts = std::make_unique<CpuExperts>();
  const int64_t n = weights.shape[1], k = weights.shape[2];
  for (int64_t e = 0; e < weights.rows(); ++e) {
    const Tensor one(weights.Rows(e, 1).data, weights.dtype, {n, k});
    BATON_ASSIGN_OR_RETURN(experts->linears_.emplace_back(),
                           ops.Pack(one, biases != nullptr ? biases + e * n : nullptr));
  }
  return experts;
}

size_t CpuExperts::bytes() const {
  size_t sum = 0;
  for (const auto& linear : linears_) sum += linear->bytes();
  return sum;
}

void RouteTokens(const Tensor& logits, bool renormalize, const MoeRoutes& r) {
  BATON_CHECK(logits.dtype == DType::kF32 && logits.rows() == r.tokens && logits.cols() == r.experts &&
                  r.per_token >= 1 && r.per_token <= r.experts,
              "logits [", logits.rows(), ", ", logits.cols(), "], ", r.per_token, " of ", r.experts, " experts for ",
              r.tokens, " tokens");
  std::vector<float> x(static_cast<size_t>(r.experts));
  std::vector<int32_t> order(x.size());
  for (int t = 0; t < r.tokens; ++t) {
    const float* row = logits.Data<const float>() + t * logits.row_stride;
    for (size_t e = 0; e < x.size(); ++e) x[e] = std::fmax(row[e], std::numeric_limits<float>::lowest());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return x[a] > x[b]; });
    const double best = x[order[0]];
    double sum = 0;
    for (int i = 0; i < (renormalize ? r.per_token : r.experts); ++i) sum += std::exp(x[order[i]] - best);
    for (int c = 0; c < r.per_token; ++c) {
      r.chosen[t * r.per_token + c] = order[c];
      r.weights[t * r.per_token + c] = static_cast<float>(std::exp(x[order[c]] - best) / sum);
    }
  }
  ListRows(r);
}

void ExpertLinear(Ops& ops, const Tensor& x, bool by_row, const MoeRoutes& r, const CpuExperts& w, const Tensor& out,
                  std::vector<char>& gathered) {
  BATON_CHECK(w.experts() == r.experts && out.rows() == r.rows() && x.rows() == (by_row ? r.rows() : r.tokens),
              w.experts(), " weights for ", r.experts, " experts, x of ", x.rows(), " rows, out of ", out.rows(),
              ", routes of ", r.rows());
  for (int e = 0; e < r.experts; ++e) {
    const int64_t first = r.offsets[e], count = r.offsets[e + 1] - first;
    if (count == 0) continue;
    Tensor rows = x;
    if (by_row) {
      rows = x.Rows(first, count);
    } else {
      gathered.resize(static_cast<size_t>(count * x.cols()) * DTypeBytes(x.dtype));
      rows = Tensor(gathered.data(), x.dtype, {count, x.cols()});
      ops.GatherRows(x, {r.token_of_row + first, static_cast<size_t>(count)}, rows);
    }
    ops.Linear(rows, w.Expert(e), out.Rows(first, count));
  }
}

void CombineExperts(const KernelTable& kernels, const Tensor& y, const MoeRoutes& r, const Tensor& out) {
  BATON_CHECK(y.rows() == r.rows() && out.rows() == r.tokens && y.cols() == out.cols() && out.dtype == DType::kF32,
              "y [", y.rows(), ", ", y.cols(), "], out [", out.rows(), ", ", out.cols(), "], routes of ", r.rows());
  const int n = static_cast<int>(out.cols());
  std::vector<float> said(static_cast<size_t>(n));
  for (int t = 0; t < r.tokens; ++t) {
    float* sum = out.Rows(t, 1).Data<float>();
    std::fill_n(sum, n, 0.0f);
    for (int pair = t * r.per_token; pair < (t + 1) * r.per_token; ++pair) {
      kernels.convert(y.Rows(r.row_of_pair[pair], 1).data, y.dtype, 1.0f, said.data(), DType::kF32, n);
      for (int i = 0; i < n; ++i) sum[i] = std::fma(r.weights[pair], said[static_cast<size_t>(i)], sum[i]);
    }
  }
}

}  // namespace baton::kernels::cpu
