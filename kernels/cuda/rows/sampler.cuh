// From logits to a token, as ops.h SampleRow says: edits, greedy or temperature, top-k, top-p, min-p, Gumbel draw from
// Philox; and log-probabilities of the raw logits. One block per row, deterministic: a row's token depends on it alone.
//
// Floor per row of V (f32): one read of 4V bytes for the greatest, one for the race: 1 MB for V = 128k, 0.24 µs at
// 4.3 TB/s. One block has one SM's share of L2 (64 bytes a clock: 4.6 µs a pass at 1.75 GHz) and of the arithmetic (128
// lanes: ~12 instructions a token and pass are 6.9 µs). Passes, and the sum for one row of 128k:
//   greedy 1, without filters 2: 7 and 14 µs.
//   top-k ≤ 384, with top-p or without: 2, the greatest and the shortlist; the shortlist's bound sorts 512 entries and
//     itself another 64 … 1,024: 45 … 55 steps of ~50 clocks, 15 … 20 of them through shared memory, 1.5 µs each; sums,
//     race and edits 2 µs. 14 + 3 + 2 ≈ 20 µs of the 60 that are allowed.
//   top-p alone: as before, the second pass adds up all weights (16 lanes for ex2 and for the conversion: + 9 µs).
//   top-k > 384, or a nucleus that the shortlist does not hold: + 1 for the weight of all, 4 to select, 3 more for ties
//     that are cut, 1 for the race: ~70 … 100 µs.
// Log-probabilities: + 4 passes; of them one collects the top ones.
#pragma once

#include "kernels/cuda/rows/shortlist.cuh"
#include "kernels/logprob_limit.h"
#include "kernels/philox.h"
#include "kernels/runtime/runtime.h"

