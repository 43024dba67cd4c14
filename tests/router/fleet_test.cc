// A fleet: who meets whom, who is held and who may leave, and what it takes of what workers say.
#include "router/fleet/fleet.h"

#include <gtest/gtest.h>

#include "tests/caught_log.h"
#include "tests/router/fleet_world.h"

namespace baton::router {
namespace {

constexpr WorkerRole kAll = WorkerRole::kBoth, kPrefills = WorkerRole::kPrefill, kDecodes = WorkerRole::kDecode;

TEST_F(FleetTest, AProcessAtTwoAddressesTakesRequestsAtTheOneThatIsLeftAndIsReleasedOnce) {
  Worker("a", kAll, "p"), Worker("b", kAll, "p");
  Start(), List({"a"});
  List({"b"}), List({"a", "b"});  // it has moved, and is listed where it was again
  EXPECT_EQ(View("a").held, "it serves at b");
  EXPECT_EQ(fleet_->Status().at(0).state, "draining") << "as people see it";
  const CaughtLog log;
  List({"a"});
  EXPECT_EQ(View("a").held, "");
  loop_.Advance(std::chrono::seconds(1));
  EXPECT_EQ(log.Count("takes requests again"), 1);
}

TEST_F(FleetTest, APrefillWorkerThatComesMeetsTheDecodeWorkersThatServeAndTakeKv) {
  Worker("near", kDecodes, "d1"), Worker("leaves", kDecodes, "d2"), Worker("takes none", kDecodes, "d3");
  far_["takes none"].facts.landing_address.clear();
  FarWorker& prefill = Worker("prefill", kPrefills, "p");
  Start(), List({"near", "leaves", "takes none"});
  WatchEvent drains;
  drains.kind = WatchEvent::Kind::kState, drains.state = LinkState::kDraining;
  Say("leaves", drains);
  List({"near", "leaves", "takes none", "prefill"});
  EXPECT_EQ(prefill.met, (std::vector<std::string>{"lands at d1"}));
}

TEST_F(FleetTest, AnotherPrefillWorkerHasTheNumericsOfTheDecodeWorkerWhereOneHas) {
  Worker("d", kDecodes, "d"), Worker("alike", kPrefills, "p1");
  FarWorker& other = Worker("other", kPrefills, "p2");
  other.facts.numerics_id = "y", other.facts.prefill_tokens_per_s = 1e6;
  Start(), List({"d", "alike", "other"});
  const auto chosen = fleet_->ChoosePrefill(Request(64), {}, View("d").id);
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(chosen->worker, View("alike").id) << "though the other one is faster";
  EXPECT_EQ(fleet_->ChoosePrefill(Request(64), {View("alike").id}, View("d").id)->worker, View("other").id);
}

TEST_F(FleetTest, UntilAStepHasRunItTakesAsLongAsTheWorkerSaidWhenItWasGreeted) {
  Worker("a", kAll, "p").facts.decode_step_ms = 30;
  Start(), List({"a"});
  WatchEvent load;
  load.load.running = 4;  // of 8
  Say("a", load);
  EXPECT_DOUBLE_EQ(fleet_->Explain(Request(64))->costs.at(0).cost.decode_slowdown_ms, 30 * 64 * 0.5);
  load.load.decode_step_ms = 20;
  Say("a", load);
  EXPECT_DOUBLE_EQ(fleet_->Explain(Request(64))->costs.at(0).cost.decode_slowdown_ms, 20 * 64 * 0.5);
}

TEST_F(FleetTest, APathThatNobodyHasMeasuredIsAsFastAsThoseThatSomebodyHasInTheMean) {
  Worker("d", kDecodes, "d"), Worker("met", kPrefills, "p1"), Worker("unmet", kPrefills, "p2");
  for (auto& [address, far] : far_) far.facts.kv_bytes_per_token = 1000000;
  config_.local_prefill_max_tokens = 0;
  Start(), List({"d", "met", "unmet"});
  WatchEvent load;
  load.load.handoff.peers =
      std::make_shared<const std::vector<PeerPath>>(std::vector<PeerPath>{{"d", "tcp", "way", 2}});
  load.load.handoff.mean_peer_gigabytes_per_second = 2;
  Say("met", load);
  const auto route = fleet_->Explain(Request(64));
  ASSERT_EQ(route->costs.size(), 2u);
  for (const ExplainedCost& one : route->costs) EXPECT_DOUBLE_EQ(one.cost.transfer_ms, 64 * 0.5) << one.prefill->index;
  EXPECT_EQ(fleet_->PathOf(View("met").id, View("d").id).path, "way");
  EXPECT_EQ(fleet_->PathOf(View("unmet").id, View("d").id).path, "");
}

TEST_F(FleetTest, AnAnswerThatHasBegunGoesOnOnOneWorker) {
  Worker("d", kDecodes, "d"), Worker("p", kPrefills, "p").facts.prefill_tokens_per_s = 1e6;
  config_.local_prefill_max_tokens = 0;
  Start(), List({"d", "p"});
  EXPECT_NE(fleet_->Choose(Request(64), 64, {}, /*with_prefill=*/true, "")->prefill, nullptr);
  EXPECT_EQ(fleet_->Choose(Request(64), 64, {}, /*with_prefill=*/false, "x")->prefill, nullptr);
}

TEST_F(FleetTest, WhereNoWorkerIsReadyTheReasonHasThePhaseOfOneThatLoads) {
  FarWorker& far = Worker("a", kAll, "p");
  Start();
  const auto why = [&] { return std::string(fleet_->Choose(Request(4), 4, {}, true, "").status().message()); };
  EXPECT_EQ(why().find(" %)"), std::string::npos) << why();
  far.phase = "reading weights", far.progress = 0.4;
  List({"a"});
  EXPECT_NE(why().find(" (reading weights 40 %)"), std::string::npos) << why();
}

TEST_F(FleetTest, AChangeOfARoleStaysWhereAnotherDecodes) {
  FarWorker& changes = Worker("a", kDecodes, "before");
  Worker("b", kDecodes, "b");
  Start(), List({"a", "b"});
  fleet_->Flip({.worker = "a", .to = kPrefills}, [](const absl::StatusOr<LinkView>&) {});
  loop_.Advance(std::chrono::seconds(1));
  ASSERT_TRUE(changes.flips);
  Worker("a", kPrefills, "after");
  std::exchange(changes.flips, nullptr)({absl::OkStatus(), "after", 0, 0});
  changes.relay.on_closed(absl::UnavailableError("it changes"));
  loop_.Advance(std::chrono::seconds(2));
  EXPECT_EQ(View("a").flip->stage, FlipStage::kDone) << View("a").flip->why;
  EXPECT_FALSE(changes.flips) << "nobody orders it back";
}

TEST_F(FleetTest, AWorkerThatHasLeftBeforeItAnsweredChangesNothing) {
  config_.heartbeat_timeout_ms = config_.step_stall_ms = 1000000;
  Worker("a", kAll, "p");
  FarWorker& slow = Worker("b", kAll, "q");
  slow.facts.vocab_size = 50, slow.thinks = true;
  Start(), List({"a", "b"}), List({"a"});
  loop_.Advance(2 * Roster::kLinger);
  ASSERT_EQ(fleet_->Views().size(), 1u);
  slow.answers();
  EXPECT_EQ(fleet_->model_facts()->vocab_size, 100);
  slow.answers = nullptr;
}

TEST_F(FleetTest, WhereOnlyPrefillWorkersAreReadyARequestMayBeTriedAgain) {
  Worker("p", kPrefills, "p");
  Start(), List({"p"});
  EXPECT_EQ(fleet_->Choose(Request(4), 4, {}, true, "").status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(FleetTest, APrefillWorkerThatIsLostKeepsADecodeWorkerFromNothing) {
  FarWorker& lost = Worker("p", kPrefills, "p");
  Worker("d", kDecodes, "d");
  Start(), List({"p"});
  lost.greets = absl::UnavailableError("nobody");
  lost.relay.on_closed(absl::UnavailableError("gone"));
  List({"p", "d"});
  EXPECT_TRUE(fleet_->ReadinessNow().ready) << fleet_->ReadinessNow().detail;
}

TEST_F(FleetTest, AWorkerAloneMayComeBackWithAnotherModel) {
  FarWorker& far = Worker("a", kAll, "first");
  Start(), List({"a"});
  far.facts.incarnation = "second", far.facts.model_digest = "other", far.facts.vocab_size = 50;
  far.relay.on_closed(absl::UnavailableError("gone"));
  loop_.Advance(std::chrono::seconds(1));
  EXPECT_EQ(View("a").state, LinkState::kReady) << View("a").detail;
  EXPECT_EQ(fleet_->model_facts()->vocab_size, 50);
}

TEST_F(FleetTest, AWorkerWhoseEventsEndIsLost) {
  FarWorker& far = Worker("a", kAll, "p");
  Start(), List({"a"});
  EXPECT_EQ(View("a").state, LinkState::kReady);
  far.greets = absl::UnavailableError("nobody");
  far.watch.on_closed(absl::UnavailableError("cut"));
  EXPECT_EQ(View("a").state, LinkState::kLost);
}

TEST_F(FleetTest, WorkersOfOneNameAreBothTakenAndALineSaysWhere) {
  Worker("a", kAll, "first").facts.worker_id = "name";
  Worker("b", kAll, "second").facts.worker_id = "name";
  Start();
  const CaughtLog log;
  List({"a", "b"});
  EXPECT_EQ(log.Count("worker name: 2 workers have this name, others are at a"), 1) << log.text();
  EXPECT_EQ(View("b").state, LinkState::kReady);
}

TEST_F(FleetTest, OnceRequestsCouldBeTakenAWorkerThatIsListedLaterIsNotWaitedFor) {
  Worker("p", kPrefills, "p"), Worker("d", kDecodes, "d"), Worker("never there", kDecodes, "n");
  far_["never there"].greets = absl::UnavailableError("nobody");
  Start(), List({"p", "d", "never there"});
  EXPECT_FALSE(fleet_->ReadinessNow().ready) << "it is waited for at the start";
  List({"p", "d"});
  EXPECT_TRUE(fleet_->ReadinessNow().ready);
  List({"p", "d", "never there"});
  EXPECT_TRUE(fleet_->ReadinessNow().ready);
}

class NobodyHears final : public LegEvents {
 public:
  explicit NobodyHears(EventLoop& loop) : loop_(loop) {}
  EventLoop& loop() override { return loop_; }
  void OnNews(RelayNews&&) override {}
  void OnAnswer(const LegKey&, LegAnswer) override {}
  void OnWorkerLost(WorkerId, const absl::Status&) override {}

 private:
  EventLoop& loop_;
};

TEST_F(FleetTest, AWorkerThatIsListedNoMoreStaysUntilItsLastLegIsOver) {
  config_.heartbeat_timeout_ms = config_.step_stall_ms = 1000000;
  Worker("a", kAll, "p"), Worker("b", kAll, "q");
  Start(), List({"a", "b"});
  const WorkerId id = View("a").id;
  fleet_->Send(id, Request(4), ReserveLeg{{"r", 1, 0}}, std::make_shared<NobodyHears>(loop_));
  List({"b"});
  loop_.Advance(2 * Roster::kLinger);
  EXPECT_EQ(View("a").id, id);
  fleet_->Forget(id, "r");
  loop_.Advance(std::chrono::seconds(1));
  EXPECT_EQ(fleet_->Views().size(), 1u);
}

}  // namespace
}  // namespace baton::router
