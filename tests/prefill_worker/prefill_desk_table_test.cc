// Every (state, event) pair of a prefill leg at the desk, as one table: next state, what the caller is told, what the
// transfer thread is asked for, blocks taken and returned. "=": nothing at all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "desk_world.h"
#include "tests/state_table.h"

namespace baton::prefill_worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::array kDeskStates = {"none", "Queued", "Opening", "Open", "Done", "Flushing", "Closing", "Over"};

std::string StateName(const DeskWorld& w) {
  const prefill::PushJob* job = w.desk.Pushed(w.key);
  if (job == nullptr) return w.desk.jobs() > 0 ? "Queued" : "none";
  constexpr std::array kNames = {"Opening", "Open", "Done", "Flushing", "Closing", "Over"};
  return kNames[static_cast<size_t>(job->lanes[0].phase)];
}

/// Opening: the first chunk is computed, the lane asked for. Open: bound, segment 0 written. Done: computed to the end,
/// answered, segment 1 written too. Flushing, Closing, Over: after Verified.
void EnterDesk(DeskWorld& w, const std::string& state) {
  if (state == "none") return;
  w.Begin();
  if (state == "Queued") return;
  w.Step();
  if (state == "Opening") return;
  w.Bound(), w.Written(0);
  if (state == "Open") return;
  w.Step(), w.Written(1);
  if (state == "Done") return;
  w.Hear(LaneVerified{w.lane});
  if (state == "Flushing") return;
  w.Flushed();
  if (state == "Over") w.Hear(LaneClosedAck{w.lane});
}

using ApplyToDesk = std::function<void(DeskWorld&)>;

/// As the engine would tell of the leg's request.
void EndRequest(DeskWorld& w, engine::FinishReason reason, const absl::Status& error) {
  engine::SequenceOutput output;
  output.key = engine::RequestKey{1} << 62;
  output.finish = reason, output.error = error;
  w.desk.OnOutputs({output});
}

const std::vector<std::pair<std::string, ApplyToDesk>>& Events() {
  static const std::vector<std::pair<std::string, ApplyToDesk>> events = {
      {"Begin", [](auto& w) { w.Begin(); }},
      {"Begin, draining", [](auto& w) { w.desk.Drain(), w.Begin(); }},
      {"Begin, all cached there",
       [](auto& w) {
         JobOrder order = w.MakeOrder();
         order.key.attempt = 7, order.cached_tokens = 48;
         w.Begin(std::move(order));
       }},
      {"Begin, part of a unit cached",
       [](auto& w) {
         JobOrder order = w.MakeOrder();
         order.key.attempt = 7, order.cached_tokens = 8;
         w.Begin(std::move(order));
       }},
      {"Begin, other heads",
       [](auto& w) {
         JobOrder order = w.MakeOrder();
         order.key.attempt = 7, order.target.layout.groups[0].planes[0].heads = 2;
         w.Begin(std::move(order));
       }},
      {"Begin, too long",
       [](auto& w) {
         JobOrder order = w.MakeOrder();
         order.key.attempt = 7, order.request.tokens = engine::RandomTokens(1, 400), order.request.prompt_len = 400;
         w.Begin(std::move(order));
       }},
      {"Cancel", [](auto& w) { w.sender.log += w.desk.Cancel(w.key) ? "Known " : "Tombstone ", w.TakeOutputs(); }},
      {"Caller gone", [](auto& w) { w.desk.OnCallerGone(w.key), w.TakeOutputs(); }},
      {"Step", [](auto& w) { w.Step(); }},
      {"Engine error", [](auto& w) { EndRequest(w, engine::FinishReason::kError, absl::InternalError("x")); }},
      {"Engine abort", [](auto& w) { EndRequest(w, engine::FinishReason::kAbort, {}); }},
      {"Bound", [](auto& w) { w.Bound(); }},
      {"Busy, then 5 ms", [](auto& w) { w.Hear(LaneBusy{w.lane}), w.h.now += milliseconds(5), w.desk.Tick(); }},
      {"Gone", [](auto& w) { w.Hear(LaneGone{w.lane, "why"}), w.TakeOutputs(); }},
      {"SlotFree", [](auto& w) { w.Hear(SlotFree{w.lane, {0, 2}, true}); }},
      {"Again", [](auto& w) { w.Hear(SlotFree{w.lane, {0, 2}, false}); }},
      {"Verified", [](auto& w) { w.Hear(LaneVerified{w.lane}); }},
      {"ClosedAck", [](auto& w) { w.Hear(LaneClosedAck{w.lane}); }},
      {"Written", [](auto& w) { w.Written(1); }},
      {"Source is stale",
       [](auto& w) { w.Step(), w.sender.log.clear(), w.Written(1, absl::DataLossError("x")), w.TakeOutputs(); }},
      {"Drained", [](auto& w) { w.desk.Handle(prefill::Drained{1, w.lane}); }},
      {"Flushed", [](auto& w) { w.Flushed(); }},
      {"Flush failed", [](auto& w) { w.Flushed(false); }},
      {"Peer lost", [](auto& w) { w.desk.Handle(prefill::PeerLost{1}), w.TakeOutputs(); }},
      {"Tick", [](auto& w) { w.desk.Tick(); }},
      {"Tick, no answer", [](auto& w) { w.h.now += milliseconds(260), w.desk.Tick(); }},
      {"Tick, 4 s of silence", [](auto& w) { w.Listen(seconds(4)); }},
      {"Stood still 9 s", [](auto& w) { w.StandStill(seconds(9)), w.TakeOutputs(); }},
      {"Tick, no lease", [](auto& w) { w.Listen(milliseconds(4500)), w.TakeOutputs(); }},
      {"Tick, renewed",
       [](auto& w) {
         for (int i = 0; i < 5; ++i) w.Listen(seconds(1)), w.desk.Renew(w.key);
         w.TakeOutputs();
       }},
      {"Tick, near expiry",
       [](auto& w) {
         for (int i = 0; i < 3; ++i) w.Listen(milliseconds(3200)), w.desk.Renew(w.key);
         w.TakeOutputs();
       }},
      {"Tick, long after",
       [](auto& w) {
         for (int i = 0; i < 61; ++i) w.Listen(seconds(3)), w.desk.Renew(w.key), w.TakeOutputs();
       }},
  };
  return events;
}