namespace baton::cuda {

constexpr int kMaxTopLogprobs = kernels::kMostCudaLogprobs;

/// Of `SampleParams::entries`.
struct ListSlice {
  int32_t begin, end;
};
struct ListEntry {
  int32_t token;
  float value;
};
/// How one row becomes a token. Tokens within a list are distinct and within the vocabulary (the host sees to it).
struct SampleRowParams {
  uint64_t seed, position;
  uint32_t sequence_index;
  float temperature;  ///< ≤ 0: greedy
  int32_t top_k;      ///< 0: all
  float top_p, min_p;
  float repetition_penalty, presence_penalty, frequency_penalty;
  int32_t unread_row;    ///< ≥ 0: the token of that row of the step, which the lists below lack, was output last
  ListSlice bias;        ///< values are added; −∞ bans
  ListSlice seen;        ///< get the repetition penalty
  ListSlice counted;     ///< all of them seen, with how often: frequency · count + presence is subtracted
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
  const ListEntry* entries;
  const uint32_t* masks;
  SampleRowOutput* out;  ///< [rows]
  int32_t* top_tokens;   ///< [rows, kMaxTopLogprobs] best first
  float* top_logprobs;
  int32_t* drawn;  ///< [rows] the tokens once more, for the next step's embedding; or null
  int count, vocab;
  const int32_t* step_tokens = nullptr;  ///< of the step, by its rows: for `unread_row`
};

struct SamplerShared {
  LogitRowShared row;
  ShortlistShared list;
  int32_t met[2];  ///< whether the unread token is in `seen`, and in `counted`
};

PX_DEVICE void Repeated(const SampleRowParams& r, float* x) {
  const float v = px::Load(x);
  px::Store(x, v > 0 ? v / r.repetition_penalty : px::Mul(v, r.repetition_penalty));
}
PX_DEVICE void Counted(const SampleRowParams& r, float* x, float count) {
  px::Store(x, px::Load(x) - px::Add(px::Mul(r.frequency_penalty, count), r.presence_penalty));
}
/// The unread token is edited with its entry, or, when a list has none, by the first thread behind the list.
PX_DEVICE void EditLogits(SamplerShared& smem, const SampleParams& p, const SampleRowParams& r, float* logits) {
  const int t = px::ThreadX(), unread = r.unread_row >= 0 ? px::Load(p.step_tokens + r.unread_row) : -1;
  if (t == 0) {
    px::StoreShared(&smem.met[0], 0);
    px::StoreShared(&smem.met[1], 0);
  }
  for (int i = r.bias.begin + t; i < r.bias.end; i += kRowThreads) {
    float* x = logits + px::Load(&p.entries[i].token);
    px::Store(x, px::Add(px::Load(x), px::Load(&p.entries[i].value)));
  }
  px::SyncThreads();
  for (int i = r.seen.begin + t; i < r.seen.end; i += kRowThreads) {
    const int token = px::Load(&p.entries[i].token);
    Repeated(r, logits + token);
    if (token == unread) px::StoreShared(&smem.met[0], 1);
  }
  px::SyncThreads();
  const bool repeats = unread >= 0 && r.repetition_penalty != 1.0f;
  if (t == 0 && repeats && px::LoadShared(&smem.met[0]) == 0) Repeated(r, logits + unread);
  for (int i = r.counted.begin + t; i < r.counted.end; i += kRowThreads) {
    const int token = px::Load(&p.entries[i].token);
    Counted(r, logits + token, px::Load(&p.entries[i].value) + (token == unread ? 1.0f : 0.0f));
    if (token == unread) px::StoreShared(&smem.met[1], 1);
  }
  px::SyncThreads();
  if (unread < 0) return;
  if (t == 0 && px::LoadShared(&smem.met[1]) == 0) Counted(r, logits + unread, 1.0f);
  px::SyncThreads();
}

/// Probability up to the common factor, 1 for the best, in units of 2⁻⁴⁰: sums of them are exact. A token whose weight
/// is 0 is behind the best by more than all luck there is (RunRace): nothing is lost when a filter drops it.
struct TokenWeight {
  float best, scale;  ///< scale = log2(e) / temperature
  PX_DEVICE float Share(float logit) const { return px::Exp2(px::Mul(logit - best, scale)); }
  PX_DEVICE uint64_t operator()(float logit) const { return static_cast<uint64_t>(Share(logit) * 1099511627776.0f); }
  /// Grows with the logit, evenly from where weights begin to the best: logits that differ seldom share one.
  PX_DEVICE uint32_t Digit(float logit) const {
    const float down = px::Mul(px::Mul(best - logit, scale), kDigitBins / 40.0f);
    return down < kDigitBins - 1 ? kDigitBins - 1 - static_cast<uint32_t>(down) : 0;
  }
};
PX_DEVICE uint64_t PartOf(uint64_t total, float top_p) {
  const uint64_t target = static_cast<uint64_t>(static_cast<double>(top_p) * static_cast<double>(total));
  return target < 1 ? 1 : target;
}

/// The first tokens of `within`, best first, that weigh `target` together, in weights of weigh(logit); tokens that
/// weigh nothing are left out. `target` ≤ the weight of all.
template <typename Weigh>
PX_DEVICE Cut CutByWeight(LogitRowShared& smem, const LogitRow& row, const TokenWeight& weight, const Cut& within,
                          uint64_t target, Weigh&& weigh) {
  // The digits of floats near each other are nearly all the same, and adding to one bin is done one at a time.
  auto each_kept = [&](auto&& visit) {
    row.ForEach<2>([&](int token, float x) {
      const uint64_t w = weigh(x);
      if (w != 0 && within.Keeps(OrderedKey(x), token)) visit(x, w);
    });
  };
  const DigitFound near =
      FindDigit(smem, target, 0, [&](auto&& add) { each_kept([&](float x, uint64_t w) { add(weight.Digit(x), w); }); });
  const Selected at = SelectByWeight(smem, target, near.above, [&](auto&& add) {
    each_kept([&](float x, uint64_t w) {
      if (weight.Digit(x) == near.digit) add(OrderedKey(x), w);
    });
  });
  return CutTies(smem, row, within, at, target, weigh(LogitOfKey(at.key)));
}

/// What top-k and top-p leave.
PX_DEVICE Cut FilterTokens(LogitRowShared& smem, const LogitRow& row, const SampleRowParams& r,
                           const TokenWeight& weight) {
  Cut cut;
  if (r.top_k > 0 && r.top_k < row.n) {
    uint64_t count = 0;
    row.ForEach<4>([&](int, float x) { count += weight(x) != 0; });
    const uint64_t wanted = static_cast<uint64_t>(r.top_k);
    if (BlockAdd64(smem, count) > wanted)
      cut = CutByWeight(smem, row, weight, cut, wanted, [&](float x) -> uint64_t { return weight(x) != 0; });
  }
  if (!(r.top_p < 1.0f)) return cut;
  uint64_t total = 0;
  row.ForEach<4>([&](int token, float x) {
    if (cut.Keeps(OrderedKey(x), token)) total += weight(x);
  });
  return CutByWeight(smem, row, weight, cut, PartOf(BlockAdd64(smem, total), r.top_p), weight);
}

/// How many of the list's first `count` entries, sorted, top-p keeps; `total` is the weight of all tokens, 0: of those.
/// 0 when they weigh too little together. By one warp; the result is in list.kept.
PX_DEVICE void KeepNucleus(ShortlistShared& list, int count, uint64_t total, float top_p, const TokenWeight& weight) {
  const int each = (count + 31) / 32, first = px::Lane() * each, last = first + each < count ? first + each : count;
  uint64_t mine = 0;
  for (int i = first; i < last; ++i) mine += weight(LogitOf(px::LoadShared(&list.entries[i])));
  uint64_t before = 0, all = 0;  // weight of the lanes before this one, and of all
  PX_UNROLL
  for (int l = 0; l < 32; ++l) {
    const uint64_t other = static_cast<uint64_t>(px::Shuffle(static_cast<uint32_t>(mine >> 32), l)) << 32 |
                           px::Shuffle(static_cast<uint32_t>(mine), l);
    all += other;
    if (l < px::Lane()) before += other;
  }
  const uint64_t target = PartOf(total != 0 ? total : all, top_p);
  if (px::Lane() == 0 && all < target) px::StoreShared(&list.kept, 0);
  if (before < target && before + mine >= target) {  // one lane
    int i = first;
    for (; i + 1 < last; ++i) {
      before += weight(LogitOf(px::LoadShared(&list.entries[i])));
      if (before >= target) break;
    }
    px::StoreShared(&list.kept, i + 1);
  }
}

/// What top-k and top-p leave, as the first entries of the list: how many, or 0: the list cannot say it. A row without
/// filters has no list.
PX_DEVICE int ListTokens(SamplerShared& smem, const LogitRow& row, const SampleRowParams& r,
                         const TokenWeight& weight) {
  const bool top_k = r.top_k > 0 && r.top_k < row.n, top_p = r.top_p < 1.0f;
  if ((!top_k && !top_p) || (top_k && r.top_k > kMostBounded)) return 0;
  const uint64_t bound = KthBest(smem.list, top_k ? r.top_k : kMostBounded);
  uint64_t total = 0;
  int count;
  if (top_k) {
    count = Collect(smem.list, row, [&](uint64_t entry, float x) { return entry >= bound && weight(x) != 0; });
  } else {
    count = Collect(smem.list, row, [&](uint64_t entry, float x) {
      const uint64_t w = weight(x);
      total += w;
      return entry >= bound && w != 0;
    });
    total = BlockAdd64(smem.row, total);
  }
  if (count > kShortlist) return 0;
  SortList(smem.list, count);
  if (top_k && r.top_k < count) count = r.top_k;
  if (!top_p) return count;
  if (px::WarpIndex() == 0) KeepNucleus(smem.list, count, total, r.top_p, weight);
  px::SyncThreads();
  return px::LoadShared(&smem.list.kept);
}

/// Standard Gumbel: −log(−log u), u from 32 bits.
PX_DEVICE double GumbelOf(uint32_t word) { return -px::Log64(-px::Log64((static_cast<double>(word) + 0.5) * 0x1p-32)); }

/// The race: the token with the greatest logit / temperature + Gumbel wins; ties: the lower id.
class Race {
 public:
  /// The favourite starts: nearly all others are then out before a random word is made.
  PX_DEVICE Race(const SampleRowParams& r, const BestToken& best, const TokenWeight& weight)
      : r_(r),
        weight_(weight),
        best_(best.logit),
        inverse_(1.0 / static_cast<double>(r.temperature)),
        score_(Luck(best.token)),
        winner_(best.token) {}
  PX_DEVICE void Enter(int token, float x) {
    const double head_start = (static_cast<double>(x) - static_cast<double>(best_)) * inverse_;
    if (!(head_start + kMostLuck >= score_) || (r_.min_p > 0.0f && weight_.Share(x) < r_.min_p)) return;
    const double mine = head_start + Luck(token);
    if (mine > score_ || (mine == score_ && token < winner_)) {
      score_ = mine;
      winner_ = token;
    }
  }
  /// The winner of the block's threads.
  PX_DEVICE int Winner(LogitRowShared& smem) const {
    // Doubles order as their bits do when the sign is folded in.
    const uint64_t bits = px::BitCast<uint64_t>(score_ == 0.0 ? 0.0 : score_);
    const uint64_t key = bits >> 63 != 0 ? ~bits : bits | 1ull << 63;
    const uint64_t top = BlockMax64(smem, key);
    return static_cast<int>(
        ~static_cast<uint32_t>(BlockMax64(smem, key == top ? ~static_cast<uint32_t>(winner_) : 0u)));
  }

