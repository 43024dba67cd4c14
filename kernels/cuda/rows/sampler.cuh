// From logits to a token, as ops.h SampleRow says: edits, greedy or temperature, top-k, top-p, min-p, Gumbel draw from
// Philox; and log-probabilities of the raw logits. One block per row, deterministic: a row's token depends on it alone.
//
// Floor per row of V (f32): one read of 4V bytes for the greatest, one for the race: 1 MB for V = 128k, 0.24 µs at
// 4.3 TB/s, later passes come from L2. Without filters 2 passes; top-k or top-p add 3 each plus 3 when ties are cut.
// ~10 FLOP per token and pass.
#pragma once

#include "kernels/cuda/rows/logit_row.cuh"
#include "kernels/logprob_limit.h"
#include "kernels/philox.h"
#include "kernels/runtime/runtime.h"

namespace baton::cuda {

constexpr int kMaxTopLogprobs = kernels::kMostCudaLogprobs;

/// Entries of `SampleParams::tokens` and `values`.
struct ListSlice {
  int32_t begin, end;
};
/// How one row becomes a token. Tokens within a list are distinct and within the vocabulary (the host sees to it).
struct SampleRowParams {
  uint64_t seed, position;
  uint32_t sequence_index;
  float temperature;  ///< ≤ 0: greedy
  int32_t top_k;      ///< 0: all
  float top_p, min_p;
  float repetition_penalty;
  ListSlice bias;        ///< values are added; −∞ bans
  ListSlice seen;        ///< get the repetition penalty
  ListSlice counted;     ///< values are subtracted: presence + frequency · count
  int64_t mask_offset;   ///< words into `masks`; −1: none. Grammar and allowed tokens in one.
  int32_t num_logprobs;  ///< −1: none
  int32_t target;        ///< ≥ 0: no draw, the log-probability of this token is wanted
};
struct SampleRowOutput {
  int32_t token;
  float logprob;  ///< of the token, when num_logprobs ≥ 0
  int32_t rank;
  int32_t top_count;
};
struct SampleParams {
  float* logits;  ///< [rows, vocab], edited in place
  float* raw;     ///< [rows, vocab]: rows with log-probabilities and edits are copied here first
  int64_t stride;
  const SampleRowParams* rows;
  const int32_t* tokens;
  const float* values;
  const uint32_t* masks;
  SampleRowOutput* out;  ///< [rows]
  int32_t* top_tokens;   ///< [rows, kMaxTopLogprobs] best first
  float* top_logprobs;
  int count, vocab;
};

struct SamplerShared {
  LogitRowShared row;
  int32_t top_count;
  int32_t top_token[kMaxTopLogprobs];
  float top_logit[kMaxTopLogprobs];
};

PX_DEVICE void EditLogits(const SampleParams& p, const SampleRowParams& r, float* logits) {
  const int t = px::ThreadX();
  for (int i = r.bias.begin + t; i < r.bias.end; i += kRowThreads) {
    float* x = logits + px::Load(p.tokens + i);
    px::Store(x, px::Add(px::Load(x), px::Load(p.values + i)));
  }
  px::SyncThreads();
  for (int i = r.seen.begin + t; i < r.seen.end; i += kRowThreads) {
    float* x = logits + px::Load(p.tokens + i);
    const float v = px::Load(x);
    px::Store(x, v > 0 ? v / r.repetition_penalty : px::Mul(v, r.repetition_penalty));
  }
  px::SyncThreads();
  for (int i = r.counted.begin + t; i < r.counted.end; i += kRowThreads) {
    float* x = logits + px::Load(p.tokens + i);
    px::Store(x, px::Load(x) - px::Load(p.values + i));
  }
  px::SyncThreads();
}

/// Probability up to the common factor, 1 for the best, in units of 2⁻⁴⁰: sums of them are exact.
struct TokenWeight {
  float best, scale;  ///< scale = log2(e) / temperature
  PX_DEVICE float Share(float logit) const { return px::Exp2(px::Mul(logit - best, scale)); }
  PX_DEVICE uint64_t operator()(float logit) const { return static_cast<uint64_t>(Share(logit) * 1099511627776.0f); }
};

/// What top-k and top-p leave.
PX_DEVICE Cut FilterTokens(LogitRowShared& smem, const LogitRow& row, const SampleRowParams& r,
                           const TokenWeight& weight) {
  Cut cut;
  if (r.top_k > 0 && r.top_k < row.n) {
    const Cut best = CutByRank(smem, row, r.top_k);
    if (best.key >= cut.key) cut = best;  // else fewer than top_k are allowed
  }
  if (!(r.top_p < 1.0f)) return cut;
  uint64_t total = 0;
  row.ForEach([&](int token, float x) {
    if (cut.Keeps(OrderedKey(x), token)) total += weight(x);
  });
  total = BlockAdd64(smem, total);
  uint64_t target = static_cast<uint64_t>(static_cast<double>(r.top_p) * static_cast<double>(total));
  target = target < 1 ? 1 : target;
  const Selected s = SelectByWeight(smem, target, [&](auto&& add) {
    row.ForEach([&](int token, float x) {
      if (const uint32_t key = OrderedKey(x); cut.Keeps(key, token)) add(key, weight(x));
    });
  });
  const uint64_t each = weight(LogitOfKey(s.key));
  return CutTies(smem, row, cut, s.key, (target - s.above + each - 1) / each);
}

/// Standard Gumbel: −log(−log u), u from 32 bits.
PX_DEVICE double GumbelOf(uint32_t word) { return -px::Log64(-px::Log64((static_cast<double>(word) + 0.5) * 0x1p-32)); }

/// The kept token with the greatest logit / temperature + Gumbel; ties: the lower id.
PX_DEVICE int RunRace(LogitRowShared& smem, const LogitRow& row, const SampleRowParams& r, const BestToken& best,
                      const Cut& cut, const TokenWeight& weight) {
  constexpr double kMostLuck = 22.9;  // −log(−log(1 − 2⁻³³)), rounded up
  const double inverse = 1.0 / static_cast<double>(r.temperature);
  // The favourite starts: nearly all others are then out before a random word is made.
  double score =
      GumbelOf(kernels::PhiloxWordOf(r.seed, r.sequence_index, r.position, static_cast<uint32_t>(best.token)));
  int winner = best.token;
  row.ForEach([&](int token, float x) {
    const double head_start = (static_cast<double>(x) - static_cast<double>(best.logit)) * inverse;
    if (!(head_start + kMostLuck >= score) || !cut.Keeps(OrderedKey(x), token)) return;
    if (r.min_p > 0.0f && weight.Share(x) < r.min_p) return;
    const double mine = head_start + GumbelOf(kernels::PhiloxWordOf(r.seed, r.sequence_index, r.position,
                                                                    static_cast<uint32_t>(token)));
    if (mine > score || (mine == score && token < winner)) {
      score = mine;
      winner = token;
    }
  });
  // Doubles order as their bits do when the sign is folded in.
  const uint64_t bits = px::BitCast<uint64_t>(score == 0.0 ? 0.0 : score);
  const uint64_t key = bits >> 63 != 0 ? ~bits : bits | 1ull << 63;
  const uint64_t top = BlockMax64(smem, key);
  return static_cast<int>(~static_cast<uint32_t>(BlockMax64(smem, key == top ? ~static_cast<uint32_t>(winner) : 0u)));
}

/// Log-sum-exp of the raw row, in double; the sum of a thread's tokens in f32, in ascending order.
PX_DEVICE double LogSumExp(LogitRowShared& smem, const LogitRow& row, float best) {
  float sum = 0.0f;
  row.ForEach([&](int, float x) { sum = px::Add(sum, px::Exp2(px::Mul(x - best, 1.4426950408889634f))); });
  return static_cast<double>(best) + px::Log64(static_cast<double>(BlockSum<kRowWarps>(sum, smem.partial)));
}

/// The k best of the raw row, best first.
PX_DEVICE void WriteTop(SamplerShared& smem, const LogitRow& raw, int k, double log_sum, int32_t* tokens,
                        float* logprobs) {
  const Cut cut = CutByRank(smem.row, raw, k);
  if (px::ThreadX() == 0) px::StoreShared(&smem.top_count, 0);
  px::SyncThreads();
  raw.ForEach([&](int token, float x) {
    if (!cut.Keeps(OrderedKey(x), token)) return;
    const int slot = px::AtomicAdd(&smem.top_count, 1);
    if (slot < 0 || slot >= kMaxTopLogprobs) return;
    px::StoreShared(&smem.top_token[slot], token);
    px::StoreShared(&smem.top_logit[slot], x);
  });
  px::SyncThreads();
  if (const int i = px::ThreadX(); i < k) {
    const int token = px::LoadShared(&smem.top_token[i]);
    const float x = px::LoadShared(&smem.top_logit[i]);
    int rank = 0;
    for (int j = 0; j < k; ++j) {
      const float other = px::LoadShared(&smem.top_logit[j]);
      rank += other > x || (other == x && px::LoadShared(&smem.top_token[j]) < token);
    }
    px::Store(tokens + rank, token);
    px::Store(logprobs + rank, static_cast<float>(static_cast<double>(x) - log_sum));
  }
}

/// Log-probability and rank of `token`, and the k best.
PX_DEVICE void WriteLogprobs(SamplerShared& smem, const SampleParams& p, const LogitRow& raw, int token, int k,
                             SampleRowOutput& out) {
  const BestToken best = FindBest(smem.row, raw);
  const double log_sum = LogSumExp(smem.row, raw, best.logit);
  const float chosen = px::Load(raw.logits + token);
  uint64_t better = 0;
  raw.ForEach([&](int other, float x) { better += x > chosen || (x == chosen && other < token); });
  out.rank = 1 + static_cast<int>(BlockAdd64(smem.row, better));
  out.logprob = static_cast<float>(static_cast<double>(chosen) - log_sum);
  out.top_count = k < raw.n ? k : raw.n;
  const int64_t at = static_cast<int64_t>(px::BlockX()) * kMaxTopLogprobs;
  if (out.top_count > 0) WriteTop(smem, raw, out.top_count, log_sum, p.top_tokens + at, p.top_logprobs + at);
}

// sm_100 needs more than the 64 registers that two blocks leave.
PX_KERNEL_INLINE void PX_BOUNDS(kRowThreads, PX_SM100_OR(1, 2)) SampleKernel(const PX_GRID_CONST SampleParams p) {
  PX_SHARED(SamplerShared, smem);
  px::GridDependencyWait();
  const SampleRowParams r = p.rows[px::BlockX()];
  float* logits = p.logits + px::BlockX() * p.stride;
  LogitRow raw{logits, nullptr, p.vocab};
  SampleRowOutput out{r.target, 0.0f, 0, 0};
  if (r.target < 0) {
    if (r.num_logprobs >= 0) {
      float* copy = p.raw + static_cast<int64_t>(px::BlockX()) * p.vocab;
      for (int i = px::ThreadX(); i < p.vocab; i += kRowThreads) px::Store(copy + i, px::Load(logits + i));
      raw.logits = copy;
      px::SyncThreads();
    }
    EditLogits(p, r, logits);
    const LogitRow row{logits, r.mask_offset >= 0 ? p.masks + r.mask_offset : nullptr, p.vocab};
    const BestToken best = FindBest(smem.row, row);
    out.token = best.token;
    const bool finite = best.logit - best.logit == 0.0f;
    if (r.temperature > 0.0f && finite) {
      const TokenWeight weight{best.logit, 1.4426950408889634f / r.temperature};
      out.token = RunRace(smem.row, row, r, best, FilterTokens(smem.row, row, r, weight), weight);
    }
  }
  if (r.num_logprobs >= 0) WriteLogprobs(smem, p, raw, out.token, r.num_logprobs, out);
  if (px::ThreadX() == 0) p.out[px::BlockX()] = out;
  px::GridDependencyRelease();
}

inline void LaunchSample(gpu::Stream& stream, const SampleParams& p, bool programmatic = false) {
  if (p.count == 0) return;
  gpu::Launch(stream,
              {.grid = {static_cast<unsigned>(p.count)},
               .block = {kRowThreads},
               .shared_bytes = sizeof(SamplerShared),
               .programmatic = programmatic},
              &SampleKernel, p);
}

}  // namespace baton::cuda
