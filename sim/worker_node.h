// What both simulated workers share: a real scheduler with its block pool and executor over the fake model, the event
// hub of its watchers, the loop of its transfer thread, and the turns of all of them in virtual time. After every turn
// each block has an owner who knows of it.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/protocol_versions.h"
#include "kvtransfer/transports/transports.h"
#include "proto/worker.pb.h"
#include "router/router_config.h"
#include "sim/engine_part.h"
#include "sim/link_network.h"
#include "sim/process.h"
#include "sim/quiet_steps.h"
#include "sim/scenario.h"
#include "sim/token_times.h"
#include "sim/unkind_transport.h"
#include "worker/process/measured_rates.h"
#include "worker/process/role_service.h"
#include "worker/relay/event_hub.h"
#include "worker/transfer/transfer_loop.h"

namespace baton::sim {

/// What a router asked a worker for, as the others get to know it where they say each other's keys.
struct Overheard {
  std::string router;
  v1::RequestKey key;
  std::string session{};  ///< that it reserved it in; empty: it did not
  std::optional<v1::Attach> attach{};
};

/// What the workers of a cluster share.
struct Plant {
  const ClusterScenario& scenario;
  Timeline& time;
  const bool& faults_on;
  FaultCounters& faults;
  TransportMaker transports;  ///< kind ones; workers make theirs unkind
  std::string& broken;        ///< the first promise that was broken
  EnginePart& engines;
  /// Of plans, which want time and not proofs: links that cost time in place of `transports`, steps of decodes that
  /// nothing disturbs taken as one, and nothing looked at after every turn. Null: of proofs.
  LinkNetwork* links = nullptr;
  TokenTimes* token_times = nullptr;             ///< of plans
  const router::RouterConfig* router = nullptr;  ///< of plans
  bool plans() const { return links != nullptr; }
  void Break(const std::string& promise) const {
    if (broken.empty()) broken = promise;
  }
};

class WorkerNode : public Process {
 public:
  /// `odd`: it computes with other numerics.
  WorkerNode(const Plant& plant, std::string name, bool odd);
  /// Of this life, and of its role.
  std::string incarnation() const { return StrCat(name_, ".", life(), changes_ == 0 ? "" : StrCat(".", changes_)); }
  const std::string& name() const { return name_; }
  bool odd() const { return odd_; }
  std::string numerics_id() const { return odd_ ? "n1" : "n0"; }
  /// Of this life.
  const ProtocolVersions& kv_protocol() const { return kv_protocol_; }
  /// The release of its next processes.
  void Upgrade(const ProtocolVersions& kv_protocol) { next_kv_protocol_ = kv_protocol; }
  virtual v1::WorkerRole role() const = 0;
  /// It was told to, and has not answered.
  virtual bool changes_role() const { return false; }
  /// The role that its next process begins with; which may be another.
  virtual v1::WorkerRole begins_as() const { return role(); }
  virtual void BeginAs(v1::WorkerRole) {}
  /// Its machine is not there: nobody says that it is not.
  bool host_gone() const { return host_gone_; }
  /// Dies with its machine, until Start.
  void Vanish() {
    host_gone_ = true;
    Kill();
  }
  /// The process is there, but not yet its model, or not its role.
  bool loading() const { return time_.Now() < loaded_at_; }

  // ---- what routers call (sim/worker_service.h)
  v1::HandshakeReply Describe() const;
  void AddWatcher(std::shared_ptr<worker::WatchSink> sink, const worker::LoadTerms& terms);
  void RemoveWatcher(const worker::WatchSink* sink);
  virtual void OnRelay(const std::shared_ptr<worker::RelayWriter>& stream, const v1::RelayUp& message) = 0;
  virtual void OnRelayEnd(const worker::RelayWriter& stream, const std::string& session) = 0;
  /// `router`: who has greeted.
  virtual v1::ReserveReply OnReserve(const v1::ReserveRequest& request, const std::string& router) = 0;
  virtual void OnPrefill(const v1::PrefillRequest& request, const std::string& router,
                         std::shared_ptr<worker::PrefillSink> sink) = 0;
  virtual void OnPrefillStreamEnd(const v1::RequestKey& key, const std::string& router) = 0;
  virtual void OnCancel(const v1::CancelRequest& request, const std::string& router) = 0;
  /// `answer` comes once, unless it dies before.
  using FlipAnswered = std::function<void(const absl::StatusOr<v1::FlipReply>&)>;
  virtual void OnFlip(const v1::FlipRequest&, FlipAnswered answer) {
    answer(absl::FailedPreconditionError("this worker's role is `both`: it has no other"));
  }

  /// Ranks of its role; 1: it has no others.
  virtual int ranks() const { return 1; }
  /// One but rank 0 dies: no step ends any more. The others live until they notice.
  void LoseRank(int rank) {
    rank_lost_ = true;
    OnRankLost(rank);
  }
  /// One but rank 0 stands still: no step ends until it goes on, and it takes no part in what its KV's way asks of it.
  void HangRank(int rank) {
    rank_hangs_ = rank_has_hung_ = true;
    OnRankHangs(rank, true);
  }
  void ResumeRank(int rank);
  /// In this life one was lost or stood still: steps have not ended in their time.
  bool rank_failed() const { return rank_lost_ || rank_has_hung_; }
  /// RolePart::Moment of its role.
  virtual const char* Moment() const { return "idle"; }