std::string DeskOutcome(const std::string& state, const ApplyToDesk& apply) {
  DeskWorld w;
  w.lease = milliseconds(4500);
  EnterDesk(w, state);
  const std::string before = StateName(w);
  EXPECT_EQ(before, state);
  const int32_t used = w.used();
  w.sender.log.clear(), w.caller->log.clear();
  apply(w);
  w.CheckOwners();
  std::string done = w.caller->log + w.sender.log;
  if (const int32_t change = w.used() - used; change != 0)
    done += (change > 0 ? "+" : "") + std::to_string(change) + " ";
  if (!done.empty()) done.pop_back();
  return CellOf(before, StateName(w), done);
}

// event | one cell per state
constexpr const char* kDeskTable = R"(
Begin                        | →Queued | = | = | = | Answer(OK) | Answer(OK) | Answer(OK) | Answer(OK)
Begin, draining              | Answer(UNAVAILABLE) | = | = | = | Answer(OK) | Answer(OK) | Answer(OK) | Answer(OK)
Begin, all cached there      | Answer(INVALID_ARGUMENT) | Answer(INVALID_ARGUMENT) | Answer(INVALID_ARGUMENT) | Answer(INVALID_ARGUMENT) | Answer(INVALID_ARGUMENT) | Answer(INVALID_ARGUMENT) | Answer(INVALID_ARGUMENT) | Answer(INVALID_ARGUMENT)
Begin, part of a unit cached | Answer(INVALID_ARGUMENT) | Answer(INVALID_ARGUMENT) | Answer(INVALID_ARGUMENT) | Answer(INVALID_ARGUMENT) | Answer(INVALID_ARGUMENT) | Answer(INVALID_ARGUMENT) | Answer(INVALID_ARGUMENT) | Answer(INVALID_ARGUMENT)
Begin, other heads           | Answer(INVALID_ARGUMENT) | Answer(INVALID_ARGUMENT) | Answer(INVALID_ARGUMENT) | Answer(INVALID_ARGUMENT) | Answer(INVALID_ARGUMENT) | Answer(INVALID_ARGUMENT) | Answer(INVALID_ARGUMENT) | Answer(INVALID_ARGUMENT)
Begin, too long              | Answer(INVALID_ARGUMENT) | Answer(INVALID_ARGUMENT) | Answer(INVALID_ARGUMENT) | Answer(INVALID_ARGUMENT) | Answer(INVALID_ARGUMENT) | Answer(INVALID_ARGUMENT) | Answer(INVALID_ARGUMENT) | Answer(INVALID_ARGUMENT)
Cancel                       | Tombstone | →none Answer(CANCELLED) Known | →Flushing Answer(CANCELLED) Flush Known | →Flushing Answer(CANCELLED) Flush Known | →Flushing Flush Known | Known | Known | Known
Caller gone                  | = | →none Answer(CANCELLED) | →Flushing Answer(CANCELLED) Flush | →Flushing Answer(CANCELLED) Flush | = | = | = | =
Step                         | = | →Opening Dial Open! +2 | +1 | Answer(OK) Write1 +1 | = | = | = | =
Engine error                 | = | →none Answer(INTERNAL) | →Flushing Answer(INTERNAL) Flush -2 | →Flushing Answer(INTERNAL) Flush | = | = | = | =
Engine abort                 | = | →none Answer(CANCELLED) | →Flushing Answer(CANCELLED) Flush -2 | →Flushing Answer(CANCELLED) Flush | = | = | = | =
Bound                        | = | = | →Open Write0 | = | = | = | = | =
Busy, then 5 ms              | = | = | Open! | = | = | = | = | =
Gone                         | = | = | →Flushing Answer(UNAVAILABLE) Flush | →Flushing Answer(UNAVAILABLE) Flush | →Flushing Flush | = | = | =
SlotFree                     | = | = | = | = | = | = | = | =
Again                        | = | = | = | Write0 | →Open Write0 | = | = | =
Verified                     | = | = | = | →Flushing Flush | →Flushing Flush | = | = | =
ClosedAck                    | = | = | = | = | = | = | →Over | =
Written                      | = | = | = | = | = | = | = | =
Source is stale              | = | →Opening +2 | +1 | →Flushing Answer(OK) Flush +1 | = | = | = | =
Drained                      | = | = | = | = | = | -3 | = | =
Flushed                      | = | = | = | = | = | →Closing Closed! -3 | = | =
Flush failed                 | = | = | = | = | = | →Closing Dirty! -3 | = | =
Peer lost                    | = | = | →Over Answer(UNAVAILABLE) -2 | →Over Answer(UNAVAILABLE) -2 | →Over -3 | →Over -3 | →Over | =
Tick                         | = | = | = | = | = | = | = | =
Tick, no answer              | = | = | Open! | Full0 | Full0 Full1 Done! | = | Closed! | =
Tick, 4 s of silence         | = | = | Open! Cut | Full0 Cut | Full0 Full1 Done! Cut | Cut | Closed! Cut | =
Stood still 9 s              | = | = | Open! | Full0 | Full0 Full1 Done! | = | Closed! | =
Tick, no lease              | = | →none Answer(ABORTED) | →Flushing Answer(ABORTED) Open! Cut Flush | →Flushing Answer(ABORTED) Full0 Cut Flush | Full0 Full1 Done! Cut | Cut | Closed! Cut | =
Tick, renewed                | = | = | Open! Cut | Full0 Cut | Full0 Full1 Done! Cut | Cut | Closed! Cut | =
Tick, near expiry            | = | = | →Flushing Answer(DEADLINE_EXCEEDED) Open! Cut Flush | →Flushing Answer(UNAVAILABLE) Full0 Cut Flush | →Flushing Full0 Full1 Done! Cut Flush | Cut | Closed! Cut | =
Tick, long after             | = | = | →Flushing Answer(DEADLINE_EXCEEDED) Open! Cut Flush | →Flushing Answer(UNAVAILABLE) Full0 Cut Flush | →Flushing Full0 Full1 Done! Cut Flush | Cut | →none Closed! Cut | →none
)";

TEST(PrefillDeskTable, EveryEventInEveryStateDoesWhatItsCellSays) {
  ExpectEveryCell(
      kDeskTable, kDeskStates, Events(),
      [](const auto&, const std::string& state, const ApplyToDesk& apply) { return DeskOutcome(state, apply); });
}

}  // namespace
}  // namespace baton::prefill_worker
