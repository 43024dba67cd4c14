#include "sim/cluster.h"

#include <algorithm>

#include "sim/oracle.h"
#include "sim/requests.h"

namespace baton::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

/// Faults begin in the first kFaultsLast. When the last one is over, every client has its end in kAnswersIn, and then
/// nobody holds anything in kMemoryBackIn.
/// One fault delays an answer by no more than it lasts, or what it takes to notice that a worker is lost, and then
/// kMadeGoodIn (and what is computed again).
constexpr Duration kNoticedIn = milliseconds(3500), kMadeGoodIn = seconds(3);
constexpr auto kFaultsLast = seconds(6), kAnswersIn = seconds(40), kMemoryBackIn = seconds(5);

TransportMaker KindTransports(const ClusterScenario& scenario, std::shared_ptr<SimNetwork> network) {
  return [fence = scenario.fence, network = std::move(network)](
             const LandingShape& shape, TransportEvents& events) -> absl::StatusOr<std::unique_ptr<Transport>> {
    return std::make_unique<SimTransport>(network, fence, shape, events);
  };
}

Duration Takes(double seconds) { return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)); }

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
      plant_{scenario_, time_, faults_on_, faults_, KindTransports(scenario_, network_), broken_} {
  for (int p = 0; p < scenario_.prefills; ++p) {
    const bool odd = p >= scenario_.prefills - scenario_.odd_prefills;
    workers_.push_back(std::make_unique<PrefillNode>(plant_, StrCat("p", p), odd));
  }
  for (int d = 0; d < scenario_.decodes; ++d) {
    const bool odd = d >= scenario_.decodes - scenario_.odd_decodes;
    workers_.push_back(std::make_unique<DecodeNode>(plant_, StrCat("d", d), odd));
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

void Cluster::AskAll() {
  for (int i = 0; i < scenario_.requests; ++i) {
    asked_.push_back(MakeTokenizedRequest(i, scenario_, time_, asked_.empty() ? nullptr : &asked_.back()));
    const auto view = clients_.emplace_back(std::make_shared<ClientView>());
    RouterProcess& router = *routers_[time_.Below(routers_.size())];
    const Duration at = time_.Between(milliseconds(1), milliseconds(scenario_.arrive_ms));
    time_.After(at, [this, &router, view, i] { router.Ask(asked_[static_cast<size_t>(i)], view); });
    if (!time_.Chance(scenario_.leave)) continue;
    time_.After(at + time_.Between(milliseconds(0), milliseconds(300)), [&router, view] {
      if (view->end != ClientView::End::kNone) return;
      view->end = ClientView::End::kLeft;
      router.Leave(*view);
    });
  }
}

bool Cluster::AllEnded() const {
  return std::ranges::all_of(clients_, [](const auto& client) { return client->end != ClientView::End::kNone; });
}

std::string Cluster::Run() {
  const Duration answers_in = kAnswersIn + Takes(2 * scenario_.WorkSeconds());
  disturber_->Start();
  AskAll();
  while (!AllEnded() && broken_.empty()) {
    BATON_CHECK(time_.RunNext());
    if (time_.Now() > begin_ + kFaultsLast) faults_on_ = false;
    if (time_.Now() > std::max(begin_ + kFaultsLast, disturber_->over_at()) + answers_in) break;
  }
  if (!broken_.empty()) return broken_;
  if (!AllEnded()) return StrCat("a client waits for ever:", Waiting(), "; held: ", Held());
  faults_on_ = false;
  if (std::string wrong = CheckClients(); !wrong.empty()) return wrong;
  if (std::string wrong = CheckOneFault(); !wrong.empty()) return wrong;
  disturber_->ResumeAll();
  const TimePoint by =
      std::max(time_.Now(), disturber_->over_at()) + kMemoryBackIn + Takes(2 * scenario_.StepSeconds());
  while (time_.Now() < by && broken_.empty() && !Held().empty()) time_.RunNext();
  if (!broken_.empty()) return broken_;
  return Held().empty() ? "" : StrCat("held: ", Held());
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

std::string Cluster::CheckClients() const {
  for (size_t i = 0; i < asked_.size(); ++i) {
    if (std::string wrong = CheckClient(scenario_, asked_[i], *clients_[i]); !wrong.empty())
      return StrCat(asked_[i].request_id, " ", wrong);
  }
  return "";
}

std::string Cluster::CheckOneFault() const {
  if (scenario_.one_fault == OneFault::kNone || scenario_.calm) return "";
  std::string wrong = CheckLinks();
  return wrong.empty() ? CheckDelay() : wrong;
}

/// Nobody who lives is taken for dead.
std::string Cluster::CheckLinks() const {
  const OneFault fault = scenario_.one_fault;
  const bool pause = fault == OneFault::kPauseRouter || fault == OneFault::kPauseAll;
  const bool short_silence = (fault == OneFault::kStop || fault == OneFault::kPart) && scenario_.most_stop_ms < 2500;
  for (const auto& router : routers_) {
    const int lost = router->counters().sessions - router->links();
    if (lost > (pause || short_silence ? 0 : 1)) return StrCat("a router lost ", lost, " connections");
  }
  const bool alike = fault == OneFault::kPauseAll && scenario_.most_stop_ms < scenario_.no_room_ms;
  if ((alike || short_silence) && wires().again > 0)
    return StrCat(wires().again, " legs were begun again, and everybody stood still alike");
  return "";
}

/// What was lost is made good soon.
std::string Cluster::CheckDelay() const {
  ClusterScenario calm = scenario_;
  calm.calm = true;
  Cluster other(calm);
  if (const std::string wrong = other.Run(); !wrong.empty()) return StrCat("and without the fault: ", wrong);
  const OneFault fault = scenario_.one_fault;
  const bool all_wait = fault == OneFault::kPauseRouter || fault == OneFault::kPauseAll;
  const Duration lasts =
      std::max(disturber_->over_at() - begin_ - milliseconds(scenario_.fault_at_ms), Duration::zero());
  const Duration most =
      (all_wait ? lasts : std::min(lasts, kNoticedIn)) + kMadeGoodIn + Takes(2 * scenario_.PromptSeconds());
  for (size_t i = 0; i < clients_.size(); ++i) {
    const Duration late = (clients_[i]->ended - begin_) - (other.clients()[i]->ended - other.begin_);
    if (late > most)
      return StrCat(asked_[i].request_id, " was ", Seconds(late), " s late, the most is ", Seconds(most));
  }
  return "";
}

WireCounters Cluster::wires() const {
  WireCounters sum;
  for (const auto& router : routers_) {
    const WireCounters& one = router->counters();
    sum.migrations += one.migrations;
    sum.again += one.again;
    sum.prefills += one.prefills;
    sum.sessions += one.sessions;
  }
  return sum;
}

int Cluster::completed() const {
  return static_cast<int>(
      std::ranges::count_if(clients_, [](const auto& client) { return client->end == ClientView::End::kComplete; }));
}

}  // namespace baton::sim
