// Every (state, event) pair of a ticket, as one table: next state and what is done, in order: calls to the block pool
// (lower case), the answer, actions. "=": nothing at all. "dies": cannot come from outside, so it is our bug.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "handoff_driver.h"
#include "tests/state_table.h"

namespace baton::decode {
namespace {

constexpr std::array kStates = {"none", "Reserved", "Receiving", "Ready", "Attached", "Repair", "Closing", "Gone"};

struct NameOf {
  std::string operator()(const ReservationShed&) const { return "Shed"; }
  std::string operator()(const SendToWriter& a) const { return std::visit(*this, a.message); }
  std::string operator()(const ScatterSlot&) const { return "Place"; }
  std::string operator()(const StartSequence& a) const { return a.recompute ? "Recompute" : "Start"; }
  std::string operator()(const ContinueSequence&) const { return "Continue"; }
  std::string operator()(const StopSequence&) const { return "Stop"; }
  std::string operator()(const AttachRefused&) const { return "Refuse"; }
  std::string operator()(const CutWriter&) const { return "Cut"; }
  std::string operator()(const ReleaseWriter&) const { return "Release"; }
  std::string operator()(const ReplaceMemory&) const { return "Replace"; }
  std::string operator()(const DropMemory&) const { return "Drop"; }
  std::string operator()(const LaneBound&) const { return "Bound"; }
  std::string operator()(const LaneBusy&) const { return "Busy"; }
  std::string operator()(const LaneGone&) const { return "GoneL"; }
  std::string operator()(const SlotFree& a) const { return a.ok ? "Free" : "Again"; }
  std::string operator()(const LaneVerified&) const { return "Verified"; }
  std::string operator()(const LaneClosedAck&) const { return "Ack"; }
};

std::string StateName(const HandoffDriver& d) {
  return d.core.Find(1) == nullptr ? kStates[0] : kStates[static_cast<size_t>(d.state()) + 1];
}

/// Receiving: lane 0 is being placed, lane 1 holds a slot that is not filled. Ready, Attached: complete, not closed.
/// Repair, Closing: as Receiving, then lane 1 was closed / the ticket cancelled.
void Enter(HandoffDriver& d, const std::string& state) {
  if (state == "none") return;
  d.Reserve();
  if (state == "Reserved") return;
  if (state == "Gone") return void(d.Cancel(1));
  d.Bind();
  if (state == "Ready" || state == "Attached") {
    d.Complete();
    if (state == "Attached") d.Do(d.MakeAttach(5));
    return;
  }
  d.Do(d.MakeFilled(0, {0, 1}));
  if (state == "Repair") d.Do(d.MakeClosed(1));
  if (state == "Closing") d.Cancel(1);
}

using Apply = std::function<void(HandoffDriver&)>;
const std::vector<std::pair<std::string, Apply>>& Events() {
  static const std::vector<std::pair<std::string, Apply>> events = {
      {"Reserve", [](auto& d) { d.blocks.log += d.Reserve().status.ok() ? "Ticket " : "Nack "; }},
      {"Attach", [](auto& d) { d.Do(d.MakeAttach(6)); }},
      {"Attach same gen", [](auto& d) { d.Do(d.MakeAttach(5)); }},
      {"Attach old gen", [](auto& d) { d.Do(d.MakeAttach(4)); }},
      {"Attach old epoch", [](auto& d) { d.Do(d.MakeOpen(0, 2)), d.blocks.log.clear(), d.Do(d.MakeAttach(6)); }},
      {"Attach no prefill", [](auto& d) { d.Do(d.MakeAttach(6, 0)); }},
      {"Renewed", [](auto& d) { d.Do(Renewed{d.Key(1), 5}); }},
      {"Cancel", [](auto& d) { d.blocks.log += d.Cancel(1) ? "Cancelled " : "Tombstone "; }},
      {"Open", [](auto& d) { d.Do(d.MakeOpen(1)); }},
      {"Open other writer", [](auto& d) { d.writer = 8, d.Do(d.MakeOpen(1)); }},
      {"Open next epoch", [](auto& d) { d.writer = 8, d.Do(d.MakeOpen(1, 2)); }},
      {"Open no blocks", [](auto& d) { d.blocks.room = false, d.Do(d.MakeOpen(1, 2)); }},
      {"Open epoch 0", [](auto& d) { d.Do(d.MakeOpen(1, 0)); }},
      {"SlotFull", [](auto& d) { d.Do(d.MakeFilled(1, {1, 1})); }},
      {"SlotFull again", [](auto& d) { d.Do(d.MakeFilled(0, {0, 1})); }},
      {"LaneDone", [](auto& d) { d.Do(d.MakeDone(1)); }},
      {"Closed", [](auto& d) { d.Do(d.MakeClosed(1)); }},
      {"Closed, dirty", [](auto& d) { d.Do(d.MakeClosed(0, false)); }},
      {"Scattered", [](auto& d) { d.Do(Scattered{{1, 1, 0}, {0, 1}, true}); }},
      {"Scattered, digest bad", [](auto& d) { d.Do(Scattered{{1, 1, 0}, {0, 1}, false}); }},
      {"WriterLost", [](auto& d) { d.Do(WriterLost{7}); }},
      {"WriterFenced", [](auto& d) { d.Do(WriterFenced{7}); }},
      {"Finished", [](auto& d) { d.Do(Finished{1}); }},
      {"ShedUnbound", [](auto& d) { d.Do(ShedUnbound{}); }},
      {"Tick", [](auto& d) { d.Do(Tick{}); }},
      {"Ticks for 3 s", [](auto& d) { d.Listen(std::chrono::seconds(3)); }},
      {"Ticks for 5 s, shared memory",
       [](auto& d) {
         d.Listen(std::chrono::milliseconds(2500)), d.Do(Renewed{d.Key(1), 5});
         d.Listen(std::chrono::milliseconds(2500));
       }},
      {"Tick, no lease", [](auto& d) { d.Listen(std::chrono::seconds(6)); }},
      {"Stood still 9 s", [](auto& d) { d.StandStill(std::chrono::seconds(9)); }},
      {"Stood still 59 s", [](auto& d) { d.StandStill(std::chrono::seconds(59)); }},
      {"Tick, expired",
       [](auto& d) {
         std::vector<Action> all;
         for (int i = 0; i < 3; ++i) {
           d.Listen(std::chrono::seconds(4));
           all.insert(all.end(), d.actions.begin(), d.actions.end());
           d.Do(Renewed{d.Key(1), 5});
         }
         d.actions = std::move(all);
       }},
      {"Tick, forgotten", [](auto& d) { d.Listen(std::chrono::seconds(80)); }},
  };
  return events;
}

std::string Outcome(const std::string& event, const std::string& state, const Apply& apply) {
  HandoffDriver d;
  if (event.ends_with("shared memory")) d.fence = FenceKind::kPeerExit;
  d.lease = std::chrono::seconds(5);
  Enter(d, state);
  const std::string before = StateName(d);
  EXPECT_EQ(before, state);
  d.blocks.log.clear();
  apply(d);
  std::string done = d.blocks.log;
  for (const Action& action : d.actions) done += std::visit(NameOf{}, action) + " ";
  if (!done.empty()) done.pop_back();
  return CellOf(before, StateName(d), done);
}

// event | one cell per state
constexpr const char* kTable = R"(
Reserve             | →Reserved Ticket | Ticket | Ticket | Ticket | Ticket | Ticket | Nack | Nack
Attach              | Refuse | Refuse | = | →Attached Start | Continue | →Attached Recompute | Refuse | Refuse
Attach same gen     | Refuse | Refuse | = | →Attached Start | = | →Attached Recompute | Refuse | Refuse
Attach old gen      | Refuse | Refuse | = | →Attached Start | Refuse | →Attached Recompute | Refuse | Refuse
Attach old epoch    | Refuse | →Receiving Refuse | Refuse | →Receiving Refuse | Continue | →Receiving Refuse | Refuse | Refuse
Attach no prefill   | Refuse | →Attached Recompute | →Attached GoneL GoneL Recompute | →Attached release Recompute | Continue | →Attached Recompute | Refuse | Refuse
Renewed              | = | = | = | = | = | = | = | =
Cancel              | Tombstone | →Gone unpin Cancelled | →Closing unpin Cancelled GoneL GoneL | →Closing unpin release Cancelled | →Closing Cancelled Stop | →Closing unpin Cancelled | Cancelled | Cancelled
Open                | GoneL | →Receiving bind Bound | Bound | Bound | Bound | GoneL | GoneL | GoneL
Open other writer   | GoneL | →Receiving bind Bound | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL
Open next epoch     | GoneL | →Receiving bind Bound | bind GoneL GoneL Bound | →Receiving release bind Bound | GoneL | →Receiving bind Bound | GoneL | GoneL
Open no blocks      | GoneL | Busy | →Reserved GoneL GoneL Busy | →Reserved release Busy | GoneL | →Reserved Busy | GoneL | GoneL
Open epoch 0        | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL | GoneL
SlotFull            | GoneL | GoneL | Place | Free | Free | GoneL | GoneL | GoneL
SlotFull again      | GoneL | GoneL | = | Free | Free | GoneL | GoneL | GoneL
LaneDone            | GoneL | GoneL | = | Verified | Verified | GoneL | GoneL | GoneL
Closed              | Ack | Ack | →Repair Ack GoneL | Ack | Ack | Ack | Ack | Ack
Closed, dirty       | Ack | Ack | →Repair Ack Cut GoneL GoneL | Ack Cut | Ack Cut | Ack Cut | Ack Cut | Ack
Scattered              | dies | dies | Free | dies | dies | release | release | dies
Scattered, digest bad  | dies | dies | Again | dies | dies | release | release | dies
WriterLost          | Release | Release | →Repair GoneL GoneL Cut | Cut | Cut | Cut | Cut | Release
WriterFenced        | = | = | →Repair | = | = | = | = | =
Finished            | = | = | = | = | →Closing | = | = | =
ShedUnbound         | = | unpin Shed | = | = | = | unpin Shed | = | =
Tick                | = | = | = | = | = | = | = | =
Ticks for 3 s       | = | = | = | Cut | Cut | Cut | Cut | =
Ticks for 5 s, shared memory | = | = | →Repair GoneL GoneL Replace | Replace | Replace | Replace | Replace | =
Tick, no lease     | = | →Gone unpin | →Closing unpin GoneL GoneL | →Closing unpin release Cut | →Closing Cut Stop | →Closing unpin Cut | Cut | =
Stood still 9 s     | = | = | = | = | = | = | = | =
Stood still 59 s    | = | →Gone unpin | →Closing unpin GoneL GoneL | →Closing unpin release | = | →Closing unpin | = | =
Tick, expired       | = | →Gone unpin | →Closing unpin GoneL GoneL | →Closing unpin release Cut | Cut | →Closing unpin Cut | Cut | =
Tick, forgotten     | = | →none unpin | →Closing unpin GoneL GoneL Cut | →Closing unpin release Cut | →Closing Cut Stop | →Closing unpin Cut | Cut | →none
)";

bool Dies(const std::string& event, const std::string& state) {
  return event.starts_with("Scattered") && state != "Receiving" && state != "Repair" && state != "Closing";
}

TEST(HandoffTable, EveryEventInEveryStateDoesWhatItsCellSays) {
  ExpectEveryCell(kTable, kStates, Events(),
                  [](const std::string& event, const std::string& state, const Apply& apply) {
                    return Dies(event, state) ? "dies" : Outcome(event, state, apply);
                  });
}

TEST(HandoffTable, APassThatNobodyStartedIsOurBug) {
  for (const char* state : {"none", "Reserved", "Ready", "Gone"}) {
    HandoffDriver d;
    Enter(d, state);
    EXPECT_DEATH(d.Do(Scattered{{1, 1, 0}, {0, 1}, true}), "no pass over slot 0") << state;
  }
}

}  // namespace
}  // namespace baton::decode
