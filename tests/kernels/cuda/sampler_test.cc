// The sampler kernel: ties at a cut, vocabularies of any size, rows of any settings beside the reference of
// sample_reference.h, and its synchronization against mutants. What SampleRow means is in
// tests/kernels/contract/sample_test.cc.
#include <array>
#include <set>

#include "kernels/cuda/host/sample_rows.h"
#include "tests/kernels/cuda/mutants.h"
#include "tests/kernels/cuda/sample_reference.h"
#include "tests/kernels/cuda/shape_sweep.h"

namespace baton::cuda_test {
namespace {

using kernels::SampleRow;

struct SampleCase {
  SampleCase(int rows_in, int vocab_in, const std::vector<SampleRow>& plan, unsigned seed,
             const std::vector<int32_t>& taken = {})
      : rows(rows_in),
        vocab(vocab_in),
        lists(cuda::PlanSample(plan, vocab_in)),
        logits(static_cast<size_t>(rows) * vocab),
        raw(logits.size()),
        params(lists.rows),
        entries(lists.entries),
        masks(lists.masks),
        step_tokens(taken),
        out(static_cast<size_t>(rows)),
        top_tokens(static_cast<size_t>(rows) * cuda::kMaxTopLogprobs),
        top_logprobs(top_tokens.size()),
        source(Data(seed).Normal<float>(logits.size(), 2.0f)) {}

  void Launch(gpu::Stream& stream) {
    for (size_t i = 0; i < source.size(); ++i) logits[i] = source[i];
    std::fill_n(raw.host(), raw.size(), NAN);
    std::fill_n(top_tokens.host(), top_tokens.size(), -1);
    for (int r = 0; r < rows; ++r) out[r] = {-1, NAN, -1, -1};
    cuda::LaunchSample(stream,
                       {logits.data(), raw.data(), vocab, params.data(), entries.data(), masks.data(), out.data(),
                        top_tokens.data(), top_logprobs.data(), nullptr, rows, vocab, step_tokens.data()});
  }
  std::string Run() {
    gpu::Stream stream;
    Launch(stream);
    return stream.Synchronize();
  }
  std::vector<int> Tokens() const {
    std::vector<int> t;
    for (int r = 0; r < rows; ++r) t.push_back(out[r].token);
    return t;
  }

