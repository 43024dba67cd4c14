// One block reads one row of logits: the row with its mask, block-wide reductions, and selection by rank or by mass.
//
// All sums that decide anything are integers, so that no order of threads can change them.
#pragma once

#include "kernels/cuda/warp.cuh"

namespace baton::cuda {

constexpr int kRowThreads = 512;
constexpr int kRowWarps = kRowThreads / 32;
constexpr int kDigitBits = 11, kDigitBins = 1 << kDigitBits;

struct LogitRowShared {
  uint32_t low[kDigitBins + 32], high[kDigitBins + 32];  ///< weight of digit d at BinOf(d), a word each
  uint64_t best[kRowWarps];
  float partial[kRowWarps];
  uint32_t digit;
  uint64_t above, at;
};

/// A row as the sampler sees it; forbidden tokens and NaN read as −∞.
struct LogitRow {
  const float* logits;   ///< [n]
  const uint32_t* mask;  ///< [ceil(n / 32)] bit = allowed, or null
  int n;

  PX_DEVICE bool Aligned() const { return (reinterpret_cast<uintptr_t>(logits) & 15u) == 0; }
  /// What nobody may draw of tokens i … i + 3 (i a multiple of 4, below n) becomes −∞.
  PX_DEVICE void Hide(int i, float (&four)[4]) const {
    const uint32_t allowed = mask != nullptr ? px::Load(mask + i / 32) >> (i & 31) : ~0u;
    PX_UNROLL
    for (int j = 0; j < 4; ++j)
      if ((allowed >> j & 1) == 0 || !(four[j] == four[j])) four[j] = -__builtin_huge_valf();
  }
  /// Logits of tokens i … i + 3, −∞ beyond n.
  PX_DEVICE void Four(int i, float (&out)[4]) const {
    if (i + 4 <= n && Aligned()) {
      LoadVector(logits + i, out);
    } else {
      PX_UNROLL
      for (int j = 0; j < 4; ++j) out[j] = i + j < n ? px::Load(logits + i + j) : -__builtin_huge_valf();
    }
    Hide(i, out);
  }
  /// visit(token, logit) for all tokens of this thread, in ascending order. kAhead · 4 of them are read before the
  /// first is visited: one block has an SM's latency to hide.
  template <int kAhead = 1, typename Visit>
  PX_DEVICE void ForEach(Visit&& visit) const {
    constexpr int kStep = kRowThreads * 4;
    int i = px::ThreadX() * 4;
    if (kAhead > 1 && Aligned()) {
      for (; i + (kAhead - 1) * kStep + 4 <= n; i += kAhead * kStep) {
        float ahead[kAhead][4];
        PX_UNROLL
        for (int a = 0; a < kAhead; ++a) LoadVector(logits + i + a * kStep, ahead[a]);
        PX_UNROLL
        for (int a = 0; a < kAhead; ++a) {
          Hide(i + a * kStep, ahead[a]);
          PX_UNROLL
          for (int j = 0; j < 4; ++j) visit(i + a * kStep + j, ahead[a][j]);
        }
      }
    }
    for (; i < n; i += kStep) {
      float four[4];
      Four(i, four);
      PX_UNROLL
      for (int j = 0; j < 4; ++j)
        if (i + j < n) visit(i + j, four[j]);
    }
  }
};

/// Orders as the logit does; −∞ maps to 0x007FFFFF.
PX_DEVICE uint32_t OrderedKey(float x) {
  const uint32_t u = px::BitCast<uint32_t>(x == 0.0f ? 0.0f : x);  // −0 ties with 0
  return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}
PX_DEVICE float LogitOfKey(uint32_t key) {
  return px::BitCast<float>((key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key);
}

/// Greatest value of the block, in every thread.
PX_DEVICE uint64_t BlockMax64(LogitRowShared& smem, uint64_t v) {
  PX_UNROLL
  for (int m = 16; m > 0; m /= 2) {
    const uint64_t other = ShuffleXor64(v, m);
    v = other > v ? other : v;
  }
  px::SyncThreads();  // the last call's values have been read
  if (px::Lane() == 0) px::StoreShared(&smem.best[px::WarpIndex()], v);
  px::SyncThreads();
  PX_UNROLL
  for (int w = 0; w < kRowWarps; ++w) {
    const uint64_t other = px::LoadShared(&smem.best[w]);
    v = other > v ? other : v;
  }
  return v;
}

/// A token and its logit in one number: greater is better, of equal logits the lower id.
PX_DEVICE uint64_t EntryOf(float x, int token) {
  return static_cast<uint64_t>(OrderedKey(x)) << 32 | ~static_cast<uint32_t>(token);
}
PX_DEVICE float LogitOf(uint64_t entry) { return LogitOfKey(static_cast<uint32_t>(entry >> 32)); }
PX_DEVICE int TokenOf(uint64_t entry) { return static_cast<int>(~static_cast<uint32_t>(entry)); }

struct BestToken {
  float logit;
  int token;
};
/// The greatest logit; ties: the lower id. Token 0 when nothing is allowed. `bests` [kRowThreads], in shared memory,
/// gets the best entry of each thread's tokens; that of token 0 at −∞ when none of them is allowed.
PX_DEVICE BestToken FindBest(LogitRowShared& smem, const LogitRow& row, uint64_t* bests) {
  float logit = -__builtin_huge_valf();
  int token = 0;
  row.ForEach<4>([&](int other, float x) {
    token = x > logit ? other : token;
    logit = x > logit ? x : logit;
  });
  const uint64_t mine = EntryOf(logit, token);
  px::StoreShared(&bests[px::ThreadX()], mine);
  const uint64_t best = BlockMax64(smem, mine);
  return {LogitOf(best), TokenOf(best)};
}

/// Sum of integers over the block, in every thread.
PX_DEVICE uint64_t BlockAdd64(LogitRowShared& smem, uint64_t v) {
  v = WarpSum64(v);
  px::SyncThreads();
  if (px::Lane() == 0) px::StoreShared(&smem.best[px::WarpIndex()], v);
  px::SyncThreads();
  uint64_t sum = 0;
  PX_UNROLL
  for (int w = 0; w < kRowWarps; ++w) sum += px::LoadShared(&smem.best[w]);
  return sum;
}

/// Bins are added up by one warp, a run of them per lane: the runs begin in different banks.
PX_DEVICE int BinOf(uint32_t digit) { return static_cast<int>(digit + digit / (kDigitBins / 32)); }
/// smem's bins += weight, exact in whatever order: a sum of 64 bits by two additions of 32, the second one with the
/// carry of the first. Shared memory adds 32 bits at once; for 64 it takes a loop that tries until nobody interferes.
PX_DEVICE void AddToBin(LogitRowShared& smem, uint32_t digit, uint64_t weight) {
  const int bin = BinOf(digit);
  const uint32_t low = static_cast<uint32_t>(weight), before = px::AtomicAdd(&smem.low[bin], low);
  const uint32_t high = static_cast<uint32_t>(weight >> 32) + (before + low < before ? 1 : 0);
  if (high != 0) px::AtomicAdd(&smem.high[bin], high);
}
PX_DEVICE uint64_t WeightOfBin(const LogitRowShared& smem, uint32_t digit) {
  const int bin = BinOf(digit);
  return static_cast<uint64_t>(px::LoadShared(&smem.high[bin])) << 32 | px::LoadShared(&smem.low[bin]);
}

struct DigitFound {
  uint32_t digit;  ///< the greatest so that the entries with it or a greater one weigh `target` or more
  uint64_t above;  ///< what those with a greater one weigh, and `above` before
  uint64_t at;     ///< what those with it weigh
};
/// entries(add) calls add(digit, weight) for this thread's entries; above < target ≤ above + the weight of all.
template <typename Entries>
PX_DEVICE DigitFound FindDigit(LogitRowShared& smem, uint64_t target, uint64_t above, Entries&& entries) {
  // The bins are free: whoever read them last did so before the barrier that ended their round.
  for (int i = px::ThreadX(); i < kDigitBins + 32; i += kRowThreads) {
    px::StoreShared(&smem.low[i], 0);
    px::StoreShared(&smem.high[i], 0);
  }
  px::SyncThreads();
  entries([&](uint32_t digit, uint64_t weight) { AddToBin(smem, digit, weight); });
  px::SyncThreads();
  if (px::WarpIndex() == 0) {
    constexpr int kPerLane = kDigitBins / 32;
    const uint32_t first = static_cast<uint32_t>(px::Lane()) * kPerLane;  // lane 31 holds the greatest digits
    uint64_t mine = 0;
    for (uint32_t i = 0; i < kPerLane; ++i) mine += WeightOfBin(smem, first + i);
    uint64_t before = above;  // weight of the lanes above this one
    PX_UNROLL
    for (int l = 31; l > 0; --l) {
      const uint64_t other = static_cast<uint64_t>(px::Shuffle(static_cast<uint32_t>(mine >> 32), l)) << 32 |
                             px::Shuffle(static_cast<uint32_t>(mine), l);
      if (l > px::Lane()) before += other;
    }
    if (before < target && before + mine >= target) {  // one lane
      uint32_t i = kPerLane - 1;
      for (; i > 0 && before + WeightOfBin(smem, first + i) < target; --i) before += WeightOfBin(smem, first + i);
      px::StoreShared(&smem.digit, first + i);
      px::StoreShared(&smem.above, before);
      px::StoreShared(&smem.at, WeightOfBin(smem, first + i));
    }
  }
  px::SyncThreads();
  return {px::LoadShared(&smem.digit), px::LoadShared(&smem.above), px::LoadShared(&smem.at)};
}

struct Selected {
  uint32_t key;    ///< the greatest key so that the entries with it or above weigh `target` or more
  uint64_t above;  ///< what the entries above it weigh, and `above` before
  uint64_t at;     ///< what the entries with it weigh
};
/// entries(add) calls add(key, weight) for this thread's entries; above < target ≤ above + the weight of all. Digits:
/// bits 21…31, 10…20, 0…9 (the last one is narrower).
template <typename Entries>
PX_DEVICE Selected SelectByWeight(LogitRowShared& smem, uint64_t target, uint64_t above, Entries&& entries) {
  uint32_t prefix = 0;
  for (int shift = 32 - kDigitBits;; shift = shift > kDigitBits ? shift - kDigitBits : 0) {
    const int bits = shift == 0 ? 10 : kDigitBits;
    const uint32_t known = shift + bits == 32 ? 0 : ~0u << (shift + bits);
    const DigitFound found = FindDigit(smem, target, above, [&](auto&& add) {
      entries([&](uint32_t key, uint64_t weight) {
        if ((key & known) == prefix) add(key >> shift & ((1u << bits) - 1), weight);
      });
    });
    prefix |= found.digit << shift;
    above = found.above;
    if (shift == 0) return {prefix, above, found.at};
  }
}

/// A set of tokens: those with a greater key than `key`, and those with this key up to id `last_tie`.
struct Cut {
  uint32_t key = 0x00800000u;  ///< above −∞: everything that is allowed
  int last_tie = 0x7FFFFFFF;
  PX_DEVICE bool Keeps(uint32_t k, int token) const { return k > key || (k == key && token <= last_tie); }
};

/// The first tokens of `within`, best first, that weigh `target` or more together: `at` is where the sum of their
/// weights comes to it, and each token there weighs `each`.
PX_DEVICE Cut CutTies(LogitRowShared& smem, const LogitRow& row, const Cut& within, const Selected& at, uint64_t target,
                      uint64_t each) {
  const uint64_t count = (target - at.above + each - 1) / each;
  if (count * each >= at.at) return {at.key, at.key == within.key ? within.last_tie : 0x7FFFFFFF};
  const Selected id = SelectByWeight(smem, count, 0, [&](auto&& add) {
    row.ForEach([&](int token, float x) {
      const uint32_t key = OrderedKey(x);
      if (key == at.key && within.Keeps(key, token)) add(~static_cast<uint32_t>(token), 1);
    });
  });
  return {at.key, static_cast<int>(~id.key)};
}

/// The `count` best tokens, 1 ≤ count ≤ row.n; forbidden ones are the last.
PX_DEVICE Cut CutByRank(LogitRowShared& smem, const LogitRow& row, int count) {
  const uint64_t target = static_cast<uint64_t>(count);
  const Selected at =
      SelectByWeight(smem, target, 0, [&](auto&& add) { row.ForEach([&](int, float x) { add(OrderedKey(x), 1); }); });
  return CutTies(smem, row, Cut{0, 0x7FFFFFFF}, at, target, 1);
}

}  // namespace baton::cuda
