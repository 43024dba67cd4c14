// What both simulated workers share: a real scheduler with its block pool and executor over the fake model, the loop of
// its transfer thread, and the turns of both in virtual time. After every turn each block has an owner who knows of it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "sim/process.h"
#include "sim/scenario.h"
#include "sim/unkind_transport.h"
#include "tests/engine/step/harness.h"
#include "worker/transfer_loop.h"
#include "worker/transports.h"

namespace baton::sim {

/// What the workers of a cluster share.
struct Plant {
  const ClusterScenario& scenario;
  Timeline& time;
  const bool& faults_on;
  FaultCounters& faults;
  worker::TransportMaker transports;  ///< kind ones; workers make theirs unkind
  std::string& broken;                ///< the first promise that was broken
  void Break(const std::string& promise) const {
    if (broken.empty()) broken = promise;
  }
};

engine::HarnessOptions EngineOptions(const ClusterScenario& scenario, int tokens_per_block, int blocks);

class WorkerNode : public Process {
 public:
  WorkerNode(const Plant& plant, std::string name);
  /// Of this life.
  std::string incarnation() const { return StrCat(name_, ".", life()); }
  const std::string& name() const { return name_; }
  /// The router's connection ended.
  virtual void OnSessionEnd(const std::string& session) = 0;
  virtual void OnCancel(const std::string& bytes) = 0;
  virtual void OnRelayUp(const std::string& session, const std::string& bytes) = 0;
  /// What it holds of handoffs and blocks; empty: nothing.
  virtual std::string Holds() const = 0;

 protected:
  /// Work of the transfer thread: done in a turn of its own soon after it was posted.
  class Loop final : public worker::TransferLoop {
   public:
    explicit Loop(WorkerNode& node) : node_(node) {}
    void Post(std::function<void()> work) override;
    void Watch(Transport* transport) override { transports_.push_back(transport); }
    bool Turn();

   private:
    WorkerNode& node_;
    std::vector<std::function<void()>> posted_;
    std::vector<Transport*> transports_;
  };

  /// Begins the turns of this life.
  void Run(engine::Harness& engine, Loop& loop);
  /// As an engine's and transfer threads' messages to the scheduler thread: in order.
  void ToScheduler(std::function<void()> work) { Post(std::chrono::microseconds(10), std::move(work)); }
  /// Something came: a step may be planned.
  void Wake();
  void WakeTransfer(Duration after = std::chrono::microseconds(30));
  /// `landed`: hears of every piece of a slot that arrives here.
  using Landed = std::function<void(PeerNumber writer, const LandingPlace& place)>;
  worker::TransportMaker MakeTransport(Landed landed = nullptr);

  virtual void OnOutputs(std::vector<engine::SequenceOutput> outputs, uint64_t step) = 0;
  virtual void OnLayers(const engine::StepPlan& plan) { (void)plan; }
  virtual void OnTick() = 0;
  virtual int64_t OwnedBlocks(int32_t group) const = 0;
  void OnDeath() override { engine_ = nullptr, loop_ = nullptr; }
  void OnTurnEnd() override;

  const Plant plant_;

 private:
  class Watch;
  void Step();
  void TransferTurn();
  void Tick();

  const std::string name_;
  engine::Harness* engine_ = nullptr;  ///< of this life
  Loop* loop_ = nullptr;
  bool executing_ = false, step_posted_ = false, transfer_posted_ = false;
  TimePoint moved_{};  ///< the transfer thread had something to do
};

}  // namespace baton::sim
