// What rank 0 of a worker keeps of its other ranks, where each moves the KV that it keeps: which transfer plans they
// know, and what they have moved. Transfer thread of rank 0, but for what says otherwise.
#pragma once

#include <mutex>
#include <vector>

#include "kvtransfer/rank_codec.h"
#include "kvtransfer/rank_figures.h"
#include "worker/ranks/rank_lines.h"

namespace baton::worker {

class OtherRanks {
 public:
  /// `on_news` hears all but figures. `lines` must outlive it.
  OtherRanks(RankLines& lines, RankLines::OnNews on_news);
  ~OtherRanks() { lines_.Listen(nullptr); }
  OtherRanks(const OtherRanks&) = delete;
  OtherRanks& operator=(const OtherRanks&) = delete;

  void Send(int rank, const RankOrder& order) { lines_.Send(rank, order); }
  /// An order to gather or scatter a slot, behind the plan that it is of; `end`: the rank's.
  void SendWork(int rank, const SlotWork& work, TransferEnd end);
  /// At every TransferBeat: lets time go by at all of them, and asks what they have moved.
  void Tick();

  // ---- any thread
  /// Of the ranks from 1 on, as they said last.
  std::vector<RankFigures> figures() const;

 private:
  RankLines& lines_;
  std::vector<ToldPlans> told_;  ///< [rank]
  mutable std::mutex mutex_;     ///< guards figures_
  std::vector<RankFigures> figures_;
};

}  // namespace baton::worker
