// Where ranks come in: accepts connections, greets, and lets in who proves to know the secret and has an index of its
// own. Many guests at once, so that a silent one holds up nobody. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/limited_lines.h"
#include "common/trust/greeting.h"
#include "engine/parallel/rank_greeting.h"

namespace baton::engine {

/// A rank that was let in.
struct RankSeat {
  RankSocket socket;
  std::string host;   ///< from where it came
  uint16_t port = 0;  ///< where it listens
};

/// A rank that sat here and has ended is not: its place is free again.
bool IsThere(const RankSeat& seat);

class RankDoor {
 public:
  /// Guests that have not greeted, at once, in all and of one address.
  static constexpr size_t kMostGuests = 256, kMostGuestsOfHost = 64;

  /// `listener` does not block, and outlives the door.
  RankDoor(int listener, const RankGroup& group) : listener_(listener), group_(group) {}

  /// Until ranks [first, size) sit in `seats`. `alive` is asked every few ms: its error ends the wait. DeadlineExceeded
  /// names who is missing.
  absl::Status Admit(int first, std::vector<RankSeat>& seats, const std::function<absl::Status()>& alive);
  /// Connections that were turned away: strangers, and ranks of another group or of an index that is taken.
  int64_t refused() const { return refused_; }

 private:
  struct Guest {
    RankSocket socket;
    std::string host;
    std::string counted;  ///< whose guests count together with it
    TimePoint until;
    trust::Greeting greeting;
    std::shared_ptr<const tls::Context> tls;  ///< for what follows the greeting; null: plain text, or it follows
    RankHello hello;
    size_t hello_bytes = 0;
  };
  void AcceptAll();
  /// For one more; where all places are taken the oldest guest of the address that has most gives way, if that has
  /// more. ResourceExhausted: there is none.
  absl::Status MakeRoom(const std::string& counted);
  std::list<Guest>::iterator Leave(std::list<Guest>::iterator guest);
  /// True: it has said all. Error: it is turned away.
  static absl::StatusOr<bool> Hear(Guest& guest);
  /// Of a guest that has said all: whether it may sit, and where.
  absl::Status Judge(const RankHello& hello, int first, const std::vector<RankSeat>& seats) const;
  /// Takes guests that are done with out of `guests_`.
  void HearAll(int first, std::vector<RankSeat>& seats);
  void Refuse(const std::string& host, const absl::Status& why);

  const SteadyClock clock_;
  const int listener_;
  const RankGroup group_;
  std::list<Guest> guests_;
  std::map<std::string, size_t> guests_of_;  ///< by Guest::counted
  LimitedLines lines_{clock_};
  int64_t refused_ = 0;
};

}  // namespace baton::engine
