// LegEvents: the one who gave the orders of a leg hears what becomes of it.
#pragma once

#include "router/event_loop.h"
#include "router/fleet/leg_order.h"

namespace baton::router {

/// Every method is called on `loop()`'s thread.
class LegEvents {
 public:
  virtual ~LegEvents() = default;
  virtual EventLoop& loop() = 0;
  virtual void OnNews(RelayNews&& news) = 0;
  /// To a ReserveLeg or PrefillLeg with this key.
  virtual void OnAnswer(const LegKey& key, LegAnswer answer) = 0;
  /// The worker will say nothing more about the tickets and attached legs it was given. (An open PrefillLeg is answered
  /// with Unavailable.)
  virtual void OnWorkerLost(WorkerId worker, const absl::Status& why) = 0;
};

}  // namespace baton::router
