// Roster: which workers the router has, and in which slot, as discovery tells it. Sans-IO: the fleet carries the
// actions out in order.
//
//   kFree ──listed, takes requests──► kTaking ──listed, takes none──► kDraining ──listed no more──► kGone
//                                      ▲  │ listed no more                │                          │ │
//                                      │  └──────────────────────────────┼────────────────────────►─┘ │
//                                      └──────── takes requests again ───┴────────────────────────────┤
//   kFree ◄───────────────────────── nothing runs there any more, and it was gone for a while ────────┘
//
// An operator may drain a worker that has a slot, in any of these states, and a change of its role holds it: it takes
// no requests until it is resumed from both, whatever discovery says meanwhile. Who lost the slot and comes again takes
// requests.
//
// A worker that comes back within that while finds its connection, and what is known of its cache, as they were: one
// that flaps costs nobody anything.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "common/clock.h"
#include "router/endpoint.h"

namespace baton::router {

/// Dial this worker, in a slot that is free.
struct AddWorker {
  int32_t slot = 0;
  std::string address;
};
/// No new requests for it; what runs there goes on.
struct HoldWorker {
  int32_t slot = 0;
  const char* why = "";
};
/// It takes requests (again).
struct TakeWorker {
  int32_t slot = 0;
};
/// Nothing runs there: end the connection. The slot may be given to another at once.
struct DropWorker {
  int32_t slot = 0;
};
/// There are more workers than slots; once for each number of them. They wait for a slot.
struct RefuseWorkers {
  size_t count = 0;
  std::string first;  ///< address of one of them
};
using RosterAction = std::variant<AddWorker, HoldWorker, TakeWorker, DropWorker, RefuseWorkers>;

/// Not thread-safe.
class Roster {
 public:
  /// Why a worker that serves takes no requests; of two the first is shown.
  enum class Hold : uint8_t { kDrained, kChangesRole };
  enum class State : uint8_t { kFree, kTaking, kDraining, kGone };
  static constexpr Duration kLinger = std::chrono::seconds(5);  ///< that a gone worker is kept at least
  static constexpr Duration kTick = std::chrono::milliseconds(100);

  explicit Roster(int32_t slots) : most_(slots) {}

  // ---- events
  /// The whole set; each address once.
  void Listed(absl::Span<const Endpoint> endpoints, TimePoint now);
  /// `idle`: whether nothing runs on the worker in a slot. Call every kTick while `waits()`.
  void Tick(const std::function<bool(int32_t slot)>& idle, TimePoint now);
  /// No requests for it, and again, as far as `why` goes. A slot that is free: nothing.
  void Drain(int32_t slot, Hold why = Hold::kDrained);
  void Resume(int32_t slot, Hold why = Hold::kDrained);

  std::vector<RosterAction> TakeActions();
  /// Somebody is gone and still has a slot.
  bool waits() const;
  State state(int32_t slot) const;
  /// By an operator.
  bool drained(int32_t slot) const;
  /// Drained, or changes its role.
  bool held(int32_t slot) const;

 private:
  struct Place {
    State state = State::kFree;
    std::string address;
    TimePoint gone_at{};
    bool drained = false, changes_role = false;  ///< Hold

    bool& flag(Hold why) { return why == Hold::kDrained ? drained : changes_role; }
    /// Null: nothing holds it.
    const char* held() const;
  };
  void Show(int32_t slot, const Endpoint& endpoint);
  /// Of those that wait, as many as there are slots for.
  void Seat();

  const int32_t most_;
  std::vector<Place> places_;  // grows to most_
  std::vector<RosterAction> actions_;
  std::vector<std::string> waiting_;  ///< listed and without a slot, in order
  size_t refused_ = 0;                ///< of them, as they were told last
};

}  // namespace baton::router
