// Slots' work as rank 0 of a worker gives it to another rank (kvtransfer/rank_line_codec.h). Each piece says all that
// the rank needs to know, and no more of the block tables than its segments lie in; a plan is told once, and then
// named.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kvtransfer/rank_figures.h"
#include "kvtransfer/rank_line_codec.h"
#include "kvtransfer/slot_passes.h"
#include "kvtransfer/transfer_plan.h"
#include "proto/ranks.pb.h"

namespace baton {

/// Segments of one slot, and the blocks that they lie in.
struct SlotWork {
  uint64_t peer = 0;
  LaneKey lane;
  SlotTurn slot;
  std::vector<uint32_t> segments;
  std::shared_ptr<const TransferPlan> plan;
  KvBlockTables tables;   ///< of `end`'s side; decoded: entries that the segments do not need are -1, or missing
  bool tell = false;      ///< where it goes well, the rank tells the peer itself
  bool may_wait = false;  ///< and tells rank 0 with its next news
};

/// The plans that another rank has, by what it was told: its PlanShelf keeps the same ones. One thread.
class ToldPlans {
 public:
  /// Whether the rank has the plan of this digest; from now on it does.
  bool Knows(uint64_t digest);

 private:
  std::deque<uint64_t> digests_;  ///< used last first
};

v1::TransferTerms EncodeTerms(const TransferPlan& plan);
SlotOrder EncodeSlotWork(const SlotWork& work, TransferEnd end);

/// The plans that a rank has made last: each slot names its own, and many slots the same. One thread.
class PlanShelf {
 public:
  /// InvalidArgument: no plan comes of it, or another one than rank 0's.
  absl::Status Add(const v1::TransferTerms& terms);
  /// Null: unknown.
  std::shared_ptr<const TransferPlan> Find(uint64_t digest);

 private:
  std::deque<std::shared_ptr<const TransferPlan>> plans_;  ///< used last first
};

/// InvalidArgument names what cannot be.
absl::StatusOr<SlotWork> DecodeSlotWork(const SlotOrder& in, PlanShelf& plans);

v1::RankNews::Figures EncodeFigures(const RankFigures& figures);
RankFigures DecodeFigures(const v1::RankNews::Figures& in);

v1::LaneKey EncodeLaneKey(const LaneKey& key);
LaneKey DecodeLaneKey(const v1::LaneKey& key);
v1::Error EncodeRankError(const absl::Status& status);
absl::Status DecodeRankError(const v1::Error& error);

}  // namespace baton
