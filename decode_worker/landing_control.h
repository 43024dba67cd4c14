// The orders of the ticket desk to the transfer thread. Called on that thread only; the desk posts.
#pragma once

#include <memory>
#include <vector>

#include "decode_worker/handoff/events.h"
#include "kvtransfer/lane_messages.h"
#include "kvtransfer/slot_passes.h"
#include "kvtransfer/transfer_plan.h"

namespace baton::decode_worker {

struct ScatterOrder {
  LaneKey lane;
  SlotTurn slot;
  std::vector<uint32_t> wanted;
  std::shared_ptr<const TransferPlan> plan;
  std::shared_ptr<const KvBlockTables> tables;
  bool tell = false;      ///< the writer, where all is right, that the slot is free, as soon as it is
  bool may_wait = false;  ///< as in the ScatterSlot
};

class LandingControl {
 public:
  virtual ~LandingControl() = default;
  /// The kind of fence that ends this writer's access to our slots. Any thread.
  virtual FenceKind FenceOf(WriterId writer) const = 0;
  /// The number of the landing memory that this writer writes. Any thread.
  virtual uint32_t MemoryOf(WriterId writer) const = 0;
  virtual void Send(WriterId writer, const ToPrefill& message) = 0;
  /// Answered by OnScattered, always.
  virtual void Place(const ScatterOrder& order) = 0;
  /// Answered by OnWriterFenced once the writer can write no more.
  virtual void Cut(WriterId writer) = 0;
  /// A writer that was lost holds nothing: its fence is needed no more, and may stay unanswered.
  virtual void Release(WriterId writer) = 0;
  /// Writers that come from now on get another memory, or another transport.
  virtual void Replace(uint32_t memory) = 0;
  /// A replaced memory that nobody uses any more: it goes, with what connections it has left.
  virtual void Drop(uint32_t memory) = 0;
};

}  // namespace baton::decode_worker
