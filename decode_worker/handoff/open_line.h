// Who waits for blocks and slots, first come first bound. A request that is refused for want of room comes back with
// another ticket: its place is the request's, not the ticket's. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/clock.h"
#include "common/expiry_line.h"
#include "kvtransfer/lane_messages.h"

namespace baton::decode {

class OpenLine {
 public:
  /// `turn`: nobody waits longer for one that does not ask; when it does again, it is where it was.
  /// `remember`: a place that was left for now is forgotten after that.
  OpenLine(Duration turn, Duration remember) : turn_(turn), remember_(remember) {}

  /// A ticket of this request wants to be bound. True: it is its turn.
  bool Ask(TicketId ticket, const std::string& request, TimePoint now);
  /// It waits no more.
  void Leave(TicketId ticket, const std::string& request);
  /// The same, but the request will ask with another ticket.
  void LeaveForNow(TicketId ticket, const std::string& request, TimePoint now);
  void Tick(TimePoint now);

 private:
  struct Place {
    uint64_t number = 0;
    TicketId ticket = 0;    ///< that asked last; 0: left for now
    TimePoint forget_at{};  ///< when left for now
  };
  const Duration turn_, remember_;
  std::map<std::string, Place> places_;       ///< by request
  std::map<uint64_t, TimePoint> waited_for_;  ///< number of a place -> until when the ones behind it wait
  ExpiryLine<std::string> left_;
  uint64_t next_number_ = 1;
};

}  // namespace baton::decode
