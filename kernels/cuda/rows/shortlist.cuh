// The best tokens of a row, in order, in shared memory: what most draws choose among. The row is read once for it.
//
// The k-th best of the 512 threads' bests bounds the row's k-th best from below, so that the tokens at the bound or
// above it hold the row's k best: 53 of them for k = 50, 710 for k = 384, when logits lie as chance has it. They are
// collected and sorted; whoever gets too many of them for the list selects by digits instead (logit_row.cuh), with the
// same result.
#pragma once

#include "kernels/cuda/rows/logit_row.cuh"

namespace baton::cuda {

constexpr int kShortlist = 2048;
constexpr int kMostBounded = kRowThreads * 3 / 4;  ///< the k of a bound: with more, chance overfills the list

struct ShortlistShared {
  uint64_t entries[kShortlist];  ///< of EntryOf
  int32_t count;
  int32_t kept;
};

/// One step of a bitonic sort within a warp: what lane i % 32 keeps of its entry i and that of i ^ step, step ≤ 16.
PX_DEVICE uint64_t Exchanged(uint64_t mine, int i, int run, int step) {
  const uint64_t other = ShuffleXor64(mine, step);
  const bool takes_greater = ((i & run) == 0) == ((i & step) == 0);
  return (mine > other) == takes_greater ? mine : other;
}

/// entries[0 … size), size a power of two from 32 on, the greatest first. Call after a barrier; ends in one.
PX_DEVICE void SortEntries(uint64_t* entries, int size) {
  for (int run = 32; run <= size; run *= 2) {
    for (int step = run / 2; step >= 32; step /= 2) {
      for (int i = px::ThreadX(); i < size / 2; i += kRowThreads) {
        const int low = 2 * i - (i & (step - 1)), high = low + step;
        const uint64_t a = px::LoadShared(entries + low), b = px::LoadShared(entries + high);
        const bool stay = (a > b) == ((low & run) == 0);
        px::StoreShared(entries + low, stay ? a : b);
        px::StoreShared(entries + high, stay ? b : a);
      }
      px::SyncThreads();
    }
    for (int i = px::ThreadX(); i < size; i += kRowThreads) {
      uint64_t mine = px::LoadShared(entries + i);
      for (int small = 2; run == 32 && small < 32; small *= 2)
        for (int step = small / 2; step > 0; step /= 2) mine = Exchanged(mine, i, small, step);
      for (int step = 16; step > 0; step /= 2) mine = Exchanged(mine, i, run, step);
      px::StoreShared(entries + i, mine);
    }
    px::SyncThreads();
  }
}

/// The k-th best of the threads' bests, which FindBest has left in the list; k ≤ kRowThreads. In every thread; read it
/// before the list's next barrier.
PX_DEVICE uint64_t KthBest(ShortlistShared& list, int k) {
  SortEntries(list.entries, kRowThreads);
  return px::LoadShared(&list.entries[k - 1]);
}

/// Entries for which keeps(entry, logit) is true, in no order: how many there are, more than kShortlist or not. Every
/// entry is asked once.
template <typename Keeps>
PX_DEVICE int Collect(ShortlistShared& list, const LogitRow& row, Keeps&& keeps) {
  if (px::ThreadX() == 0) px::StoreShared(&list.count, 0);
  px::SyncThreads();
  row.ForEach<4>([&](int token, float x) {
    const uint64_t entry = EntryOf(x, token);
    if (!keeps(entry, x)) return;
    const int at = px::AtomicAdd(&list.count, 1);
    if (at < kShortlist) px::StoreShared(&list.entries[at], entry);
  });
  px::SyncThreads();
  return px::LoadShared(&list.count);
}

/// The `count` entries that were collected, best first.
PX_DEVICE void SortList(ShortlistShared& list, int count) {
  int size = 32;
  while (size < count) size *= 2;
  for (int i = count + px::ThreadX(); i < size; i += kRowThreads) px::StoreShared(&list.entries[i], 0);
  px::SyncThreads();
  SortEntries(list.entries, size);
}

/// The k best tokens of the row, sorted; after FindBest. 1 ≤ k ≤ min(kMostBounded, row.n).
PX_DEVICE void ListBest(LogitRowShared& smem, ShortlistShared& list, const LogitRow& row, int k) {
  const uint64_t bound = KthBest(list, k);
  int count = Collect(list, row, [&](uint64_t entry, float) { return entry >= bound; });
  if (count < k || count > kShortlist) {  // fewer: some are −∞
    const Cut cut = CutByRank(smem, row, k);
    count = Collect(list, row, [&](uint64_t entry, float) {
      return cut.Keeps(static_cast<uint32_t>(entry >> 32), TokenOf(entry));
    });
  }
  SortList(list, count);
}

}  // namespace baton::cuda
