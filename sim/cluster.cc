#include "sim/cluster.h"

#include <algorithm>

#include "sim/requests.h"

namespace baton::sim {

using std::chrono::milliseconds;

namespace {

TransportMaker KindTransports(const ClusterScenario& scenario, std::shared_ptr<SimNetwork> network) {
  return [fence = scenario.fence, network = std::move(network)](
             const LandingShape& shape, TransportEvents& events) -> absl::StatusOr<std::unique_ptr<Transport>> {
    return std::make_unique<SimTransport>(network, fence, shape, events);
  };
}

template <class T>
std::vector<T*> Pointers(const std::vector<std::unique_ptr<T>>& all) {
  std::vector<T*> out;
  for (const auto& one : all) out.push_back(one.get());
  return out;
}

}  // namespace

Cluster::Cluster(const ClusterScenario& scenario)
    : scenario_(scenario),
      time_(scenario.seed),
      begin_(time_.Now()),
      network_(std::make_shared<SimNetwork>(scenario.seed, SimPace{static_cast<uint64_t>(scenario.most_turns),
                                                                   static_cast<size_t>(scenario.piece_bytes)})),
      plant_{scenario_, time_, faults_on_, faults_, KindTransports(scenario_, network_), broken_, engines_} {
  for (int p = 0; p < scenario_.prefills; ++p) {
    const bool odd = p >= scenario_.prefills - scenario_.odd_prefills;
    workers_.push_back(std::make_unique<HandoffNode>(plant_, StrCat("p", p), v1::WORKER_ROLE_PREFILL, odd));
  }
  for (int d = 0; d < scenario_.decodes; ++d) {
    const bool odd = d >= scenario_.decodes - scenario_.odd_decodes;
    workers_.push_back(std::make_unique<HandoffNode>(plant_, StrCat("d", d), v1::WORKER_ROLE_DECODE, odd));
  }
  for (int r = 0; r < scenario_.routers; ++r) {
    std::vector<WorkerNode*> known = Pointers(workers_);
    if (r > 0 && scenario_.prefills > 1) known.erase(known.begin());  // another list
    routers_.push_back(std::make_unique<RouterProcess>(plant_, StrCat("router", r), known));
  }
  disturber_ = std::make_unique<Disturber>(plant_, Pointers(routers_), Pointers(workers_));
  for (const auto& worker : workers_) worker->Start();
  for (const auto& router : routers_) router->Start();
}

Cluster::~Cluster() {
  time_.Clear();
  for (const auto& router : routers_) router->Bury();
  for (const auto& worker : workers_) {
    if (worker->alive()) worker->Kill();
  }
}

void Cluster::Start() {
  disturber_->Start();
  for (int i = 0; i < scenario_.requests; ++i) {
    asked_.push_back(MakeTokenizedRequest(i, scenario_, time_, asked_.empty() ? nullptr : &asked_.back()));
    const auto view = clients_.emplace_back(std::make_shared<ClientView>());
    if (scenario_.keys > 0) view->key = i % (scenario_.keys + 1) % scenario_.keys;  // the first asks twice as often
    RouterProcess& router = *routers_[time_.Below(routers_.size())];
    const Duration at = time_.Between(milliseconds(1), milliseconds(scenario_.arrive_ms));
    time_.After(at, [this, &router, view, i] { router.Ask(asked_[static_cast<size_t>(i)], view); });
    if (scenario_.pauses > 0 && time_.Chance(scenario_.pauses))
      time_.After(at, [this, &router, view] { StopReading(router, view); });
    if (!time_.Chance(scenario_.leave)) continue;
    time_.After(at + time_.Between(milliseconds(0), milliseconds(300)), [&router, view] {
      if (view->end != ClientView::End::kNone) return;
      view->end = ClientView::End::kLeft;
      router.Leave(*view);
    });
  }
}

/// For a while, and again until faults end.
void Cluster::StopReading(RouterProcess& router, const std::shared_ptr<ClientView>& view) {
  if (view->end != ClientView::End::kNone || !faults_on_) return;
  view->taken = view->told;
  view->unread_since = time_.Now();
  view->reads = false;
  time_.After(time_.Between(milliseconds(10), milliseconds(scenario_.most_pause_ms)), [this, &router, view] {
    for (const auto& worker : workers_) most_unread_ = std::max(most_unread_, worker->unread());
    view->reads = true;
    router.Drained(*view);
    time_.After(time_.Between(milliseconds(1), milliseconds(300)),
                [this, &router, view] { StopReading(router, view); });
  });
}

bool Cluster::AllEnded() const {
  return std::ranges::all_of(clients_, [](const auto& client) { return client->end != ClientView::End::kNone; });
}

std::string Cluster::Waiting() const {
  std::string waiting;
  for (size_t i = 0; i < asked_.size(); ++i) {
    if (clients_[i]->end == ClientView::End::kNone) waiting += " " + asked_[i].request_id;
  }
  return waiting;
}

std::string Cluster::Held() const {
  std::string held;
  for (const auto& worker : workers_) held += worker->Holds();
  for (const auto& router : routers_) {
    if (router->running() + router->shares_taken() > 0)
      held += StrCat("router: ", router->running(), " requests, ", router->shares_taken(), " shares; ");
  }
  return held;
}

/// A worker that prefills is not proven, and waits, where no worker that decodes speaks its KV protocol:
/// none that the router knows, for routers have other lists.
bool Cluster::MayTake(const RouterProcess& router, const WorkerNode& worker) const {
  return worker.role() != v1::WORKER_ROLE_PREFILL || std::ranges::any_of(workers_, [&](const auto& one) {
           return one->role() == v1::WORKER_ROLE_DECODE && one->kv_protocol().Shares(worker.kv_protocol()) &&
                  router.ViewOf(*one);
         });
}

std::string Cluster::Shunned() const {
  std::string shunned;
  for (const auto& router : routers_) {
    for (const auto& worker : workers_) {
      const std::optional<router::LinkView> view = router->ViewOf(*worker);
      if (view && !view->takes_requests() && MayTake(*router, *worker))
        shunned += StrCat(" ", worker->name(), " is ", router::LinkStateName(view->shown_state()), ": ",
                          view->shown_detail(), ";");
    }
  }
  return shunned;
}

bool Cluster::SomeDecode() const {
  return std::ranges::any_of(
      workers_, [](const auto& worker) { return worker->alive() && worker->role() == v1::WORKER_ROLE_DECODE; });
}

WireCounters Cluster::wires() const {
  WireCounters sum;
  for (const auto& router : routers_) {
    const WireCounters& one = router->counters();
    sum.migrations += one.migrations;
    sum.again += one.again;
    sum.prefills += one.prefills;
    sum.sessions += one.sessions;
    sum.canaries += one.canaries;
    sum.failed_canaries += one.failed_canaries;
    sum.meddled += one.meddled;
  }
  return sum;
}

int Cluster::completed() const {
  return static_cast<int>(
      std::ranges::count_if(clients_, [](const auto& client) { return client->end == ClientView::End::kComplete; }));
}

}  // namespace baton::sim
