#include "router/fleet/link_flow.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "common/str_cat.h"
#include "tests/state_table.h"

namespace baton::router {
namespace {

using State = LinkFlow::State;
constexpr const char* kWorker = "first";  // its incarnation
constexpr TimePoint kStart{std::chrono::seconds(100)};

Duration Ms(int64_t ms) { return std::chrono::milliseconds(ms); }

LinkLimits Limits() {
  LinkLimits limits;
  limits.heartbeat = Ms(3000);
  limits.step_stall = Ms(10000);
  limits.step_stall_factor = 20;
  limits.backoff_min = Ms(100);
  limits.backoff_max = Ms(1000);
  return limits;
}

std::string Describe(const LinkAction& action) {
  struct Text {
    std::string operator()(const DialWorker& a) const { return a.other_key ? "dial with no key" : "dial"; }
    std::string operator()(const OpenSession& a) const { return StrCat("session ", a.session); }
    std::string operator()(const OpenWatch& a) const { return StrCat("watch ", a.round); }
    std::string operator()(const StoreUnits& a) const { return a.forget_others ? "store alone" : "store"; }
    std::string operator()(const RemoveUnits&) const { return "remove"; }
    std::string operator()(const TakeLoad&) const { return "load"; }
    std::string operator()(const EndSession&) const { return "end"; }
    std::string operator()(const RenewLegs&) const { return "renew"; }
    std::string operator()(const ShowLink& a) const { return StrCat("show ", LinkStateName(a.state)); }
    std::string operator()(const NowServing&) const { return "serve"; }
    std::string operator()(const ArmLink& a) const { return StrCat("arm +", Milliseconds(a.at - kStart)); }
  };
  return std::visit(Text{}, action);
}

std::string Taken(LinkFlow& flow) {
  std::string out;
  for (const LinkAction& action : flow.TakeActions()) absl::StrAppend(&out, out.empty() ? "" : ", ", Describe(action));
  return out;
}

WatchEvent Event(WatchEvent::Kind kind, uint64_t number, std::vector<uint64_t> keys = {}, uint64_t digest = 0) {
  WatchEvent event;
  event.incarnation = kWorker;
  event.kind = kind;
  event.sequence_number = number;
  event.keys = std::move(keys);
  event.digest = digest;
  event.snapshot_last = true;
  return event;
}

WatchEvent Load(uint64_t number, uint64_t steps, int32_t running, double predicted_ms = 0) {
  WatchEvent event = Event(WatchEvent::Kind::kLoad, number);
  event.load.steps = steps;
  event.load.running = running;
  event.load.predicted_step_ms = predicted_ms;
  return event;
}

WatchEvent OfAnother(WatchEvent event) {
  event.incarnation = "second";
  return event;
}

WatchEvent Drains(uint64_t number) {
  WatchEvent event = Event(WatchEvent::Kind::kState, number);
  event.state = LinkState::kDraining;
  return event;
}

/// A link in `state`; kServing: session 7, round 1, an empty snapshot was heard.
LinkFlow FlowIn(State state) {
  LinkFlow flow(Limits());
  if (state != State::kIdle) flow.Start(kStart);
  if (state == State::kPausing) flow.Loading("weights", 0.5, kStart);
  if (state == State::kServing) {
    flow.Admitted(7, kWorker, kStart);
    flow.Watched(1, Event(WatchEvent::Kind::kSnapshot, 1), kStart);
  }
  if (state == State::kStopped) flow.Stop(absl::CancelledError("over"));
  flow.TakeActions();
  EXPECT_EQ(flow.state(), state);
  return flow;
}

const absl::Status kGone = absl::UnavailableError("gone");
constexpr std::array kStates = {"Idle", "Dialling", "Pausing", "Serving", "Stopped"};
using Apply = std::function<void(LinkFlow&)>;
const std::pair<std::string, Apply> kEvents[] = {
    {"start", [](LinkFlow& f) { f.Start(kStart); }},
    {"unreachable", [](LinkFlow& f) { f.Unreachable(kGone, kStart); }},
    {"other key", [](LinkFlow& f) { f.KeyRefused(kGone, true, kStart); }},
    {"other key, mine is fixed", [](LinkFlow& f) { f.KeyRefused(kGone, false, kStart); }},
    {"loading", [](LinkFlow& f) { f.Loading("weights", 0.5, kStart); }},
    {"mismatch", [](LinkFlow& f) { f.Mismatch(kGone, kStart); }},
    {"admitted", [](LinkFlow& f) { f.Admitted(9, kWorker, kStart); }},
    {"stored", [](LinkFlow& f) { f.Watched(1, Event(WatchEvent::Kind::kStored, 2, {3, 4}, 7), kStart); }},
    {"stored, digest differs", [](LinkFlow& f) { f.Watched(1, Event(WatchEvent::Kind::kStored, 2, {3}, 4), kStart); }},
    {"removed", [](LinkFlow& f) { f.Watched(1, Event(WatchEvent::Kind::kRemoved, 2, {3}, ~uint64_t{2}), kStart); }},
    {"removed, digest differs",
     [](LinkFlow& f) { f.Watched(1, Event(WatchEvent::Kind::kRemoved, 2, {3}, 0), kStart); }},
    {"another snapshot", [](LinkFlow& f) { f.Watched(1, Event(WatchEvent::Kind::kSnapshot, 2, {3}), kStart); }},
    {"an event is missing", [](LinkFlow& f) { f.Watched(1, Load(3, 1, 0), kStart); }},
    {"an event twice", [](LinkFlow& f) { f.Watched(1, Load(1, 1, 0), kStart); }},
    {"load", [](LinkFlow& f) { f.Watched(1, Load(2, 1, 0), kStart); }},
    {"draining", [](LinkFlow& f) { f.Watched(1, Drains(2), kStart); }},
    {"snapshot of another incarnation",
     [](LinkFlow& f) { f.Watched(1, OfAnother(Event(WatchEvent::Kind::kSnapshot, 1)), kStart); }},
    {"load of another incarnation", [](LinkFlow& f) { f.Watched(1, OfAnother(Load(2, 1, 0)), kStart); }},
    {"event of an older round", [](LinkFlow& f) { f.Watched(0, Load(2, 1, 0), kStart); }},
    {"watch closed", [](LinkFlow& f) { f.WatchClosed(1, kGone, kStart); }},
    {"older watch closed", [](LinkFlow& f) { f.WatchClosed(0, kGone, kStart); }},
    {"relay closed", [](LinkFlow& f) { f.RelayClosed(7, kGone, kStart); }},
    {"older relay closed", [](LinkFlow& f) { f.RelayClosed(6, kGone, kStart); }},
    {"timer", [](LinkFlow& f) { f.Timer(kStart + Ms(100)); }},
    {"timer, time to renew", [](LinkFlow& f) { f.Timer(kStart + Ms(500)); }},
    {"dial now", [](LinkFlow& f) { f.DialNow(); }},
    {"stop", [](LinkFlow& f) { f.Stop(absl::CancelledError("over")); }},
};

// clang-format off
const std::string kTable = R"(
start                    | →Dialling dial | = | = | = | =
unreachable              | = | →Pausing show connecting, arm +100 | = | = | =
other key                | = | dial with no key | = | = | =
other key, mine is fixed | = | →Pausing show mismatch, arm +1000 | = | = | =
loading                  | = | →Pausing show loading, arm +200 | = | = | =
mismatch                 | = | →Pausing show mismatch, arm +1000 | = | = | =
admitted                 | = | →Serving session 9, watch 1, show ready, serve, arm +100 | = | = | =
stored                   | = | = | = | store | =
stored, digest differs   | = | = | = | store, show ready, watch 2 | =
removed                  | = | = | = | remove | =
removed, digest differs  | = | = | = | remove, show ready, watch 2 | =
another snapshot         | = | = | = | store alone | =
an event is missing      | = | = | = | show ready, watch 2 | =
an event twice           | = | = | = | show ready, watch 2 | =
load                     | = | = | = | load | =
draining                 | = | = | = | show draining | =
snapshot of another incarnation | = | = | = | →Pausing show lost, end, arm +100 | =
load of another incarnation | = | = | = | →Pausing show lost, end, arm +100 | =
event of an older round  | = | = | = | = | =
watch closed             | = | = | = | →Pausing show lost, end, arm +100 | =
older watch closed       | = | = | = | = | =
relay closed             | = | = | = | →Pausing show lost, end, arm +100 | =
older relay closed       | = | = | = | = | =
timer                    | = | = | →Dialling dial | arm +200 | =
timer, time to renew     | = | = | →Dialling dial | renew, arm +600 | =
dial now                 | = | = | →Dialling dial | = | =
stop                     | →Stopped | →Stopped | →Stopped | →Stopped end | =
)";
// clang-format on

TEST(LinkFlow, EveryEventInEveryStateDoesWhatItsCellSays) {
  ExpectEveryCell(kTable, kStates, kEvents, [](const std::string&, const char* name, const Apply& apply) {
    const auto index = static_cast<State>(std::ranges::find(kStates, std::string_view(name)) - kStates.begin());
    LinkFlow flow = FlowIn(index);
    apply(flow);
    return CellOf(name, kStates[static_cast<size_t>(flow.state())], Taken(flow));
  });
}

TEST(LinkFlow, PausesDoubleToTheirLimitAndBeginAnewAfterASession) {
  LinkFlow flow(Limits());
  flow.Start(kStart);
  for (const int pause : {100, 200, 400, 800, 1000, 1000}) {
    flow.TakeActions();
    flow.Unreachable(kGone, kStart);
    EXPECT_EQ(Taken(flow), StrCat("show connecting, arm +", pause));
    flow.Timer(kStart);
  }
  const auto session = [&flow](uint64_t number, Duration lasts) {
    flow.Admitted(number, kWorker, kStart - lasts);
    flow.TakeActions();
    flow.RelayClosed(number, kGone, kStart);
    return Taken(flow);
  };
  EXPECT_EQ(session(7, Ms(999)), "show lost, end, arm +1000") << "a session that ends soon is one more failure";
  flow.Timer(kStart);
  EXPECT_EQ(Taken(flow), "dial");
  EXPECT_EQ(session(8, Ms(1000)), "show lost, end, arm +100") << "one that lasted ends the row";
  flow.Timer(kStart);
  flow.TakeActions();
  flow.Unreachable(kGone, kStart);
  EXPECT_EQ(Taken(flow), "show connecting, arm +200") << "its end was the first failure";
  flow.Timer(kStart);
  flow.Loading("weights", 0.5, kStart);
  flow.Timer(kStart);
  flow.TakeActions();
  flow.Unreachable(kGone, kStart);
  EXPECT_EQ(Taken(flow), "show connecting, arm +100") << "a worker that loads has answered";
}

TEST(LinkFlow, ARefusedKeyIsAdoptedOnceAndThenAMismatch) {
  LinkFlow flow(Limits());
  flow.Start(kStart);
  flow.KeyRefused(kGone, true, kStart);
  EXPECT_EQ(Taken(flow), "dial, dial with no key");
  flow.KeyRefused(kGone, true, kStart);
  EXPECT_EQ(Taken(flow), "show mismatch, arm +1000");
}

/// Ticks every 100 ms up to `until`; what it did besides renewing, and when.
std::string RunTo(LinkFlow& flow, TimePoint& now, TimePoint until) {
  std::string out;
  while (now < until) {
    now += Ms(100);
    flow.Timer(now);
    for (const LinkAction& action : flow.TakeActions()) {
      if (std::holds_alternative<ArmLink>(action) || std::holds_alternative<RenewLegs>(action)) continue;
      absl::StrAppend(&out, out.empty() ? "" : ", ", Describe(action), " +", Milliseconds(now - kStart));
    }
  }
  return out;
}

TEST(LinkFlow, AWorkerThatReportsNothingIsLostAfterTheHeartbeatTimeout) {
  LinkFlow flow = FlowIn(State::kServing);
  TimePoint now = kStart;
  EXPECT_EQ(RunTo(flow, now, kStart + Ms(3000)), "");
  EXPECT_EQ(RunTo(flow, now, kStart + Ms(3100)), "show lost +3100, end +3100");
}

TEST(LinkFlow, ARouterThatStoodStillDoesNotTakeItsOwnSleepForTheWorkersSilence) {
  LinkFlow flow = FlowIn(State::kServing);
  TimePoint now = kStart;
  for (int sleep = 0; sleep < 5; ++sleep) {
    now += Ms(60000);  // the timer comes before what waits in the sockets
    EXPECT_EQ(RunTo(flow, now, now + Ms(100)), "") << "after sleep " << sleep;
    flow.Watched(1, Load(static_cast<uint64_t>(2 + sleep), 1, 1), now);
    flow.TakeActions();
  }
  EXPECT_EQ(RunTo(flow, now, now + Ms(3000)), "");
  EXPECT_NE(RunTo(flow, now, now + Ms(100)), "") << "silence while the router listens counts";
}

TEST(LinkFlow, WorkWithoutStepsIsAStallAndTheWorkersOwnPredictionMakesItPatient) {
  for (const double predicted_ms : {0.0, 1000.0}) {
    LinkFlow flow = FlowIn(State::kServing);
    TimePoint now = kStart;
    std::string lost;
    for (uint64_t number = 2; lost.empty() && now < kStart + Ms(60000); ++number) {
      flow.Watched(1, Load(number, 5, 1, predicted_ms), now);
      flow.TakeActions();
      lost = RunTo(flow, now, now + Ms(100));
    }
    EXPECT_EQ(lost, predicted_ms == 0 ? "show lost +10100, end +10100" : "show lost +20100, end +20100");
  }
}

TEST(LinkFlow, AnIdleWorkerMakesNoStepsAndIsNotStalled) {
  LinkFlow flow = FlowIn(State::kServing);
  TimePoint now = kStart;
  for (uint64_t number = 2; now < kStart + Ms(60000); ++number) {
    flow.Watched(1, Load(number, 5, 0), now);
    flow.TakeActions();
    ASSERT_EQ(RunTo(flow, now, now + Ms(100)), "");
  }
}

TEST(LinkFlow, LegsThatAreWaitedForAreRenewedTwiceASecond) {
  LinkFlow flow = FlowIn(State::kServing);
  int renewals = 0;
  for (int tick = 1; tick <= 20; ++tick) {
    flow.Timer(kStart + Ms(100 * tick));
    for (const LinkAction& action : flow.TakeActions()) renewals += std::holds_alternative<RenewLegs>(action);
  }
  EXPECT_EQ(renewals, 4);
}

TEST(LinkFlow, ADrainingWorkerStaysShownAsDrainingWhenASnapshotIsAskedForAgain) {
  LinkFlow flow = FlowIn(State::kServing);
  flow.Watched(1, Drains(2), kStart);
  flow.Watched(1, Load(9, 1, 0), kStart);
  EXPECT_EQ(Taken(flow), "show draining, show draining, watch 2");
  EXPECT_EQ(flow.snapshots_again(), 1u);
}

TEST(LinkFlow, HashesThatAreNotWholeEndTheSessionWithTheirNumber) {
  LinkFlow flow = FlowIn(State::kServing);
  WatchEvent event = Event(WatchEvent::Kind::kRemoved, 2, {3, 4});
  event.stray_bytes = 1;
  flow.Watched(1, event, kStart);
  std::string why;
  for (const LinkAction& action : flow.TakeActions()) {
    if (const auto* end = std::get_if<EndSession>(&action)) why = std::string(end->why.message());
  }
  EXPECT_EQ(why, "event 2 has 33 bytes of hashes, not a multiple of 16");
}

}  // namespace
}  // namespace baton::router
