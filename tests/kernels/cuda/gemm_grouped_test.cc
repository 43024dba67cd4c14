// Grouped GEMM over the routing's own lists: every row is its token times its expert's weight, with the GEMM's bits;
// the combination of a token's experts; synchronization against mutants.
#include "kernels/cuda/moe/gemm_grouped.cuh"

#include <cstring>

#include "kernels/cuda/moe/moe_combine.cuh"
#include "kernels/cuda/moe/moe_lists.cuh"
#include "kernels/cuda/moe/moe_route.cuh"
#include "tests/kernels/cuda/mutants.h"
#include "tests/kernels/cuda/padded_rows.h"
#include "tests/kernels/cuda/shape_sweep.h"

namespace baton::cuda_test {
namespace {

/// Tokens routed to k experts each; `crowded`: every first choice is expert 1, so that it fills several tiles and
/// others stay empty. NaN in the gaps of x; weights in the padded form.
struct GroupedCase {
  GroupedCase(int tokens_in, int experts_in, int k_in, int n_in, int depth_in, bool crowded)
      : tokens(tokens_in),
        experts(experts_in),
        k(k_in),
        n(n_in),
        depth(depth_in),
        pairs(tokens * k),
        x_stride(depth + 8),
        w_stride((depth + 63) / 64 * 64),
        expert_stride(static_cast<int64_t>((n + 127) / 128 * 128) * w_stride),
        logits(static_cast<size_t>(tokens) * experts),
        weights(static_cast<size_t>(pairs)),
        bias(static_cast<size_t>(experts) * n),
        out(static_cast<size_t>(pairs) * n + 1),
        chosen(static_cast<size_t>(pairs)),
        offsets(static_cast<size_t>(experts) + 1),
        row_of_pair(static_cast<size_t>(pairs)),
        token_of_row(static_cast<size_t>(pairs)),
        x(static_cast<size_t>(tokens) * x_stride),
        w(std::vector<px::bf16>(static_cast<size_t>(experts) * expert_stride, px::bf16{0})),
        narrow(static_cast<size_t>(pairs) * n) {
    Data data(static_cast<unsigned>(tokens * 3 + experts));
    std::fill_n(x.host(), x.size(), Nan<px::bf16>());
    for (int t = 0; t < tokens; ++t)
      for (int i = 0; i < depth; ++i) x[t * x_stride + i] = data.Normal<px::bf16>(1)[0];
    for (int e = 0; e < experts; ++e)
      for (int c = 0; c < n; ++c) {
        bias[e * n + c] = data.Normal<float>(1)[0];
        for (int i = 0; i < depth; ++i) w[e * expert_stride + c * w_stride + i] = data.Normal<px::bf16>(1)[0];
      }
    for (size_t i = 0; i < logits.size(); ++i) logits[i] = data.Normal<float>(1)[0];
    if (crowded)
      for (int t = 0; t < tokens; ++t) logits[t * experts + 1] = 50.0f;
  }
  void Route(gpu::Stream& stream) const {
    cuda::LaunchMoeRoute(stream, {logits.data(), experts, chosen.data(), weights.data(), tokens, experts, k, true});
    cuda::LaunchMoeLists(stream,
                         {chosen.data(), offsets.data(), row_of_pair.data(), token_of_row.data(), pairs, experts, k});
  }
  template <typename Out>
  cuda::GroupedGemmParams<Out> Params(Out* to) const {
    return {x.data(),       token_of_row.data(),
            offsets.data(), w.data(),
            bias.data(),    to,
            x_stride,       w_stride,
            expert_stride,  n,
            pairs,          n,
            depth,          experts};
  }
  void Poison() const { std::fill_n(out.host(), out.size(), NAN); }
  std::string Check() const {
    for (int pair = 0; pair < pairs; ++pair) {
      const int row = row_of_pair[pair], e = chosen[pair], t = pair / k;
      if (row < offsets[e] || row >= offsets[e + 1]) return "row outside of its expert's";
      for (int c = 0; c < n; ++c) {
        double want = bias[e * n + c], size = std::abs(want);
        for (int i = 0; i < depth; ++i) {
          const double product =
              double{px::ToFloat(x[t * x_stride + i])} * px::ToFloat(w[e * expert_stride + c * w_stride + i]);
          want += product;
          size += std::abs(product);
        }
        const double got = out[static_cast<size_t>(row) * n + c];
        if (!kernel_test::SumTolerance(size, depth).Holds(got, want))
          return "row " + std::to_string(row) + " column " + std::to_string(c) + ": " + std::to_string(got) +
                 ", want " + std::to_string(want);
      }
    }
    return std::isnan(out[out.size() - 1]) ? "" : "writes beyond its rows";
  }