  int rows, vocab;
  cuda::SampleLists lists;
  Array<float> logits, raw;
  Array<cuda::SampleRowParams> params;
  Array<cuda::ListEntry> entries;
  Array<uint32_t> masks;
  Array<int32_t> step_tokens;
  Array<cuda::SampleRowOutput> out;
  Array<int32_t> top_tokens;
  Array<float> top_logprobs;
  std::vector<float> source;
};

TEST(CudaSampler, TheSameTokensUnderEveryPolicyAndInEveryBatch) {
  std::vector<SampleRow> plan;
  for (int i = 0; i < 6; ++i)
    plan.push_back({.temperature = 0.7f,
                    .top_k = i % 2 ? 40 : 0,
                    .top_p = i % 3 ? 0.9f : 1.0f,
                    .seed = 9u + i,
                    .num_logprobs = i - 1});
  SampleCase all(6, 1001, plan, 3);
  std::vector<int> want;
  UnderEveryPolicy([&](gpu::Stream& stream) { all.Launch(stream); },
                   [&](const std::string& policy) {
                     if (want.empty()) want = all.Tokens();
                     EXPECT_EQ(all.Tokens(), want) << policy;
                   });
  for (int r = 0; r < 6; ++r) {
    SampleCase one(1, 1001, {plan[r]}, 3);
    one.source.assign(all.source.begin() + r * 1001, all.source.begin() + (r + 1) * 1001);
    ASSERT_EQ(one.Run(), "");
    EXPECT_EQ(one.Tokens()[0], want[r]);
  }
}

TEST(CudaSampler, ManyEqualLogitsAreCutByTheirIds) {
  // 700 equal logits and top_k 33: only the 33 lowest ids may win.
  std::vector<SampleRow> plan;
  for (unsigned i = 0; i < 40; ++i) plan.push_back({.top_k = 33, .seed = i});
  SampleCase c(40, 700, plan, 1);
  std::fill(c.source.begin(), c.source.end(), -3.25f);
  ASSERT_EQ(c.Run(), "");
  std::set<int> tokens;
  for (int t : c.Tokens()) {
    EXPECT_LT(t, 33);
    tokens.insert(t);
  }
  EXPECT_GT(tokens.size(), 10u);
}

TEST(CudaSampler, NothingAllowedGivesTokenZeroAndOneAllowedGivesIt) {
  const std::vector<int32_t> only = {41};
  const std::vector<uint32_t> none(4, 0);
  SampleCase c(2, 100, {{.allowed_tokens = only}, {.grammar_mask = none.data()}}, 2);
  ASSERT_EQ(c.Run(), "");
  EXPECT_EQ(c.Tokens(), (std::vector<int>{41, 0}));
}

/// A row's settings and the lists they point to.
struct DrawnRow {
  std::vector<int32_t> prompt, output, allowed, banned;
  std::vector<int32_t> whole_output;  ///< with the token that the host has not read
  std::vector<std::pair<int32_t, float>> bias;
  std::vector<uint32_t> mask;
  SampleRow row;
};
std::vector<int32_t> DrawTokens(Draw& draw, int vocab, int most) {
  std::vector<int32_t> tokens(static_cast<size_t>(draw.Int(0, most)));
  for (int32_t& t : tokens) t = draw.Int(-1, vocab);  // what is outside of the vocabulary is nobody's
  return tokens;
}
DrawnRow DrawRow(Draw& draw, int vocab) {
  DrawnRow d;
  d.row.temperature = draw.Chance(4) ? 0.0f : 0.2f + 0.01f * static_cast<float>(draw.Int(0, 200));
  if (draw.Chance(2)) d.row.top_k = draw.Size(vocab + 5);
  if (draw.Chance(2)) d.row.top_p = 0.01f * static_cast<float>(draw.Int(1, 100));
  if (draw.Chance(3)) d.row.min_p = 0.01f * static_cast<float>(draw.Int(0, 60));
  if (draw.Chance(3)) d.row.repetition_penalty = 0.5f + 0.01f * static_cast<float>(draw.Int(0, 150));
  if (draw.Chance(3)) d.row.presence_penalty = 0.1f * static_cast<float>(draw.Int(-20, 20));
  if (draw.Chance(3)) d.row.frequency_penalty = 0.1f * static_cast<float>(draw.Int(-20, 20));
  d.prompt = DrawTokens(draw, vocab, 200), d.output = DrawTokens(draw, vocab, 200);
  if (draw.Chance(4)) d.allowed = DrawTokens(draw, vocab, 40);
  if (draw.Chance(3)) d.banned = DrawTokens(draw, vocab, 40);
  if (draw.Chance(3))
    for (int32_t t : DrawTokens(draw, vocab, 40)) d.bias.emplace_back(t, 0.5f * static_cast<float>(draw.Int(-9, 9)));
  if (draw.Chance(3))
    for (int i = 0; i < (vocab + 31) / 32; ++i) d.mask.push_back(static_cast<uint32_t>(draw.rng()()));
  d.row.seed = static_cast<uint64_t>(draw.rng()()) << 32 | draw.rng()();
  d.row.sequence_index = static_cast<uint32_t>(draw.Int(0, 7));
  d.row.position = static_cast<uint64_t>(draw.Int(0, 1 << 20));
  d.row.num_logprobs = draw.Int(-1, std::min(vocab, cuda::kMaxTopLogprobs));
  return d;
}

TEST(CudaSampler, AnyRowIsThatOfTheReference) {
  Sweep(6, [](Draw& draw) {
    const int rows = draw.Int(0, 6), vocab = draw.Chance(3) ? draw.Size(40) : draw.Size(6000);
    std::vector<DrawnRow> drawn;
    std::vector<SampleRow> plan, whole;
    std::vector<int32_t> taken;
    for (int r = 0; r < rows; ++r) drawn.push_back(DrawRow(draw, vocab));
    for (DrawnRow& d : drawn) {
      SampleRow row = d.row;
      row.prompt_tokens = d.prompt, row.output_tokens = d.output;
      row.allowed_tokens = d.allowed, row.banned_tokens = d.banned, row.logit_bias = d.bias;
      if (!d.mask.empty()) row.grammar_mask = d.mask.data();
      taken.push_back(draw.Chance(2) && !d.output.empty() ? std::clamp(d.output[0], 0, vocab - 1)
                                                          : draw.Int(0, vocab - 1));
      d.whole_output = d.output;
      if (draw.Chance(2)) {
        row.unread_row = static_cast<int32_t>(plan.size());
        d.whole_output.push_back(taken.back());
      }
      plan.push_back(row);
      row.output_tokens = d.whole_output;
      whole.push_back(row);
    }
    SampleCase c(rows, vocab, plan, static_cast<unsigned>(draw.Int(1, 1 << 30)), taken);
    UnderEveryPolicy(
        [&](gpu::Stream& stream) { c.Launch(stream); },
        [&](const std::string& policy) {
          for (int r = 0; r < rows; ++r) {
            const std::span<const float> logits(c.source.data() + static_cast<size_t>(r) * vocab, vocab);
            const SampleReference reference(logits, whole[r]);
            EXPECT_EQ(reference.Reject(c.out[r].token), "") << policy << " row " << r << " vocabulary " << vocab;
            if (plan[r].num_logprobs < 0) continue;
            EXPECT_EQ(c.out[r].rank, reference.RankOf(c.out[r].token)) << policy << " row " << r;
            EXPECT_TRUE(kernel_test::kLogProbability.Holds(c.out[r].logprob, reference.Logprob(c.out[r].token)))
                << policy << " row " << r << " got " << c.out[r].logprob;
            for (int i = 0; i < plan[r].num_logprobs; ++i) {
              const size_t at = static_cast<size_t>(r) * cuda::kMaxTopLogprobs + i;
              ASSERT_EQ(reference.RankOf(c.top_tokens[at]), i + 1) << policy << " row " << r;
              ASSERT_TRUE(kernel_test::kLogProbability.Holds(c.top_logprobs[at], reference.Logprob(c.top_tokens[at])))
                  << policy << " row " << r << " rank " << i + 1 << " got " << c.top_logprobs[at];
            }
          }
        });
  });
}

// To the bit: what the row's own token adds is what it adds when the host knows it, in the lists or not.
TEST(CudaSampler, ATokenThatTheHostHasNotReadCountsLikeOneThatItHas) {
  constexpr int kVocab = 2100;
  std::vector<int32_t> prompt, output;
  for (int i = 0; i < 300; ++i) prompt.push_back(5 * i);
  for (int i = 0; i < 200; ++i) output.push_back(3 * i % 400);
  // In both lists, in the prompt alone, in none; of the first warp and of others.
  const std::vector<int32_t> taken{3, 399, 5, 1490, 7, 2099};
  std::vector<std::vector<int32_t>> longer;
  std::vector<SampleRow> unread, read;
  for (size_t r = 0; r < taken.size(); ++r) {
    longer.push_back(output);
    longer.back().push_back(taken[r]);
  }
  constexpr std::array<std::array<float, 3>, 4> kPenalties{
      {{1.7f, 0.0f, 0.0f}, {1.0f, 0.3f, 0.0f}, {1.0f, 0.0f, -0.7f}, {0.6f, -0.9f, 0.13f}}};
  for (const auto& [repetition, presence, frequency] : kPenalties) {
    for (size_t r = 0; r < taken.size(); ++r) {
      SampleRow row{.repetition_penalty = repetition,
                    .presence_penalty = presence,
                    .frequency_penalty = frequency,
                    .prompt_tokens = prompt,
                    .output_tokens = longer[r],
                    .seed = r};
      read.push_back(row);
      row.output_tokens = output;
      row.unread_row = static_cast<int32_t>(r);
      unread.push_back(row);
    }
  }
  const int rows = static_cast<int>(read.size());
  SampleCase want(rows, kVocab, read, 5), got(rows, kVocab, unread, 5, taken);
  ASSERT_EQ(want.Run(), "");
  const std::vector<float> edited = Copy(want.logits);
  UnderEveryPolicy([&](gpu::Stream& stream) { got.Launch(stream); },
                   [&](const std::string& policy) {
                     EXPECT_EQ(Copy(got.logits), edited) << policy;
                     EXPECT_EQ(got.Tokens(), want.Tokens()) << policy;
                   });
  EXPECT_NE(edited, want.source);
}

/// Rows that the shortlist cannot hold, beside those that it can: the same tokens as the reference, from one to the
/// other.
class CudaSamplerLists : public testing::Test {
 protected:
  static constexpr int kVocab = 20000;
  void ExpectTheReference(const std::vector<SampleRow>& plan, const std::vector<float>& logits) {
    const int rows = static_cast<int>(plan.size());
    SampleCase c(rows, kVocab, plan, 1);
    for (int r = 0; r < rows; ++r) std::copy(logits.begin(), logits.end(), c.source.begin() + r * kVocab);
    ASSERT_EQ(c.Run(), "");
    std::set<int> drawn;
    for (int r = 0; r < rows; ++r) {
      EXPECT_EQ(SampleReference(logits, plan[r]).Reject(c.out[r].token), "")
          << "row " << r << " top_k " << plan[r].top_k << " top_p " << plan[r].top_p << " T " << plan[r].temperature;
      drawn.insert(c.out[r].token);
      const SampleReference reference(logits, plan[r]);
      for (int i = 0; i < plan[r].num_logprobs; ++i)
        ASSERT_EQ(reference.RankOf(c.top_tokens[static_cast<size_t>(r) * cuda::kMaxTopLogprobs + i]), i + 1)
            << "row " << r;
    }
    if (plan[0].temperature > 0.5f) {
      EXPECT_GT(drawn.size(), 1u);
    }
  }
  /// Every kind of cut: held by a list or not, above and below what a bound is taken for, of one weight and of all.
  static std::vector<SampleRow> EveryCut(float temperature) {
    std::vector<SampleRow> plan;
    for (int top_k : {0, 2, 50, cuda::kMostBounded, cuda::kMostBounded + 1, 5000, kVocab - 1})
      for (float top_p : {0.001f, 0.5f, 0.95f, 0.9999f, 1.0f})
        plan.push_back({.temperature = temperature,
                        .top_k = top_k,
                        .top_p = top_p,
                        .seed = plan.size() + 1,
                        .num_logprobs = plan.size() % 7 == 0 ? 100 : -1});
    return plan;
  }
};

TEST_F(CudaSamplerLists, RowsOfOneSharpness) {
  // Cold: most weigh nothing; warm; hot: a nucleus has thousands of tokens.
  for (float temperature : {0.05f, 1.0f, 20.0f})
    ExpectTheReference(EveryCut(temperature), Data(21).Normal<float>(kVocab, 3.0f));
}

TEST_F(CudaSamplerLists, AllGoodTokensAreOfAFewThreads) {
  // The 50th best thread is bad then, and thousands of tokens are better than its best.
  std::vector<float> logits = Data(22).Normal<float>(kVocab, 0.5f);
  for (int t = 0; t < kVocab; ++t)
    if (t / 4 % cuda::kRowThreads < 64) logits[t] += 8.0f;
  ExpectTheReference(EveryCut(1.0f), logits);
}

TEST_F(CudaSamplerLists, ThousandsOfEqualLogitsAtACut) {
  std::vector<float> logits(kVocab, -1.0f);
  for (int t = 0; t < kVocab; t += 3) logits[t] = 2.0f;    // 6,667 of them
  for (int t = 5; t < kVocab; t += 700) logits[t] = 4.0f;  // 29
  ExpectTheReference(EveryCut(0.9f), logits);
}

#if !defined(__CUDACC__)
TEST(CudaSampler, EveryMissingSynchronizationIsFound) {
  // Lists whose entries are other threads' than the tokens they name.
  std::vector<int32_t> prompt, output, banned;
  std::vector<std::pair<int32_t, float>> bias;
  for (int i = 0; i < 300; ++i) prompt.push_back(2 * i), bias.emplace_back(7 * i, 0.5f + 0.01f * static_cast<float>(i));
  for (int i = 0; i < 200; ++i) output.push_back(3 * i);
  for (int i = 0; i < 100; ++i) banned.push_back(14 * i);
  std::vector<SampleRow> plan{{.temperature = 0.8f,
                               .top_k = 60,
                               .top_p = 0.9f,
                               .repetition_penalty = 1.8f,
                               .presence_penalty = 2.0f,
                               .prompt_tokens = prompt,
                               .output_tokens = output,
                               .logit_bias = bias,
                               .seed = 4,
                               .num_logprobs = 12}};
  plan.push_back(plan[0]);
  plan[1].banned_tokens = banned;
  plan[1].seed = 5;
  // No top-k: the sum of the weights follows the search for the best at once. The best is the first warp's.
  constexpr int kRows = 14, kVocab = 2100;
  for (unsigned seed = 8; seed < 12; ++seed)
    plan.push_back({.temperature = 1.3f, .top_p = 0.6f, .seed = seed, .num_logprobs = 3});
  // Cuts by digits.
  for (unsigned seed = 12; seed < 16; ++seed)
    plan.push_back({.temperature = 3.0f, .top_k = 900, .top_p = 0.7f, .seed = seed, .num_logprobs = 1});
  // The penalty of token 99 decides, and another warp than its reader's subtracts it.
  plan.push_back({.temperature = 0, .presence_penalty = 2.0f, .output_tokens = output});
  // An unread token that other warps find in the lists, in one of them, in none: it decides, and another warp reads it.
  const std::vector<int32_t> taken{591, 598, 401};
  for (int r = 0; r < 3; ++r) {
    plan.push_back({.temperature = 0,
                    .repetition_penalty = 1.5f,
                    .frequency_penalty = 1.0f,
                    .prompt_tokens = prompt,
                    .output_tokens = output,
                    .unread_row = r});
  }
  SampleCase c(kRows, kVocab, plan, 8, taken);
  for (int r = 2; r < 10; ++r) c.source[r * kVocab + 5] = 9.0f;
  c.source[10 * kVocab + 99] = 12.0f;
  c.source[10 * kVocab + 1500] = 11.5f;
  for (int r = 0; r < 3; ++r) {
    c.source[(11 + r) * kVocab + taken[r]] = 12.0f;
    c.source[(11 + r) * kVocab + 1701] = r == 0 ? 6.5f : 7.5f;
  }
  ASSERT_EQ(c.Run(), "");
  const std::vector<cuda::SampleRowOutput> want(c.out.host(), c.out.host() + kRows);
  const std::vector<int32_t> want_top(c.top_tokens.host(), c.top_tokens.host() + c.top_tokens.size());
  std::vector<float> want_logits(c.logits.host(), c.logits.host() + c.logits.size());
  ExpectEveryMutantFound([&](const simt::Policy& policy) -> std::string {
    gpu::Stream stream;
    stream.SetPolicy(policy);
    c.Launch(stream);
    if (std::string error = stream.Synchronize(); !error.empty()) return error;
    for (int r = 0; r < kRows; ++r) {
      if (c.out[r].token != want[r].token || c.out[r].rank != want[r].rank) return "another token or rank";
      if (c.out[r].logprob != want[r].logprob) return "another log-probability";
    }
    if (!std::equal(want_top.begin(), want_top.end(), c.top_tokens.host())) return "other top tokens";
    if (!std::equal(want_logits.begin(), want_logits.end(), c.logits.host())) return "logits edited otherwise";
    return {};
  });
}
#endif

}  // namespace
}  // namespace baton::cuda_test