 private:
  static constexpr double kMostLuck = 22.9;  ///< −log(−log(1 − 2⁻³³)), rounded up; the least is −3.13
  PX_DEVICE double Luck(int token) const {
    return GumbelOf(kernels::PhiloxWordOf(r_.seed, r_.sequence_index, r_.position, static_cast<uint32_t>(token)));
  }

  const SampleRowParams& r_;
  const TokenWeight& weight_;
  float best_;
  double inverse_, score_;
  int winner_;
};

/// The token that is drawn.
PX_DEVICE int DrawToken(SamplerShared& smem, const LogitRow& row, const SampleRowParams& r, const BestToken& best) {
  const TokenWeight weight{best.logit, 1.4426950408889634f / r.temperature};
  const int listed = ListTokens(smem, row, r, weight);
  Race race(r, best, weight);
  if (listed > 0) {
    for (int i = px::ThreadX(); i < listed; i += kRowThreads) {
      const uint64_t entry = px::LoadShared(&smem.list.entries[i]);
      race.Enter(TokenOf(entry), LogitOf(entry));
    }
  } else {
    const Cut cut = FilterTokens(smem.row, row, r, weight);
    row.ForEach([&](int token, float x) {
      if (cut.Keeps(OrderedKey(x), token)) race.Enter(token, x);
    });
  }
  return race.Winner(smem.row);
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
  static_assert(kMaxTopLogprobs <= kMostBounded && kMaxTopLogprobs <= kRowThreads);
  ListBest(smem.row, smem.list, raw, k);
  if (const int i = px::ThreadX(); i < k) {
    const uint64_t entry = px::LoadShared(&smem.list.entries[i]);
    px::Store(tokens + i, TokenOf(entry));
    px::Store(logprobs + i, static_cast<float>(static_cast<double>(LogitOf(entry)) - log_sum));
  }
}

/// Log-probability and rank of `token`, and the k best.
PX_DEVICE void WriteLogprobs(SamplerShared& smem, const SampleParams& p, const LogitRow& raw, int token, int k,
                             SampleRowOutput& out) {
  const BestToken best = FindBest(smem.row, raw, smem.list.entries);
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
    EditLogits(smem, p, r, logits);
    const LogitRow row{logits, r.mask_offset >= 0 ? p.masks + r.mask_offset : nullptr, p.vocab};
    const BestToken best = FindBest(smem.row, row, smem.list.entries);
    out.token = best.token;
    const bool finite = best.logit - best.logit == 0.0f;
    if (r.temperature > 0.0f && finite) out.token = DrawToken(smem, row, r, best);
  }
  if (r.num_logprobs >= 0) WriteLogprobs(smem, p, raw, out.token, r.num_logprobs, out);
  if (px::ThreadX() == 0) {
    p.out[px::BlockX()] = out;
    if (p.drawn != nullptr) px::Store(p.drawn + px::BlockX(), out.token);
  }
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
