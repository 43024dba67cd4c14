#include "router/fleet/link_flow.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "common/str_cat.h"
#include "tests/state_table.h"

namespace baton::router {
namespace {

using std::chrono::milliseconds;
constexpr const char* kWorker = "first";  // its incarnation
constexpr TimePoint kLinkStart{std::chrono::seconds(100)};

LinkLimits LimitsOfLink() {
  LinkLimits limits;
  limits.heartbeat = milliseconds(3000);
  limits.step_stall = milliseconds(10000);
  limits.step_stall_factor = 20;
  limits.backoff_min = milliseconds(100);
  limits.backoff_max = milliseconds(1000);
  return limits;
}

std::string DescribeLink(const LinkAction& action) {
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
    std::string operator()(const ArmLink& a) const { return StrCat("arm +", Milliseconds(a.at - kLinkStart)); }
  };
  return std::visit(Text{}, action);
}

std::string TakenBy(LinkFlow& flow) {
  std::string out;
  for (const LinkAction& action : flow.TakeActions())
    absl::StrAppend(&out, out.empty() ? "" : ", ", DescribeLink(action));
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
LinkFlow LinkIn(LinkFlow::State state) {
  LinkFlow flow(LimitsOfLink());
  if (state != LinkFlow::State::kIdle) flow.Start(kLinkStart);
  if (state == LinkFlow::State::kPausing) flow.Loading("weights", 0.5, kLinkStart);
  if (state == LinkFlow::State::kServing) {
    flow.Admitted(7, kWorker, kLinkStart);
    flow.Watched(1, Event(WatchEvent::Kind::kSnapshot, 1), kLinkStart);
  }
  if (state == LinkFlow::State::kStopped) flow.Stop(absl::CancelledError("over"));
  flow.TakeActions();
  EXPECT_EQ(flow.state(), state);
  return flow;
}

const absl::Status kGone = absl::UnavailableError("gone");
constexpr std::array kLinkStates = {"Idle", "Dialling", "Pausing", "Serving", "Stopped"};
using ApplyToLink = std::function<void(LinkFlow&)>;
const std::pair<std::string, ApplyToLink> kLinkEvents[] = {
    {"start", [](LinkFlow& f) { f.Start(kLinkStart); }},
    {"unreachable", [](LinkFlow& f) { f.Unreachable(kGone, kLinkStart); }},
    {"other key", [](LinkFlow& f) { f.KeyRefused(kGone, true, kLinkStart); }},
    {"other key, mine is fixed", [](LinkFlow& f) { f.KeyRefused(kGone, false, kLinkStart); }},
    {"loading", [](LinkFlow& f) { f.Loading("weights", 0.5, kLinkStart); }},
    {"mismatch", [](LinkFlow& f) { f.Mismatch(kGone, kLinkStart); }},
    {"admitted", [](LinkFlow& f) { f.Admitted(9, kWorker, kLinkStart); }},
    {"stored", [](LinkFlow& f) { f.Watched(1, Event(WatchEvent::Kind::kStored, 2, {3, 4}, 7), kLinkStart); }},
    {"stored, digest differs",
     [](LinkFlow& f) { f.Watched(1, Event(WatchEvent::Kind::kStored, 2, {3}, 4), kLinkStart); }},
    {"removed", [](LinkFlow& f) { f.Watched(1, Event(WatchEvent::Kind::kRemoved, 2, {3}, ~uint64_t{2}), kLinkStart); }},
    {"removed, digest differs",
     [](LinkFlow& f) { f.Watched(1, Event(WatchEvent::Kind::kRemoved, 2, {3}, 0), kLinkStart); }},
    {"another snapshot", [](LinkFlow& f) { f.Watched(1, Event(WatchEvent::Kind::kSnapshot, 2, {3}), kLinkStart); }},
    {"an event is missing", [](LinkFlow& f) { f.Watched(1, Load(3, 1, 0), kLinkStart); }},
    {"an event twice", [](LinkFlow& f) { f.Watched(1, Load(1, 1, 0), kLinkStart); }},
    {"load", [](LinkFlow& f) { f.Watched(1, Load(2, 1, 0), kLinkStart); }},
    {"draining", [](LinkFlow& f) { f.Watched(1, Drains(2), kLinkStart); }},
    {"snapshot of another incarnation",
     [](LinkFlow& f) { f.Watched(1, OfAnother(Event(WatchEvent::Kind::kSnapshot, 1)), kLinkStart); }},
    {"load of another incarnation", [](LinkFlow& f) { f.Watched(1, OfAnother(Load(2, 1, 0)), kLinkStart); }},
    {"event of an older round", [](LinkFlow& f) { f.Watched(0, Load(2, 1, 0), kLinkStart); }},
    {"watch closed", [](LinkFlow& f) { f.WatchClosed(1, kGone, kLinkStart); }},
    {"older watch closed", [](LinkFlow& f) { f.WatchClosed(0, kGone, kLinkStart); }},
    {"relay closed", [](LinkFlow& f) { f.RelayClosed(7, kGone, kLinkStart); }},
    {"older relay closed", [](LinkFlow& f) { f.RelayClosed(6, kGone, kLinkStart); }},
    {"timer", [](LinkFlow& f) { f.Timer(kLinkStart + milliseconds(100)); }},
    {"timer, time to renew", [](LinkFlow& f) { f.Timer(kLinkStart + milliseconds(500)); }},
    {"dial now", [](LinkFlow& f) { f.DialNow(); }},
    {"stop", [](LinkFlow& f) { f.Stop(absl::CancelledError("over")); }},
};

// clang-format off
const std::string kLinkTable = R"(
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
  ExpectEveryCell(
      kLinkTable, kLinkStates, kLinkEvents, [](const std::string&, const char* name, const ApplyToLink& apply) {
        const auto index =
            static_cast<LinkFlow::State>(std::ranges::find(kLinkStates, std::string_view(name)) - kLinkStates.begin());
        LinkFlow flow = LinkIn(index);
        apply(flow);
        return CellOf(name, kLinkStates[static_cast<size_t>(flow.state())], TakenBy(flow));
      });
}

TEST(LinkFlow, PausesDoubleToTheirLimitAndBeginAnewAfterASession) {
  LinkFlow flow(LimitsOfLink());
  flow.Start(kLinkStart);
  for (const int pause : {100, 200, 400, 800, 1000, 1000}) {
    flow.TakeActions();
    flow.Unreachable(kGone, kLinkStart);
    EXPECT_EQ(TakenBy(flow), StrCat("show connecting, arm +", pause));
    flow.Timer(kLinkStart);
  }
  const auto session = [&flow](uint64_t number, Duration lasts) {
    flow.Admitted(number, kWorker, kLinkStart - lasts);
    flow.TakeActions();
    flow.RelayClosed(number, kGone, kLinkStart);
    return TakenBy(flow);
  };
  EXPECT_EQ(session(7, milliseconds(999)), "show lost, end, arm +1000")
      << "a session that ends soon is one more failure";
  flow.Timer(kLinkStart);
  EXPECT_EQ(TakenBy(flow), "dial");
  EXPECT_EQ(session(8, milliseconds(1000)), "show lost, end, arm +100") << "one that lasted ends the row";
  flow.Timer(kLinkStart);
  flow.TakeActions();
  flow.Unreachable(kGone, kLinkStart);
  EXPECT_EQ(TakenBy(flow), "show connecting, arm +200") << "its end was the first failure";
  flow.Timer(kLinkStart);
  flow.Loading("weights", 0.5, kLinkStart);
  flow.Timer(kLinkStart);
  flow.TakeActions();
  flow.Unreachable(kGone, kLinkStart);
  EXPECT_EQ(TakenBy(flow), "show connecting, arm +100") << "a worker that loads has answered";
}

TEST(LinkFlow, ARefusedKeyIsAdoptedOnceAndThenAMismatch) {
  LinkFlow flow(LimitsOfLink());
  flow.Start(kLinkStart);
  flow.KeyRefused(kGone, true, kLinkStart);
  EXPECT_EQ(TakenBy(flow), "dial, dial with no key");
  flow.KeyRefused(kGone, true, kLinkStart);
  EXPECT_EQ(TakenBy(flow), "show mismatch, arm +1000");
}

/// Ticks every 100 ms up to `until`; what it did besides renewing, and when.
std::string RunTo(LinkFlow& flow, TimePoint& now, TimePoint until, bool has_unread = false) {
  std::string out;
  while (now < until) {
    now += milliseconds(100);
    flow.Timer(now, has_unread);
    for (const LinkAction& action : flow.TakeActions()) {
      if (std::holds_alternative<ArmLink>(action) || std::holds_alternative<RenewLegs>(action)) continue;
      absl::StrAppend(&out, out.empty() ? "" : ", ", DescribeLink(action), " +", Milliseconds(now - kLinkStart));
    }
  }
  return out;
}

TEST(LinkFlow, AWorkerWhoseReportsLieUnreadIsNotSilent) {
  LinkFlow flow(LimitsOfLink());
  flow.Start(kLinkStart);
  flow.Admitted(7, kWorker, kLinkStart);
  flow.TakeActions();
  TimePoint now = kLinkStart;
  EXPECT_EQ(RunTo(flow, now, kLinkStart + 9 * LimitsOfLink().heartbeat, /*has_unread=*/true), "");
  EXPECT_FALSE(flow.SeemsSilent());
  const std::string lost = RunTo(flow, now, now + LimitsOfLink().heartbeat + milliseconds(100));
  EXPECT_TRUE(flow.state() == LinkFlow::State::kPausing) << "nothing lies unread any more: " << lost;
}

TEST(LinkFlow, AWorkerWhoseWordsLieUnreadForTenHeartbeatsIsLost) {
  LinkFlow flow = LinkIn(LinkFlow::State::kServing);
  TimePoint now = kLinkStart;
  EXPECT_EQ(RunTo(flow, now, kLinkStart + milliseconds(29000), /*has_unread=*/true), "");
  flow.Watched(1, Load(1, 1, 1), now);
  flow.TakeActions();
  const TimePoint heard = now;
  EXPECT_EQ(RunTo(flow, now, heard + milliseconds(15000), /*has_unread=*/true), "") << "counted from the latest report";
  EXPECT_EQ(RunTo(flow, now, now + milliseconds(2000)), "") << "they were read, and were none";
  EXPECT_EQ(RunTo(flow, now, heard + milliseconds(32000), /*has_unread=*/true), "");
  EXPECT_EQ(RunTo(flow, now, heard + milliseconds(32100), /*has_unread=*/true), "show lost +61100, end +61100");
}

TEST(LinkFlow, ARouterThatStoodStillDoesNotTakeItsOwnSleepForWordsThatLieUnread) {
  LinkFlow flow = LinkIn(LinkFlow::State::kServing);
  TimePoint now = kLinkStart;
  for (int sleep = 0; sleep < 5; ++sleep) {
    now += milliseconds(60000);
    EXPECT_EQ(RunTo(flow, now, now + milliseconds(100), /*has_unread=*/true), "") << "after sleep " << sleep;
  }
}

TEST(LinkFlow, AQuietWorkerSeemsSilentOnceAReportIsLate) {
  LinkLimits limits = LimitsOfLink();
  limits.report = milliseconds(600);
  LinkFlow flow(limits);
  flow.Start(kLinkStart);
  flow.Admitted(7, kWorker, kLinkStart);
  flow.TakeActions();
  TimePoint now = kLinkStart;
  EXPECT_EQ(RunTo(flow, now, kLinkStart + milliseconds(600)), "");
  EXPECT_FALSE(flow.SeemsSilent());
  RunTo(flow, now, kLinkStart + milliseconds(700));
  EXPECT_TRUE(flow.SeemsSilent());
  EXPECT_EQ(RunTo(flow, now, kLinkStart + milliseconds(3000)), "") << "and is lost no sooner";
  EXPECT_NE(RunTo(flow, now, kLinkStart + milliseconds(3100)), "");
}

TEST(LinkFlow, AWorkerThatReportsNothingIsLostAfterTheHeartbeatTimeout) {
  LinkFlow flow = LinkIn(LinkFlow::State::kServing);
  TimePoint now = kLinkStart;
  EXPECT_EQ(RunTo(flow, now, kLinkStart + milliseconds(3000)), "");
  EXPECT_EQ(RunTo(flow, now, kLinkStart + milliseconds(3100)), "show lost +3100, end +3100");
}

TEST(LinkFlow, ARouterThatStoodStillDoesNotTakeItsOwnSleepForTheWorkersSilence) {
  LinkFlow flow = LinkIn(LinkFlow::State::kServing);
  TimePoint now = kLinkStart;
  for (int sleep = 0; sleep < 5; ++sleep) {
    now += milliseconds(60000);  // the timer comes before what waits in the sockets
    EXPECT_EQ(RunTo(flow, now, now + milliseconds(100)), "") << "after sleep " << sleep;
    flow.Watched(1, Load(static_cast<uint64_t>(2 + sleep), 1, 1), now);
    flow.TakeActions();
  }
  EXPECT_EQ(RunTo(flow, now, now + milliseconds(3000)), "");
  EXPECT_NE(RunTo(flow, now, now + milliseconds(100)), "") << "silence while the router listens counts";
}

TEST(LinkFlow, WorkWithoutStepsIsAStallAndTheWorkersOwnPredictionMakesItPatient) {
  for (const double predicted_ms : {0.0, 1000.0}) {
    LinkFlow flow = LinkIn(LinkFlow::State::kServing);
    TimePoint now = kLinkStart;
    std::string lost;
    for (uint64_t number = 2; lost.empty() && now < kLinkStart + milliseconds(60000); ++number) {
      flow.Watched(1, Load(number, 5, 1, predicted_ms), now);
      flow.TakeActions();
      lost = RunTo(flow, now, now + milliseconds(100));
    }
    EXPECT_EQ(lost, predicted_ms == 0 ? "show lost +10100, end +10100" : "show lost +20100, end +20100");
  }
}

TEST(LinkFlow, AnIdleWorkerMakesNoStepsAndIsNotStalled) {
  LinkFlow flow = LinkIn(LinkFlow::State::kServing);
  TimePoint now = kLinkStart;
  for (uint64_t number = 2; now < kLinkStart + milliseconds(60000); ++number) {
    flow.Watched(1, Load(number, 5, 0), now);
    flow.TakeActions();
    ASSERT_EQ(RunTo(flow, now, now + milliseconds(100)), "");
  }
}

TEST(LinkFlow, LegsThatAreWaitedForAreRenewedTwiceASecond) {
  LinkFlow flow = LinkIn(LinkFlow::State::kServing);
  int renewals = 0;
  for (int tick = 1; tick <= 20; ++tick) {
    flow.Timer(kLinkStart + milliseconds(100 * tick));
    for (const LinkAction& action : flow.TakeActions()) renewals += std::holds_alternative<RenewLegs>(action);
  }
  EXPECT_EQ(renewals, 4);
}

TEST(LinkFlow, ADrainingWorkerStaysShownAsDrainingWhenASnapshotIsAskedForAgain) {
  LinkFlow flow = LinkIn(LinkFlow::State::kServing);
  flow.Watched(1, Drains(2), kLinkStart);
  flow.Watched(1, Load(9, 1, 0), kLinkStart);
  EXPECT_EQ(TakenBy(flow), "show draining, show draining, watch 2");
  EXPECT_EQ(flow.snapshots_again(), 1u);
}

TEST(LinkFlow, HashesThatAreNotWholeEndTheSessionWithTheirNumber) {
  LinkFlow flow = LinkIn(LinkFlow::State::kServing);
  WatchEvent event = Event(WatchEvent::Kind::kRemoved, 2, {3, 4});
  event.stray_bytes = 1;
  flow.Watched(1, event, kLinkStart);
  std::string why;
  for (const LinkAction& action : flow.TakeActions()) {
    if (const auto* end = std::get_if<EndSession>(&action)) why = std::string(end->why.message());
  }
  EXPECT_EQ(why, "event 2 has 33 bytes of hashes, not a multiple of 16");
}

/// Its relay ends at `at`, and it is admitted again as session 8, whose watch is round 3.
TimePoint Reconnect(LinkFlow& flow, TimePoint at) {
  flow.RelayClosed(7, kGone, at);
  for (; flow.state() == LinkFlow::State::kPausing; at += milliseconds(100)) flow.Timer(at, false);
  flow.Admitted(8, kWorker, at);
  EXPECT_NE(TakenBy(flow).find("session 8, watch 3, show ready"), std::string::npos);
  return at;
}

TEST(LinkFlow, AWatchThatBeginsAnewCountsItsEventsAndUnitsFromTheStart) {
  LinkFlow flow = LinkIn(LinkFlow::State::kServing);
  flow.Watched(1, Event(WatchEvent::Kind::kStored, 2, {3, 4}, 7), kLinkStart);
  flow.Watched(1, Drains(3), kLinkStart);
  const TimePoint now = Reconnect(flow, kLinkStart);
  flow.Watched(3, Event(WatchEvent::Kind::kSnapshot, 1, {5}), now);
  EXPECT_EQ(TakenBy(flow), "store") << "what was known before was forgotten with the session";
  flow.Watched(3, Event(WatchEvent::Kind::kStored, 2, {6}, 11), now);
  EXPECT_EQ(TakenBy(flow), "store");
  flow.Watched(3, Event(WatchEvent::Kind::kStored, 9, {7}, 18), now);
  EXPECT_EQ(TakenBy(flow), "show ready, watch 4") << "some are missing; it does not drain any more";
}

TEST(LinkFlow, ASnapshotThatNobodyAskedForIsTheWholeOfWhatIsKnown) {
  LinkFlow flow = LinkIn(LinkFlow::State::kServing);
  flow.Watched(1, Event(WatchEvent::Kind::kStored, 2, {3, 4}, 7), kLinkStart);
  flow.TakeActions();
  flow.Watched(1, Event(WatchEvent::Kind::kSnapshot, 3, {5}), kLinkStart);
  flow.Watched(1, Event(WatchEvent::Kind::kStored, 4, {6}, 11), kLinkStart);
  EXPECT_EQ(TakenBy(flow), "store alone, store");
}

TEST(LinkFlow, AWorkerThatIsGreetedAgainHasItsTimeAnew) {
  LinkFlow flow = LinkIn(LinkFlow::State::kServing);
  TimePoint now = kLinkStart;
  const auto listen = [&](Duration time, bool unread, uint64_t* number, uint64_t steps) {
    for (const TimePoint end = now + time; now < end;) {
      now += OwnTime::kTick;
      if (number != nullptr) flow.Watched(3, Load((*number)++, steps, 1), now);
      flow.Timer(now, unread);
    }
  };
  flow.Watched(1, Load(2, 100, 1), now);
  listen(LinkLimits::kUnreadHeartbeats * milliseconds(3000) - milliseconds(500), /*unread=*/true, nullptr, 0);
  ASSERT_EQ(flow.state(), LinkFlow::State::kServing);
  now = Reconnect(flow, now);
  listen(milliseconds(1000), /*unread=*/true, nullptr, 0);
  EXPECT_EQ(flow.state(), LinkFlow::State::kServing) << "what lay unread was of the session before";
  flow.Watched(3, Event(WatchEvent::Kind::kSnapshot, 1), now);
  listen(milliseconds(1500), false, nullptr, 0);
  uint64_t number = 2;
  listen(milliseconds(9500), false, &number, 100);
  EXPECT_EQ(flow.state(), LinkFlow::State::kServing) << "it has made a step: as many as before, of another session";
}

}  // namespace
}  // namespace baton::router