  void Overhear(Overheard heard) {
    if (!plant_.scenario.meddles) return;
    if (begun_by_.try_emplace(heard.key.request_id(), heard.router).first->second != heard.router) return;
    overheard_.push_back(std::move(heard));
    if (overheard_.size() > 16) overheard_.pop_front();
  }
  /// The last that were overheard, of all routers.
  const std::deque<Overheard>& overheard() const { return overheard_; }

  /// What it holds of handoffs and blocks; empty: nothing.
  virtual std::string Holds() const = 0;

  const Plant& plant() const { return plant_; }

  // ---- for its role
  /// Work of the transfer thread: done in a turn of its own soon after it was posted.
  class Loop final : public worker::TransferLoop {
   public:
    /// The node's from now on.
    explicit Loop(WorkerNode& node) : node_(node) { node_.loop_ = this; }
    ~Loop() override {
      if (node_.loop_ == this) node_.loop_ = nullptr;
    }
    void Post(std::function<void()> work) override;
    void Watch(Transport* transport) override { transports_.push_back(transport); }
    void Unwatch(Transport* transport) override { std::erase(transports_, transport); }
    bool Turn();

   private:
    WorkerNode& node_;
    std::vector<std::function<void()>> posted_;
    std::vector<Transport*> transports_;
  };

  /// As an engine's and transfer threads' messages to the scheduler thread: in order.
  void ToScheduler(std::function<void()> work) { Post(std::chrono::microseconds(10), std::move(work)); }
  /// Something came: a step may be planned.
  void Wake();
  void WakeTransfer(Duration after = std::chrono::microseconds(30));
  /// An answer may wait for a mask.
  void WakeGrammars();
  /// `landed`: hears of every piece of a slot that arrives here; `made`: how many transports were made before this one.
  using Landed = std::function<void(uint32_t made, PeerNumber writer, const LandingPlace& place)>;
  TransportMaker MakeTransport(Landed landed = nullptr);

  // ---- for plans
  /// When the tokens that are being told were drawn.
  TimePoint drawn_at() const { return drawn_at_; }
  /// Runs at the end of the turn that runs now.
  void AtTurnEnd(std::function<void()> work) { at_turn_end_.push_back(std::move(work)); }
  engine::SchedulerLoad LoadNow() const { return engine_->scheduler().Load(); }
  /// Its sequences without credit.
  int32_t unread() const { return engine_ == nullptr ? 0 : LoadNow().unread_sequences; }
  /// How long its steps took, all together.
  Duration busy() const { return busy_; }

 protected:
  /// Begins the turns of this life.
  void Run(engine::SteppedEngine& engine, worker::EventHub& hub);
  /// Another incarnation of the same process: it loads until LoadedAnew.
  void BeginAnew() {
    ++changes_;
    loaded_at_ = TimePoint::max();
  }
  void LoadedAnew() { loaded_at_ = time_.Now(); }

  virtual void OnOutputs(std::vector<engine::SequenceOutput> outputs, uint64_t step) = 0;
  virtual void OnLayers(const engine::StepPlan& plan) { (void)plan; }
  virtual void OnTick() = 0;
  virtual void OnRankLost(int) {}
  virtual void OnRankHangs(int, bool) {}
  virtual void FillLoad(v1::Load& load) const { (void)load; }
  virtual int64_t OwnedBlocks(int32_t group) const = 0;
  virtual std::string LandingAddress() const { return {}; }
  void OnDeath() override {
    changes_ = 0;
    rank_lost_ = rank_hangs_ = rank_has_hung_ = false;
    steps_held_.clear();
    kv_protocol_ = next_kv_protocol_;
    quiet_ = nullptr;
    engine_ = nullptr;
    loop_ = nullptr;
    hub_ = nullptr;
  }
  void OnTurnBegin() override;
  void OnTurnEnd() override;

  const Plant plant_;

 private:
  class Watch;
  void Step();
  void Run(std::shared_ptr<engine::StepPlan> plan);
  void WithAllRanks(std::function<void()> work);
  void BeginQuiet(engine::StepPlan plan, TimePoint at);
  void AwaitQuiet(TimePoint until);
  void TransferTurn();
  void GrammarTurn();
  void Tick();
  void TakeOutputs(std::vector<engine::SequenceOutput> outputs, uint64_t step);
  void TellKvEvents();
  void ReportLoad();

  const std::string name_;
  const bool odd_;
  ProtocolVersions kv_protocol_ = KvProtocol(), next_kv_protocol_ = KvProtocol();
  engine::SteppedEngine* engine_ = nullptr;  ///< of this life
  Loop* loop_ = nullptr;                     ///< of its role; null: nothing is handed over, or not now
  worker::EventHub* hub_ = nullptr;
  bool host_gone_ = false;
  TimePoint loaded_at_{};
  int ticks_ = 0;
  int changes_ = 0;  ///< of its role, in this life
  bool rank_lost_ = false, rank_hangs_ = false, rank_has_hung_ = false;
  std::vector<std::function<void()>> steps_held_;  ///< until the rank that stands still goes on
  bool executing_ = false, step_posted_ = false, transfer_posted_ = false, grammars_posted_ = false;
  TimePoint moved_{};  ///< the transfer thread had something to do
  std::deque<Overheard> overheard_;
  std::map<std::string, std::string> begun_by_;  ///< a request's router: what another says of it is not overheard
  // Of plans:
  std::unique_ptr<QuietSteps> quiet_;
  uint64_t quiet_turn_ = 0;  ///< the turn that is waited for
  TimePoint drawn_at_{};     ///< of the outputs that are being told
  std::vector<std::function<void()>> at_turn_end_;
  Duration busy_{};
  worker::MeasuredRates rates_;
};

}  // namespace baton::sim
