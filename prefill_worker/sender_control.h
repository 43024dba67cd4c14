// The orders of the prefill desk to the transfer thread. Called on that thread only; the desk posts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kvtransfer/slot_passes.h"
#include "kvtransfer/transfer_plan.h"
#include "prefill_worker/handoff/events.h"

namespace baton::prefill_worker {

struct WriteOrder {
  prefill::PeerId peer = 0;
  LaneKey lane;
  SlotTurn slot;
  std::vector<uint32_t> segments;
  std::shared_ptr<const TransferPlan> plan;
  KvBlockTables tables;
  bool tell = false;      ///< the peer, that the slot is full, as soon as it is
  bool may_wait = false;  ///< as in the WriteSlot
};

class SenderControl {
 public:
  virtual ~SenderControl() = default;
  /// `peer` is the caller's number for it. When it cannot be had: PeerLost.
  virtual void Connect(prefill::PeerId peer, const std::string& address) = 0;
  virtual void Send(prefill::PeerId peer, const ToDecode& message) = 0;
  /// Answered by Written.
  virtual void Write(WriteOrder order) = 0;
  /// Answered by Drained, then Flushed; writes of the lane that have not begun are dropped.
  virtual void Flush(prefill::PeerId peer, const LaneKey& lane) = 0;
  /// Answered by PeerLost, unless the peer is gone already or only our exit would end what it may wait for.
  virtual void Cut(prefill::PeerId peer) = 0;
};

}  // namespace baton::prefill_worker
