// LinkFlow: the life of the connection to one worker, as the router judges it. Sans-IO: events in, actions out; no
// clock, no thread, no socket. The shell (fleet/worker_link.h) carries the actions out in order.
//
//   kDialling ──Admitted──► kServing: Watch and Relay run ──a stream ends, heartbeats stop, steps stop──┐
//      ▲  └──unreachable, loading, mismatch──► kPausing ◄──────────────────────────────────────────────┘
//      └─────────────────Timer────────────────────┘
//
// Every handshake that succeeds starts a new session; a restarted worker is simply a new session. A round is one Watch
// stream of a session: it begins with a snapshot of the worker's prefix cache, and a gap in its numbers or a digest
// that differs begins the next round, while requests go on.
//
// Two signals tell that a worker lives: its reports (the process is there) and its step counter (it makes progress). A
// starved machine makes steps slow, so a stall is judged against the step time that the worker itself predicts. Both
// are judged by OwnTime: a router that stood still does not take its own sleep for the workers' silence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/own_time.h"
#include "router/fleet/worker_wire.h"

namespace baton::router {

struct LinkLimits {
  /// In which reports may lie unread, as many times `heartbeat`: a burst of work of this router's own is over by then.
  static constexpr int kUnreadHeartbeats = 10;

  Duration heartbeat{3000};  ///< without a report: the worker is lost
  Duration report{};         ///< the longest time between two reports (report_terms.h)
  Duration step_stall{0};    ///< work, but no step for so long, and for so many predicted steps: it is lost
  double step_stall_factor = 20;
  Duration backoff_min{0}, backoff_max{0};  ///< pauses between two dials double from one to the other
};

// ---- actions

/// Greet the worker; answer with Unreachable, KeyRefused, Loading, Mismatch or Admitted. `other_key`: adopt the
/// worker's hash key where that is possible.
struct DialWorker {
  bool other_key = false;
};
/// Open the Relay stream of this session; the worker takes requests from now on.
struct OpenSession {
  uint64_t session = 0;
};
/// Open a Watch stream. What is known of the worker's cache is forgotten: the stream begins with a snapshot.
struct OpenWatch {
  uint64_t round = 0;
};
/// Of the event that is being handled: its units are stored (after the worker's others were forgotten) or removed.
struct StoreUnits {
  bool forget_others = false;
};
struct RemoveUnits {};
/// Of the event that is being handled: its load counts.
struct TakeLoad {};
/// The session is over: tell everybody who waits, close the wire, forget the worker's cache. CANCELLED: this router
/// stops.
struct EndSession {
  absl::Status why;
};
/// Say what is still waited for.
struct RenewLegs {};
/// What views of this link show from now on.
struct ShowLink {
  LinkState state = LinkState::kConnecting;
  std::string detail, phase;
  double progress = 0;
};
/// The worker serves from now on.
struct NowServing {};
/// Call Timer at this time; replaces the one before.
struct ArmLink {
  TimePoint at;
};
using LinkAction = std::variant<DialWorker, OpenSession, OpenWatch, StoreUnits, RemoveUnits, TakeLoad, EndSession,
                                RenewLegs, ShowLink, NowServing, ArmLink>;

/// One per worker; belongs to one thread.
class LinkFlow {
 public:
  enum class State : uint8_t { kIdle, kDialling, kPausing, kServing, kStopped };

  explicit LinkFlow(const LinkLimits& limits) : limits_(limits) {}

  // ---- events
  void Start(TimePoint now);
  /// The handshake failed; nobody is there, or not yet.
  void Unreachable(const absl::Status& why, TimePoint now);
  /// The worker's hash key is another one. `may_adopt`: this router could take the worker's.
  void KeyRefused(const absl::Status& why, bool may_adopt, TimePoint now);
  void Loading(const std::string& phase, double progress, TimePoint now);
  /// It may not serve here; `why` has both values.
  void Mismatch(const absl::Status& why, TimePoint now);
  /// It may serve; `session` is a number that no connection had before. `incarnation` is what answered the handshake: a
  /// session is with that one alone.
  void Admitted(uint64_t session, std::string incarnation, TimePoint now);
  void Watched(uint64_t round, const WatchEvent& event, TimePoint now);
  void WatchClosed(uint64_t round, const absl::Status& why, TimePoint now);
  void RelayClosed(uint64_t session, const absl::Status& why, TimePoint now);
  /// `has_unread`: what the worker has said lies unread (WorkerWire), which needs to be known where it SeemsSilent. Not
  /// the worker is silent then: this router does not listen. Nobody believes that for longer than kUnreadHeartbeats.
  void Timer(TimePoint now, bool has_unread = false);
  /// A report is late.
  bool SeemsSilent() const { return state_ == State::kServing && own_.Now() - heard_ > Lateness(); }
  /// Ends a pause between two dials.
  void DialNow();
  /// `why` is what who waits is told. CANCELLED: this router stops.
  void Stop(const absl::Status& why);

  std::vector<LinkAction> TakeActions();

  State state() const { return state_; }
  uint64_t session() const { return session_; }  ///< 0: none
  /// Snapshots that were asked for because something was missing. A counter.
  uint64_t snapshots_again() const { return snapshots_again_; }

 private:
  Duration Lateness() const { return std::max(limits_.report, 2 * OwnTime::kTick); }
  void Dial();
  void PauseFor(Duration pause, TimePoint now);
  Duration NextBackoff();
  void Watch();
  void WatchAgain(const std::string& why);
  void UnitsChanged(const WatchEvent& event);
  void Lost(const absl::Status& why, TimePoint now);
  TimePoint Listened(TimePoint now) const;

  const LinkLimits limits_;
  State state_ = State::kIdle;
  std::vector<LinkAction> actions_;
  uint64_t session_ = 0;
  bool other_key_ = false;
  int32_t failures_ = 0;  // one after the other; a session that ends soon is one
  TimePoint admitted_{};

  // ---- of the session
  std::string incarnation_;
  uint64_t round_ = 0;  ///< counts up over all sessions
  uint64_t next_sequence_ = 1;
  uint64_t digest_ = 0;
  bool snapshot_open_ = true;
  LinkState shown_ = LinkState::kReady;
  uint64_t steps_ = 0;
  double predicted_step_ms_ = 0;
  OwnTime own_{TimePoint{}};
  TimePoint heard_{}, steps_changed_{};  ///< of own_
  Duration unread_{};                    ///< as own_ counts it: since the latest report something lay unread
  TimePoint renewed_{};                  ///< of the plain clock
  uint64_t snapshots_again_ = 0;
};

}  // namespace baton::router
