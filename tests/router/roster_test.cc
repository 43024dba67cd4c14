#include "router/fleet/roster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "common/str_cat.h"
#include "tests/state_table.h"

namespace baton::router {
namespace {

using RosterState = Roster::State;
constexpr TimePoint kRosterStart{std::chrono::seconds(100)};

std::string DescribeRoster(const RosterAction& action) {
  struct Text {
    std::string operator()(const AddWorker& a) const { return StrCat("add ", a.address, " at ", a.slot); }
    std::string operator()(const HoldWorker& a) const { return StrCat("hold ", a.slot); }
    std::string operator()(const TakeWorker& a) const { return StrCat("take ", a.slot); }
    std::string operator()(const DropWorker& a) const { return StrCat("drop ", a.slot); }
    std::string operator()(const RefuseWorkers& a) const { return StrCat("refuse ", a.count, " ", a.first); }
  };
  return std::visit(Text{}, action);
}

std::string TakenOf(Roster& roster) {
  std::string out;
  for (const RosterAction& action : roster.TakeActions())
    absl::StrAppend(&out, out.empty() ? "" : ", ", DescribeRoster(action));
  return out;
}

Endpoint Up(std::string address) { return {std::move(address)}; }
Endpoint Down(std::string address) { return {std::move(address), false, false}; }
Endpoint Ends(std::string address) { return {std::move(address), true, true}; }
bool Idle(int32_t) { return true; }
bool Busy(int32_t) { return false; }

/// Worker "a" in slot 0, in `state`.
Roster RosterIn(RosterState state, bool drained) {
  Roster roster(2);
  if (state != RosterState::kFree) roster.Listed({Up("a")}, kRosterStart);
  if (drained) roster.Drain(0);
  if (state == RosterState::kDraining) roster.Listed({Ends("a")}, kRosterStart);
  if (state == RosterState::kGone) roster.Listed({}, kRosterStart);
  roster.TakeActions();
  return roster;
}

constexpr const char* kNames[] = {"Free", "Taking", "Draining", "Gone"};  // as RosterState
std::string Name(RosterState state) { return kNames[static_cast<size_t>(state)]; }

// Columns: Free | Taking | Draining | Gone, without an operator's drain
constexpr const char* kRosterTable = R"(
listed, takes requests    | →Taking add a at 0 | =                | →Taking take 0 | →Taking take 0
listed, does not serve    | =                  | →Draining hold 0 | =              | →Draining
listed, terminates        | =                  | →Draining hold 0 | =              | →Draining
listed no more            | =                  | →Gone hold 0     | →Gone          | =
idle, just gone           | =                  | =                | =              | =
idle, gone for a while    | =                  | =                | =              | →Free drop 0
busy, gone for a while    | =                  | =                | =              | =
drained                   | =                  | hold 0           | =              | =
resumed                   | =                  | =                | =              | =
)";

// Columns: Free | Taking | Draining | Gone, drained by an operator where somebody is there
constexpr const char* kDrainedTable = R"(
listed, takes requests    | →Taking add a at 0 | =                | →Taking hold 0 | →Taking hold 0
listed, does not serve    | =                  | →Draining hold 0 | =              | →Draining
listed, terminates        | =                  | →Draining hold 0 | =              | →Draining
listed no more            | =                  | →Gone hold 0     | →Gone          | =
idle, just gone           | =                  | =                | =              | =
idle, gone for a while    | =                  | =                | =              | →Free drop 0
busy, gone for a while    | =                  | =                | =              | =
drained                   | =                  | =                | =              | =
resumed                   | =                  | take 0           | =              | =
)";

void CheckTable(const char* table, bool drained) {
  const TimePoint soon = kRosterStart + Roster::kLinger - Duration(1), late = kRosterStart + Roster::kLinger;
  const std::pair<const char*, std::function<void(Roster&)>> events[] = {
      {"listed, takes requests", [](Roster& r) { r.Listed({Up("a")}, kRosterStart); }},
      {"listed, does not serve", [](Roster& r) { r.Listed({Down("a")}, kRosterStart); }},
      {"listed, terminates", [](Roster& r) { r.Listed({Ends("a")}, kRosterStart); }},
      {"listed no more", [](Roster& r) { r.Listed({}, kRosterStart); }},
      {"idle, just gone", [&](Roster& r) { r.Tick(Idle, soon); }},
      {"idle, gone for a while", [&](Roster& r) { r.Tick(Idle, late); }},
      {"busy, gone for a while", [&](Roster& r) { r.Tick(Busy, late); }},
      {"drained", [](Roster& r) { r.Drain(0); }},
      {"resumed", [](Roster& r) { r.Resume(0); }},
  };
  ExpectEveryCell(table, kNames, events, [drained](const std::string&, const std::string& before, const auto& apply) {
    const auto state = static_cast<RosterState>(std::ranges::find(kNames, before) - kNames);
    Roster roster = RosterIn(state, drained && state != RosterState::kFree);
    apply(roster);
    const std::string actions = TakenOf(roster);
    EXPECT_EQ(roster.waits(), roster.state(0) == RosterState::kGone);
    return CellOf(before, Name(roster.state(0)), actions);
  });
}

