// The line of requests that wait for blocks and slots: the first to come is the first to be bound. A request that is
// refused for want of room comes back with another ticket, so a place belongs to a request and not to a ticket. Not
// thread-safe.
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

  /// A ticket of this request wants to be bound, and its KV comes from `process`. True: it is its turn.
  bool Ask(TicketId ticket, const std::string& request, const std::string& process, TimePoint now);
  /// It cannot be bound for a reason of its own: nobody waits for it. When it asks again, it is where it was.
  void StandAside(TicketId ticket, const std::string& request);
  /// It waits no more.
  void Leave(TicketId ticket, const std::string& request);
  /// The same, but the request will ask with another ticket.
  void LeaveForNow(TicketId ticket, const std::string& request, TimePoint now);
  void Tick(TimePoint now);
  /// Whether anybody is waited for whose KV comes from another process.
  bool OthersWait(const std::string& process) const;

 private:
  struct Place {
    uint64_t number = 0;
    TicketId ticket = 0;    ///< that asked last; 0: left for now
    TimePoint forget_at{};  ///< when left for now
  };
  struct Wait {
    TimePoint until;      ///< the ones behind it wait no longer
    std::string process;  ///< that asked last
  };
  void WaitFor(uint64_t number, const std::string& process, TimePoint now);
  void Pass(std::map<uint64_t, Wait>::iterator wait);
  void PassBy(uint64_t number);

  const Duration turn_, remember_;
  std::map<std::string, Place> places_;  ///< by request
  std::map<uint64_t, Wait> waited_for_;  ///< by number of a place
  std::map<std::string, size_t> waits_;  ///< by process: how many of waited_for_; never 0
  ExpiryLine<std::string> left_;
  uint64_t next_number_ = 1;
};

}  // namespace baton::decode
