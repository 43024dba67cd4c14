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
  uint64_t bins[kDigitBins + 32];  ///< digit d at BinOf(d)
  uint64_t best[kRowWarps];
  float partial[kRowWarps];
  uint32_t digit;
  uint64_t above;
};

/// A row as the sampler sees it; forbidden tokens and NaN read as −∞.
struct LogitRow {
  const float* logits;   ///< [n]
  const uint32_t* mask;  ///< [ceil(n / 32)] bit = allowed, or null
  int n;

  /// Logits of tokens i … i + 3 (i a multiple of 4), −∞ beyond n.
  PX_DEVICE void Four(int i, float (&out)[4]) const {
    const bool whole = i + 4 <= n && (reinterpret_cast<uintptr_t>(logits) & 15u) == 0;
    if (whole) LoadVector(logits + i, out);
    const uint32_t allowed = mask != nullptr ? px::Load(mask + i / 32) >> (i & 31) : ~0u;
    PX_UNROLL
    for (int j = 0; j < 4; ++j) {
      if (!whole) out[j] = i + j < n ? px::Load(logits + i + j) : -__builtin_huge_valf();
      if ((allowed >> j & 1) == 0 || !(out[j] == out[j])) out[j] = -__builtin_huge_valf();
    }
  }
  /// visit(token, logit) for all tokens of this thread, in ascending order.
  template <typename Visit>
  PX_DEVICE void ForEach(Visit&& visit) const {
    for (int i = px::ThreadX() * 4; i < n; i += kRowThreads * 4) {
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

struct BestToken {
  float logit;
  int token;
};
/// The greatest logit; ties: the lower id. Token 0 when nothing is allowed.
PX_DEVICE BestToken FindBest(LogitRowShared& smem, const LogitRow& row) {
  uint64_t best = static_cast<uint64_t>(OrderedKey(-__builtin_huge_valf())) << 32 | 0xFFFFFFFFu;
  row.ForEach([&](int token, float x) {
    const uint64_t entry = static_cast<uint64_t>(OrderedKey(x)) << 32 | ~static_cast<uint32_t>(token);
    best = entry > best ? entry : best;
  });
  best = BlockMax64(smem, best);
  return {LogitOfKey(static_cast<uint32_t>(best >> 32)), static_cast<int>(~static_cast<uint32_t>(best))};
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

struct Selected {
  uint32_t key;    ///< the greatest key so that the entries with it or above weigh `target` or more
  uint64_t above;  ///< what the entries above it weigh
};
/// Bins are added up by one warp, a run of them per lane: the runs begin in different banks.
PX_DEVICE int BinOf(uint32_t digit) { return static_cast<int>(digit + digit / (kDigitBins / 32)); }
/// entries(add) calls add(key, weight) for this thread's entries; 1 ≤ target ≤ the weight of all. Radix descent.
template <typename Entries>
PX_DEVICE Selected SelectByWeight(LogitRowShared& smem, uint64_t target, Entries&& entries) {
  uint32_t prefix = 0;
  uint64_t above = 0;
  for (int shift = 32 - kDigitBits;; shift = shift > kDigitBits ? shift - kDigitBits : 0) {
    // Digits: bits 21…31, 10…20, 0…9 (the last one is narrower).
    const int bits = shift == 0 ? 10 : kDigitBits;
    const uint32_t known = shift + bits == 32 ? 0 : ~0u << (shift + bits);
    // The bins are free: whoever read them last did so before the barrier that ended their round.
    for (int i = px::ThreadX(); i < kDigitBins + 32; i += kRowThreads) px::StoreShared(&smem.bins[i], 0);
    px::SyncThreads();
    entries([&](uint32_t key, uint64_t weight) {
      if ((key & known) == prefix) px::AtomicAdd(&smem.bins[BinOf(key >> shift & ((1u << bits) - 1))], weight);
    });
    px::SyncThreads();
    if (px::WarpIndex() == 0) {
      constexpr int kPerLane = kDigitBins / 32;
      const int first = px::Lane() * kPerLane;  // lane 31 holds the greatest digits
      const uint64_t* bins = smem.bins + BinOf(static_cast<uint32_t>(first));
      uint64_t mine = 0;
      for (int i = 0; i < kPerLane; ++i) mine += px::LoadShared(&bins[i]);
      uint64_t before = above;  // weight of the lanes above this one
      PX_UNROLL
      for (int l = 31; l > 0; --l) {
        const uint64_t other = static_cast<uint64_t>(px::Shuffle(static_cast<uint32_t>(mine >> 32), l)) << 32 |
                               px::Shuffle(static_cast<uint32_t>(mine), l);
        if (l > px::Lane()) before += other;
      }
      if (before < target && before + mine >= target) {  // one lane
        int i = kPerLane - 1;
        for (; i > 0 && before + px::LoadShared(&bins[i]) < target; --i) before += px::LoadShared(&bins[i]);
        px::StoreShared(&smem.digit, static_cast<uint32_t>(first + i));
        px::StoreShared(&smem.above, before);
      }
    }
    px::SyncThreads();
    prefix |= px::LoadShared(&smem.digit) << shift;
    above = px::LoadShared(&smem.above);
    if (shift == 0) return {prefix, above};
  }
}

/// A set of tokens: those with a greater key than `key`, and those with this key up to id `last_tie`.
struct Cut {
  uint32_t key = 0x00800000u;  ///< above −∞: everything that is allowed
  int last_tie = 0x7FFFFFFF;
  PX_DEVICE bool Keeps(uint32_t k, int token) const { return k > key || (k == key && token <= last_tie); }
};

/// The `count` lowest ids among the tokens of `within` whose key is `key`.
PX_DEVICE Cut CutTies(LogitRowShared& smem, const LogitRow& row, const Cut& within, uint32_t key, uint64_t count) {
  const Selected id = SelectByWeight(smem, count, [&](auto&& add) {
    row.ForEach([&](int token, float x) {
      if (const uint32_t k = OrderedKey(x); k == key && within.Keeps(k, token)) add(~static_cast<uint32_t>(token), 1);
    });
  });
  return {key, static_cast<int>(~id.key)};
}

/// The `count` best tokens (1 ≤ count); fewer when fewer are allowed and `only_finite`.
PX_DEVICE Cut CutByRank(LogitRowShared& smem, const LogitRow& row, int count) {
  const Selected s = SelectByWeight(smem, static_cast<uint64_t>(count),
                                    [&](auto&& add) { row.ForEach([&](int, float x) { add(OrderedKey(x), 1); }); });
  return CutTies(smem, row, Cut{0, 0x7FFFFFFF}, s.key, static_cast<uint64_t>(count) - s.above);
}

}  // namespace baton::cuda