TEST(Roster, EveryEventInEveryState) { CheckTable(kRosterTable, false); }

TEST(Roster, EveryEventInEveryStateOfADrainedWorker) { CheckTable(kDrainedTable, true); }

TEST(Roster, ADrainAndAChangeOfTheRoleHoldEachForItself) {
  using Hold = Roster::Hold;
  const auto why = [](Roster& roster) {
    std::string out;
    for (const RosterAction& action : roster.TakeActions()) {
      const auto* hold = std::get_if<HoldWorker>(&action);
      absl::StrAppend(&out, out.empty() ? "" : ", ", hold != nullptr ? hold->why : DescribeRoster(action));
    }
    return out;
  };
  const std::string drains = "an operator drains it (baton drain)", changes = "it changes its role (baton flip)";
  for (const Hold first : {Hold::kDrained, Hold::kChangesRole}) {
    const bool drain_first = first == Hold::kDrained;
    const Hold second = drain_first ? Hold::kChangesRole : Hold::kDrained;
    Roster roster(2);
    roster.Listed({Up("a")}, kRosterStart);
    roster.TakeActions();
    roster.Drain(0, first);
    EXPECT_EQ(why(roster), drain_first ? drains : changes);
    roster.Drain(0, second);
    EXPECT_EQ(why(roster), drain_first ? "" : drains) << "of two the drain is shown";
    roster.Resume(0, second);
    EXPECT_EQ(why(roster), drain_first ? "" : changes) << "the first holds it yet";
    EXPECT_EQ(roster.drained(0), drain_first);
    EXPECT_TRUE(roster.held(0));
    roster.Drain(0, second);
    roster.TakeActions();
    roster.Resume(0, first);
    EXPECT_EQ(why(roster), drain_first ? changes : "");
    roster.Listed({}, kRosterStart);
    roster.Listed({Up("a")}, kRosterStart);
    EXPECT_EQ(why(roster), StrCat("listed no more, ", drain_first ? changes : drains));
    roster.Resume(0, second);
    EXPECT_EQ(why(roster), "take 0");
    EXPECT_FALSE(roster.held(0));
  }
}

TEST(Roster, WhoComesBackToAnotherSlotIsNotDrained) {
  Roster roster(2);
  roster.Listed({Up("a")}, kRosterStart);
  roster.Drain(0);
  roster.Listed({}, kRosterStart);
  roster.Tick(Idle, kRosterStart + Roster::kLinger);
  roster.TakeActions();
  roster.Listed({Up("a")}, kRosterStart + Roster::kLinger);
  EXPECT_EQ(TakenOf(roster), "add a at 0");
  roster.Resume(0);
  EXPECT_EQ(TakenOf(roster), "");
}

TEST(Roster, AnAddressThatChangesIsAnotherWorker) {
  Roster roster(4);
  roster.Listed({Up("a"), Up("b")}, kRosterStart);
  EXPECT_EQ(TakenOf(roster), "add a at 0, add b at 1");
  roster.Listed({Up("c"), Up("b")}, kRosterStart);
  EXPECT_EQ(TakenOf(roster), "hold 0, add c at 2");
  roster.Tick(Idle, kRosterStart + Roster::kLinger);
  EXPECT_EQ(TakenOf(roster), "drop 0");
  roster.Listed({Up("c"), Up("b"), Up("a")}, kRosterStart + Roster::kLinger);
  EXPECT_EQ(TakenOf(roster), "add a at 0") << "its slot was free again";
}

TEST(Roster, AWorkerThatFlapsKeepsItsSlotAndIsNeverDialledAgain) {
  Roster roster(2);
  roster.Listed({Up("a"), Up("b")}, kRosterStart);
  roster.TakeActions();
  TimePoint now = kRosterStart;
  for (int i = 0; i < 20; ++i) {
    now += std::chrono::seconds(1);
    roster.Listed({Up("b")}, now);
    roster.Tick(Idle, now);
    EXPECT_EQ(TakenOf(roster), "hold 0");
    now += std::chrono::seconds(1);
    roster.Listed({Up("a"), Up("b")}, now);
    roster.Tick(Idle, now);
    EXPECT_EQ(TakenOf(roster), "take 0");
  }
}

TEST(Roster, MoreWorkersThanSlotsAreRefusedOnceAndSeatedWhenThereIsRoom) {
  Roster roster(2);
  const std::vector<Endpoint> four = {Up("a"), Up("b"), Up("c"), Up("d")};
  roster.Listed(four, kRosterStart);
  EXPECT_EQ(TakenOf(roster), "add a at 0, add b at 1, refuse 2 c");
  roster.Listed(four, kRosterStart);
  EXPECT_EQ(TakenOf(roster), "");
  roster.Listed({Up("b"), Up("c"), Up("d")}, kRosterStart);
  EXPECT_EQ(TakenOf(roster), "hold 0") << "a still has its slot";
  roster.Tick(Idle, kRosterStart + Roster::kLinger);
  EXPECT_EQ(TakenOf(roster), "drop 0, add c at 0, refuse 1 d");
}

}  // namespace
}  // namespace baton::router
