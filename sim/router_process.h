// A router: real RequestDrivers over a real Fleet with its links, prefix index, retry budget and admission, on
// executors in virtual time; its wires are SimWires. It may be stopped, paused, killed and started again like a worker;
// its clients then lose their connections.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "router/admission/admission.h"
#include "router/admission/key_account.h"
#include "router/fleet/fleet.h"
#include "router/metrics/router_metrics.h"
#include "router/request/canary_request.h"
#include "router/request/request_driver.h"
#include "router/request/retry_budget.h"
#include "sim/client.h"
#include "sim/connection.h"
#include "sim/sim_event_loop.h"
#include "sim/sim_wire.h"

namespace baton::sim {

/// The tokenizer of all simulated routers; every token of the fake model has a text.
const router::ModelText& SimText();
/// That of plans, which needs no file.
const router::ModelText& PlanText();
/// One per choice of `generation`.
std::vector<router::ChoiceText> TextsOf(const router::ModelText& model, const router::TokenizedRequest& generation);

class RouterProcess final : public Process {
 public:
  /// `workers`: the list of its --worker flags. They must outlive it.
  RouterProcess(const Plant& plant, std::string name, const std::vector<WorkerNode*>& workers);
  ~RouterProcess() override;

  /// A client asks; as soon as the router is ready.
  void Ask(router::TokenizedRequest generation, std::shared_ptr<ClientView> view);
  /// The connections to that worker break, if there is one.
  void Break(const WorkerNode& worker);
  /// Nothing passes between this router and that worker for a while.
  void Part(const WorkerNode& worker, Duration how_long);
  /// An operator drains that worker, or ends that.
  void Drain(const WorkerNode& worker, bool undo);
  /// The same, which may be refused.
  void Order(const WorkerNode& worker, bool undo, std::function<void(const absl::Status&)> done);
  /// An operator changes that worker's role. `done`: whether that has begun.
  void Flip(const WorkerNode& worker, router::WorkerRole to, Duration patience,
            std::function<void(const absl::Status&)> done);
  /// That worker as this router sees it; null: this router is not there, or does not know it.
  std::optional<router::LinkView> ViewOf(const WorkerNode& worker) const;
  /// Says to that worker one thing about a leg of another router.
  void Meddle(const WorkerNode& worker);
  /// Dies with its machine: no worker is told.
  void Vanish();
  /// That worker's machine is gone: nothing that is connected to it hears anything.
  void OnHostGone(const WorkerNode& worker);
  /// That worker's process is gone: its machine says so.
  void OnWorkerGone(const WorkerNode& worker) { Break(worker); }
  /// Clients leave now.
  void Leave(const ClientView& view);
  /// The client has taken what there was.
  void Drained(const ClientView& view);

  bool ready() const { return life_now_ != nullptr && life_now_->fleet->ReadinessNow().ready; }
  /// Workers that take requests.
  int ready_workers() const;
  const router::ModelText& text() const { return plant_.plans() ? PlanText() : SimText(); }
  const WireCounters& counters() const { return counters_; }
  int links() const { return static_cast<int>(cables_.size()); }
  int64_t running() const { return life_now_ ? life_now_->admission.running() : 0; }
  int64_t shares_taken() const { return life_now_ ? life_now_->budget.taken() : 0; }
  /// The simulation ends; nothing runs any more.
  void Bury();

 private:
  struct Asked {
    std::shared_ptr<ClientView> view;
    std::shared_ptr<router::RequestDriver> call;  ///< as the product's exchanges hold it; null: not begun
  };
  struct Life {
    Life(RouterProcess& router, const router::RouterConfig& config);
    SimEventLoop home;
    std::deque<SimEventLoop> io;
    router::Admission admission;
    router::RetryBudget budget;
    std::unique_ptr<router::Fleet> fleet;
    std::unique_ptr<router::CallServices> services;
    std::vector<SimWire*> wires;  ///< the links own them
    std::vector<Asked> asked;     ///< that have not ended
    size_t next_io = 0;
  };
  void OnBirth() override;
  void OnDeath() override;
  void Begin(SimEventLoop& executor, const router::TokenizedRequest& generation,
             const std::shared_ptr<ClientView>& view);
  router::CanarySender Canaries(SimEventLoop& home, const std::unique_ptr<router::Fleet>& fleet);
  std::unique_ptr<router::WorkerWire> MakeWire(Life& life, const std::string& address);
  Cable* CableTo(const WorkerNode& worker);

  const Plant plant_;
  const std::string name_;
  router::RouterConfig config_;
  WireCounters counters_;
  std::deque<Cable> cables_;  ///< in the order of config_.worker
  std::deque<router::KeyAccount> keys_;
  bool vanishing_ = false;
  std::unique_ptr<Life> life_now_;
  std::vector<std::unique_ptr<Life>> dead_;  ///< what was posted still points into them
};

}  // namespace baton::sim
