// FlipBook: workers that change their role in place, each from the order to its end. Sans-IO: what workers are and what
// they answer comes in, holds, orders and what is shown go out; no clock, no thread.
//
//   kDrains: no new requests ──nothing of ours runs there──► kChanges: the worker was told ──it answered──► kReturns
//      │                                                        │                                             │
//      └─patience is over, undone, lost──► kFailed ◄──it says no, or was lost──┴──another process, or long───┤
//                                                                            kDone ◄──serves in its new role────┘
//
// A worker that was told waits itself until nothing runs there, of other routers neither. Where another router has told
// it to take the same role before, that change is this one's. One that decodes is told to prefill only while another
// one decodes; where several routers have told the last ones at once, each tells its own to decode again, also where it
// sees only later that nobody decodes (what it saw of the others was old). It is held
// for as long as it is asked to change; who fails takes requests again, in the role that it has. An operator may drain
// it and take that back meanwhile: a hold of its own, which the book only looks at.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "router/request_types.h"

namespace baton::router {

enum class FlipStage : uint8_t { kDrains, kChanges, kReturns, kDone, kFailed };
const char* FlipStageName(FlipStage stage);

/// A change of a role as people see it; it stays to be seen when it is over.
struct FlipView {
  WorkerRole to = WorkerRole::kUnknown;
  FlipStage stage = FlipStage::kDrains;
  std::string why;                                  ///< of kFailed
  double drain_ms = 0, change_ms = 0, took_ms = 0;  ///< what is over of it; took: all of it, at the end

  bool over() const { return stage == FlipStage::kDone || stage == FlipStage::kFailed; }
};

/// No new requests for it.
struct HoldFlipped {
  int32_t slot = 0;
};
/// They come again.
struct ReleaseFlipped {
  int32_t slot = 0;
};
/// Tell the worker; answer with Answered. `patience`: for what others run there to end; 0: as long as it takes.
struct OrderFlip {
  int32_t slot = 0;
  uint64_t number = 0;
  WorkerRole to = WorkerRole::kUnknown;
  Duration patience{};
};
struct ShowFlip {
  int32_t slot = 0;
  FlipView view;
};
using FlipAction = std::variant<HoldFlipped, ReleaseFlipped, OrderFlip, ShowFlip>;

/// A worker's answer to OrderFlip.
struct FlipAnswer {
  absl::Status status;
  std::string incarnation;  ///< from now on
  double drain_ms = 0, change_ms = 0;
};

/// Not thread-safe.
class FlipBook {
 public:
  /// For one that was told, or drained, and went; and for one that went without a word before it was told.
  static constexpr Duration kReturnWithin = std::chrono::seconds(30), kBackWithin = std::chrono::seconds(1);
  /// A worker that has changed is looked at for --heartbeat-timeout-ms and so much longer: a connection in which
  /// nothing is heard counts until then, so that what is seen of the others may be older than the change.
  static constexpr Duration kWatchedBeyond = std::chrono::seconds(7);
  static constexpr Duration kTick = std::chrono::milliseconds(20);

  explicit FlipBook(Duration heartbeat_timeout) : watched_(heartbeat_timeout + kWatchedBeyond) {}

  /// A worker at one moment.
  struct Worker {
    bool connected = false;
    bool left_draining = false;  ///< not connected: it drained when it went
    bool idle = false;           ///< nothing of this router runs there
    int64_t requests = 0;        ///< of this router
    bool takes = false;          ///< requests
    bool drained = false;        ///< by an operator
    bool last = false;           ///< no other one that decodes takes requests
    bool none_decodes = false;   ///< nor is there one that takes none
    WorkerRole role = WorkerRole::kUnknown;
    std::string incarnation, detail;
  };

  // ---- events
  /// FailedPrecondition: it changes to another role already, or cannot. OK where it changes to this one. `force`: also
  /// where it is the last that decodes.
  absl::Status Begin(int32_t slot, const Worker& worker, WorkerRole to, Duration patience, TimePoint now,
                     bool force = false);
  /// Every kTick while `active()`, for each slot of `slots()`.
  void Look(int32_t slot, const Worker& worker, TimePoint now);
  void Answered(int32_t slot, uint64_t number, const FlipAnswer& answer, TimePoint now);
  /// FailedPrecondition: it was told already.
  absl::Status Undo(int32_t slot, TimePoint now);
  /// The slot is another's from now on.
  void Forget(int32_t slot) { flips_.erase(slot); }

  std::vector<FlipAction> TakeActions();
  bool changes(int32_t slot) const;
  /// That change now, or have changed a moment ago.
  std::vector<int32_t> slots() const;

 private:
  struct Flip {
    FlipView view;
    bool force = false;
    bool released = false;  ///< not held for this change any more
    bool back = false;      ///< it has changed, and is to decode again
    bool watched = false;   ///< it is done, and turned back where nobody is seen to decode for kBackWithin
    uint64_t number = 0;
    std::string incarnation;  ///< at the order
    std::string next;         ///< of kReturns: as it said
    TimePoint began{}, until = TimePoint::max(), told{}, answered{}, done{};
    std::optional<TimePoint> away;   ///< in kDrains: since when it is not connected, and left draining
    std::optional<TimePoint> alone;  ///< watched: since when nobody decodes
  };
  void Drained(int32_t slot, Flip& flip, const Worker& worker, TimePoint now);
  void Release(int32_t slot, Flip& flip);
  void Watch(int32_t slot, Flip& flip, const Worker& worker, TimePoint now);
  void TurnBack(int32_t slot, Flip& flip, TimePoint now);
  void Order(int32_t slot, Flip& flip, WorkerRole to, Duration patience, TimePoint now);
  void Away(int32_t slot, Flip& flip, const Worker& worker, TimePoint now);
  void Returned(int32_t slot, Flip& flip, const Worker& worker, TimePoint now);
  void End(int32_t slot, Flip& flip, FlipStage stage, std::string why, TimePoint now);

  const Duration watched_;
  std::map<int32_t, Flip> flips_;  ///< by slot; the latest of each
  uint64_t last_ = 0;
  std::vector<FlipAction> actions_;
};

}  // namespace baton::router
