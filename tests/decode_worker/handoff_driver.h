// Drives one decode::Handoff: two lanes of one segment each to rank 0, by default. Every step checks the invariants.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "decode_worker/handoff/handoff.h"

namespace baton::decode {

/// Counts what is held; writes down every call.
class CountedBlocks final : public TicketBlocks {
 public:
  int32_t Pin(TicketId, const ReserveOrder&) override { return ++pins, cached; }
  bool Bind(TicketId, uint32_t, int32_t) override {
    if (!room) return false;
    ++bound;
    log += "bind ";
    return true;
  }
  void Release(TicketId, uint32_t) override { --bound, log += "release "; }
  void Unpin(TicketId) override { --pins, log += "unpin "; }
  bool room = true;
  int bound = 0, pins = 0;
  int32_t cached = 16;
  std::string log;
};

inline HandoffOptions SmallOptions() {
  HandoffOptions options;
  options.ring_slots = {4};
  options.slots_per_lane = 1;
  options.max_reserved_tokens = 1000;
  options.max_quarantined_slots = 2;
  options.new_secret = [] { return TicketSecret{}; };  // as Opens that are made by hand have it
  return options;
}

class HandoffDriver {
 public:
  explicit HandoffDriver(HandoffOptions options = SmallOptions()) : core(std::move(options), blocks) { Do(Tick{}); }

  /// Applies the event; what came out of it is in `actions`.
  const std::vector<Action>& Do(const Event& event) {
    actions.clear();
    core.Handle(event, now, actions);
    core.CheckInvariants();
    return actions;
  }
  /// Tickets 1 and 2 hold every slot; 3 waits in front of 4.
  void FillSlots() {
    for (int t : {1, 2, 3, 4}) Reserve(t);
    Bind(1, 1), Bind(1, 2);
    Do(MakeOpen(0, 1, 3)), Do(MakeOpen(0, 1, 4));
  }
  /// Ticket 1 gives its slots back: there is room for one.
  void GiveRoom() {
    Cancel(1);
    for (uint32_t lane : {0u, 1u}) Do(MakeClosed(lane, true, 1, 1));
  }
  ReserveAnswer Reserve(int ticket = 1) { return Reserve(MakeReserve(ticket)); }
  ReserveAnswer Reserve(const ReserveOrder& order) {
    actions.clear();
    ReserveAnswer answer = core.Reserve(order, now);
    core.CheckInvariants();
    return answer;
  }
  /// Whether its ticket was known; what came out of it is in `actions`.
  bool Cancel(int ticket, bool asks_again = false) {
    actions.clear();
    const bool known = core.Cancel(Key(ticket), asks_again, now, actions);
    core.CheckInvariants();
    return known;
  }
  /// Time goes by, and this side listens: what all its ticks bring is in `actions`.
  void Listen(Duration time) {
    std::vector<Action> all;
    for (const TimePoint end = now + time; now < end;) {
      now += std::min<Duration>(OwnTime::kTick, end - now);
      Do(Tick{});
      all.insert(all.end(), actions.begin(), actions.end());
    }
    actions = std::move(all);
  }
  /// Time goes by while this side is stopped.
  void StandStill(Duration time) { now += time, Do(Tick{}); }
  TicketState state(TicketId ticket = 1) const { return core.Find(ticket)->state; }

  // Events of ticket 1 (or another), lane by lane, from writer 7.
  static TicketKey Key(int ticket) { return {"request" + std::to_string(ticket), 0}; }
  ReserveOrder MakeReserve(int ticket = 1) const {
    return {.key = Key(ticket),
            .salt = "tenant",
            .prompt = {},
            .prompt_len = 115,
            .expiry = expiry,
            .session = {},
            .lease = lease};
  }
  Opened MakeOpen(uint32_t lane, uint32_t epoch = 1, TicketId ticket = 1) const {
    return {writer, fence, {{ticket, epoch, lane}, 42},
            42,     lanes, process.empty() ? "p" + std::to_string(writer) : process,
            memory};
  }
  SlotTurn Grant(uint32_t lane, uint32_t epoch = 1, TicketId ticket = 1) const {
    return core.ring(0).SlotsOf({ticket, epoch, lane}, LandingRing::Phase::kGranted).at(0);
  }
  Filled MakeFilled(uint32_t lane, SlotTurn slot, uint32_t epoch = 1, TicketId ticket = 1) const {
    return {writer, {{ticket, epoch, lane}, slot, {0}}};
  }
  Done MakeDone(uint32_t lane, uint32_t epoch = 1, TicketId ticket = 1) const {
    return {writer, {{ticket, epoch, lane}, 1}};
  }
  Closed MakeClosed(uint32_t lane, bool flushed = true, uint32_t epoch = 1, TicketId ticket = 1) const {
    return {writer, {{ticket, epoch, lane}, flushed}};
  }
  Attach MakeAttach(uint64_t gen, uint32_t epoch = 1, TicketId ticket = 1) const {
    return {ticket, epoch, gen, 10 * gen};
  }

  // Whole steps.
  void Bind(uint32_t epoch = 1, TicketId ticket = 1) {
    for (uint32_t i = 0; i < lanes.size(); ++i) Do(MakeOpen(i, epoch, ticket));
  }
  void Fill(uint32_t lane, bool digest_ok = true, uint32_t epoch = 1, TicketId ticket = 1) {
    const SlotTurn slot = Grant(lane, epoch, ticket);
    Do(MakeFilled(lane, slot, epoch, ticket));
    Do(Scattered{{ticket, epoch, lane}, slot, digest_ok});
  }
  void Complete(uint32_t epoch = 1, TicketId ticket = 1) {
    for (uint32_t i = 0; i < lanes.size(); ++i) Fill(i, true, epoch, ticket), Do(MakeDone(i, epoch, ticket));
  }
  template <class T>
  const T* Find() const {
    for (const Action& action : actions) {
      if (const T* found = std::get_if<T>(&action)) return found;
    }
    return nullptr;
  }
  /// The first message of this kind that went to a writer.
  template <class T>
  const T* Sent() const {
    for (const Action& action : actions) {
      if (const auto* sent = std::get_if<SendToWriter>(&action)) {
        if (const T* found = std::get_if<T>(&sent->message)) return found;
      }
    }
    return nullptr;
  }

  CountedBlocks blocks;
  Handoff core;
  TimePoint now{std::chrono::seconds(1)};
  Duration expiry = std::chrono::seconds(10), lease{};
  WriterId writer = 7;
  std::string process;  ///< empty: named by the writer
  uint32_t memory = 0;
  FenceKind fence = FenceKind::kForcedClose;
  std::vector<LaneShape> lanes = {{0, 1}, {0, 1}};
  std::vector<Action> actions;
};

}  // namespace baton::decode