  int tokens, experts, k, n, depth, pairs;
  int64_t x_stride, w_stride, expert_stride;
  Array<float> logits, weights, bias, out;
  Array<int32_t> chosen, offsets, row_of_pair, token_of_row;
  Array<px::bf16> x, w, narrow;
};

template <typename Tile>
void CheckGroupedTile(const GroupedCase& c) {
  UnderEveryPolicy(
      [&](gpu::Stream& stream) {
        c.Poison();
        c.Route(stream);
        cuda::LaunchGroupedGemmTile<Tile>(stream, c.Params(c.out.data()), false);
      },
      [&](const std::string& policy) {
        EXPECT_EQ(c.Check(), "") << policy << " tokens " << c.tokens << " experts " << c.experts;
      });
}

TEST(CudaGroupedGemm, EveryRowMeetsItsExpert) {
  CheckGroupedTile<cuda::GemmTileSmall>(GroupedCase(1, 4, 1, 40, 72, false));
  CheckGroupedTile<cuda::GemmTileSmall>(
      GroupedCase(40, 9, 3, 33, 136, true));  // an expert of three tiles, and empty ones
  CheckGroupedTile<cuda::GemmTileSmall>(GroupedCase(3, 256, 2, 8, 64, false));
  CheckGroupedTile<cuda::GemmTileMedium>(GroupedCase(70, 4, 2, 65, 72, true));
}

TEST(CudaGroupedGemm, AnyShape) {
  Sweep(5, [](Draw& draw) {
    const int experts = draw.Size(60);
    const GroupedCase c(draw.Size(90), experts, draw.Int(1, std::min(experts, 6)), draw.Size(70), draw.Multiple(8, 200),
                        experts > 1 && draw.Chance(2));
    UnderEveryPolicy(
        [&](gpu::Stream& stream) {
          c.Poison();
          c.Route(stream);
          cuda::LaunchGroupedGemm(stream, c.Params(c.out.data()));
        },
        [&](const std::string& policy) {
          EXPECT_EQ(c.Check(), "") << policy << " tokens " << c.tokens << " experts " << c.experts << " k " << c.k
                                   << " n " << c.n << " depth " << c.depth;
        });
  });
}

TEST(CudaGroupedGemm, NoTokensAreNothing) {
  const GroupedCase c(0, 4, 2, 16, 64, false);
  UnderEveryPolicy([&](gpu::Stream& stream) { cuda::LaunchGroupedGemm(stream, c.Params(c.out.data())); },
                   [&](const std::string&) {});
}

TEST(CudaGroupedGemm, ARowHasTheBitsOfItsExpertsGemm) {
  const GroupedCase c(21, 5, 2, 40, 200, true);
  gpu::Stream stream;
  c.Route(stream);
  cuda::LaunchGroupedGemm(stream, c.Params(c.out.data()));
  Array<float> alone(static_cast<size_t>(c.tokens) * c.n);
  for (int e = 0; e < c.experts; ++e) {
    cuda::LaunchGemm(stream,
                     cuda::GemmParams<float>{c.x.data(), c.w.data() + e * c.expert_stride, c.bias.data() + e * c.n,
                                             alone.data(), c.x_stride, c.w_stride, c.n, c.tokens, c.n, c.depth});
    ASSERT_EQ(stream.Synchronize(), "");
    for (int pair = 0; pair < c.pairs; ++pair)
      if (c.chosen[pair] == e) {
        EXPECT_EQ(std::memcmp(alone.host() + pair / c.k * c.n, c.out.host() + c.row_of_pair[pair] * c.n, c.n * 4), 0)
            << "pair " << pair;
      }
  }
}

void CheckCombine(const GroupedCase& c) {
  const PaddedRows<float> combined(c.tokens, c.n, 4);
  UnderEveryPolicy(
      [&](gpu::Stream& stream) {
        combined.Poison();
        c.Route(stream);
        cuda::LaunchGroupedGemm(stream, c.Params(c.narrow.data()));
        cuda::LaunchMoeCombine(stream, {c.narrow.data(), c.row_of_pair.data(), c.weights.data(), combined.data(), c.n,
                                        combined.stride, c.tokens, c.k, c.n});
      },
      [&](const std::string& policy) {
        std::vector<double> want;
        for (int t = 0; t < c.tokens; ++t)
          for (int col = 0; col < c.n; ++col) {
            double sum = 0;
            for (int choice = 0; choice < c.k; ++choice) {
              const int pair = t * c.k + choice;
              sum += double{c.weights[pair]} * px::ToFloat(c.narrow[c.row_of_pair[pair] * c.n + col]);
            }
            want.push_back(sum);
          }
        EXPECT_TRUE(Near(combined.Packed().data(), want, {1e-4, 1e-5}))
            << policy << " tokens " << c.tokens << " k " << c.k << " n " << c.n;
        EXPECT_TRUE(combined.GapsAreUntouched()) << policy;
      });
}
TEST(CudaGroupedGemm, CombinesATokensExpertsByWeight) {
  CheckCombine(GroupedCase(19, 6, 3, 24, 64, false));
  Sweep(5, [](Draw& draw) {
    const int experts = draw.Size(20);
    CheckCombine(GroupedCase(draw.Size(70), experts, draw.Int(1, std::min(experts, cuda::kMaxChosenExperts)),
                             draw.Multiple(8, 400), 8, experts > 1 && draw.Chance(2)));
  });
}

#if !defined(__CUDACC__)
TEST(CudaGroupedGemm, EveryMissingSynchronizationIsFound) {
  const GroupedCase c(20, 3, 2, 40, 64 * 9, false);
  gpu::Stream lists;
  c.Route(lists);  // its own mutants: moe_test.cc
  ASSERT_EQ(lists.Synchronize(), "");
  ExpectEveryMutantFound([&](const simt::Policy& policy) {
    gpu::Stream stream;
    stream.SetPolicy(policy);
    c.Poison();
    cuda::LaunchGroupedGemmTile<cuda::GemmTile<32, 64, 2, 2, 3>>(stream, c.Params(c.out.data()), false);
    const std::string error = stream.Synchronize();
    return error.empty() ? c.Check() : error;
  });
}
#endif

}  // namespace
}  // namespace baton::cuda_test
