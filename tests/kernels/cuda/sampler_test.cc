// The sampler kernel: ties at a cut, vocabularies of any size, and its synchronization against mutants. What SampleRow
// means is in tests/kernels/contract/sample_test.cc.
#include "kernels/cuda/sample_rows.h"
#include "tests/kernels/cuda/mutants.h"

namespace baton::cuda_test {
namespace {

using kernels::SampleRow;

struct SampleCase {
  SampleCase(int rows_in, int vocab_in, const std::vector<SampleRow>& plan, unsigned seed)
      : rows(rows_in),
        vocab(vocab_in),
        lists(cuda::PlanSample(plan, vocab_in)),
        logits(static_cast<size_t>(rows) * vocab),
        raw(logits.size()),
        params(lists.rows),
        tokens(lists.tokens),
        values(lists.values),
        masks(lists.masks),
        out(static_cast<size_t>(rows)),
        top_tokens(static_cast<size_t>(rows) * cuda::kMaxTopLogprobs),
        top_logprobs(top_tokens.size()),
        source(Data(seed).Normal<float>(logits.size(), 2.0f)) {}

  std::string Run(const simt::Policy& policy) {
    gpu::Stream stream;
    stream.SetPolicy(policy);
    for (size_t i = 0; i < source.size(); ++i) logits[i] = source[i];
    std::fill_n(raw.data(), raw.size(), NAN);
    std::fill_n(top_tokens.data(), top_tokens.size(), -1);
    for (int r = 0; r < rows; ++r) out[r] = {-1, NAN, -1, -1};
    cuda::LaunchSample(stream, {logits.data(), raw.data(), vocab, params.data(), tokens.data(), values.data(),
                                masks.data(), out.data(), top_tokens.data(), top_logprobs.data(), rows, vocab});
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
  Array<int32_t> tokens;
  Array<float> values;
  Array<uint32_t> masks;
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
  for (const simt::Policy& policy : simt::AllPolicies()) {
    ASSERT_EQ(all.Run(policy), "");
    if (want.empty()) want = all.Tokens();
    EXPECT_EQ(all.Tokens(), want) << simt::PolicyName(policy);
  }
  for (int r = 0; r < 6; ++r) {
    SampleCase one(1, 1001, {plan[r]}, 3);
    one.source.assign(all.source.begin() + r * 1001, all.source.begin() + (r + 1) * 1001);
    ASSERT_EQ(one.Run({}), "");
    EXPECT_EQ(one.Tokens()[0], want[r]);
  }
}

TEST(CudaSampler, ManyEqualLogitsAreCutByTheirIds) {
  // 700 equal logits and top_k 33: only the 33 lowest ids may win.
  std::vector<SampleRow> plan;
  for (unsigned i = 0; i < 40; ++i) plan.push_back({.top_k = 33, .seed = i});
  SampleCase c(40, 700, plan, 1);
  std::fill(c.source.begin(), c.source.end(), -3.25f);
  ASSERT_EQ(c.Run({}), "");
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
  ASSERT_EQ(c.Run({}), "");
  EXPECT_EQ(c.Tokens(), (std::vector<int>{41, 0}));
}

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
  constexpr int kRows = 7, kVocab = 2100;
  for (unsigned seed = 8; seed < 12; ++seed)
    plan.push_back({.temperature = 1.3f, .top_p = 0.6f, .seed = seed, .num_logprobs = 3});
  // The penalty of token 99 decides, and another warp than its reader's subtracts it.
  plan.push_back({.temperature = 0, .presence_penalty = 2.0f, .output_tokens = output});
  SampleCase c(kRows, kVocab, plan, 8);
  for (int r = 2; r + 1 < kRows; ++r) c.source[r * kVocab + 5] = 9.0f;
  c.source[(kRows - 1) * kVocab + 99] = 12.0f;
  c.source[(kRows - 1) * kVocab + 1500] = 11.5f;
  ASSERT_EQ(c.Run({}), "");
  const std::vector<cuda::SampleRowOutput> want(c.out.data(), c.out.data() + kRows);
  const std::vector<int32_t> want_top(c.top_tokens.data(), c.top_tokens.data() + c.top_tokens.size());
  std::vector<float> want_logits(c.logits.data(), c.logits.data() + c.logits.size());
  ExpectEveryMutantFound([&](const simt::Policy& policy) -> std::string {
    if (std::string error = c.Run(policy); !error.empty()) return error;
    for (int r = 0; r < kRows; ++r) {
      if (c.out[r].token != want[r].token || c.out[r].rank != want[r].rank) return "another token or rank";
      if (c.out[r].logprob != want[r].logprob) return "another log-probability";
    }
    if (!std::equal(want_top.begin(), want_top.end(), c.top_tokens.data())) return "other top tokens";
    if (!std::equal(want_logits.begin(), want_logits.end(), c.logits.data())) return "logits edited otherwise";
    return {};
  });
}

}  // namespace
}  // namespace baton::cuda_test
