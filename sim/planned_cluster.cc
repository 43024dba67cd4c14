#include "sim/planned_cluster.h"

#include <algorithm>
#include <utility>

#include "kvtransfer/slot_format.h"
#include "sim/both_node.h"
#include "sim/handoff_node.h"

namespace baton::sim {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr int kPieceTokens = 256;  ///< of a slot, as most workers have them

ClusterScenario ScenarioOf(const PlannedTerms& terms) {
  ClusterScenario scenario;
  scenario.seed = terms.seed;
  scenario.landing_slots = 32;
  scenario.piece_tokens = kPieceTokens;
  scenario.slot_bytes = static_cast<int>(kPieceTokens * PlannedEngine::kBytesPerToken + SlotOverheadBytes(1) + 64);
  scenario.max_model_len = terms.worker.scheduler.max_model_len;
  scenario.max_reserved_tokens = int64_t{terms.worker.blocks} * terms.worker.block_size + (1 << 20);
  return scenario;
}

LinkTerms LinksOf(const PlannedTerms& terms) {
  return {.bytes_per_s = terms.link_bytes_per_s > 0 ? terms.link_bytes_per_s : 1e15,
          .latency = terms.link_latency,
          .scale = static_cast<double>(terms.kv_bytes_per_token) / PlannedEngine::kBytesPerToken,
          .overhead = SlotOverheadBytes(1)};
}

/// From the step that drew a token to the client.
constexpr Duration kWayToClient = microseconds(500);

}  // namespace

std::string PlannedLayout::Name() const {
  std::string name;
  if (prefill > 0) name += StrCat(prefill, "P ");
  if (decode > 0) name += StrCat(decode, "D ");
  if (both > 0) name += StrCat(both, " both ");
  if (!name.empty()) name.pop_back();
  return name;
}

absl::Status PlannedLayout::CheckWorker(const std::string& name) const {
  std::string known;
  for (const auto& [role, count] : {std::pair("prefill", prefill), {"decode", decode}, {"both", both}}) {
    if (count == 0) continue;
    if (name == role) return absl::OkStatus();
    for (int i = 0; i < count; ++i) {
      if (name == StrCat(role, "-", i)) return absl::OkStatus();
    }
    known += StrCat(known.empty() ? "" : ", ", role, "-0", count > 1 ? StrCat(" to ", role, "-", count - 1) : "");
  }
  return absl::InvalidArgumentError(StrCat("--kill: there is no worker ", name, "; there are ", known));
}

/// Keeps what a client of one request sees.
class PlannedCluster::Client final : public router::AnswerSink {
 public:
  Client(PlannedCluster& cluster, load::Outcome& outcome, std::string id, int64_t prompt_tokens,
         std::shared_ptr<ClientView> view)
      : cluster_(cluster), outcome_(outcome), id_(std::move(id)), position_(prompt_tokens), view_(std::move(view)) {}
  void OnAdmitted(const router::TokenizedRequest&, int64_t) override {}
  void OnPromptLogprobs(std::vector<router::PositionLogprobs>) override {}
  void OnDelta(router::ChoiceDelta&& delta, const router::RequestUsage&) override {
    const TimePoint now = cluster_.time_.Now();
    for (size_t i = 0; i < delta.token_ids.size(); ++i) {
      const TimePoint drawn = cluster_.token_times_.Take(id_, static_cast<uint64_t>(position_++), now);
      const Duration at = std::min(now, drawn + kWayToClient) - cluster_.start_;
      outcome_.arrivals.push_back(outcome_.arrivals.empty() ? at : std::max(at, outcome_.arrivals.back()));
    }
  }
  void OnChoiceEnd(const router::ChoiceFinish&) override { outcome_.answer.finished = true; }
  void OnDone(const router::RequestSummary& summary) override {
    const router::StageTimings& t = summary.timings;
    outcome_.http_status = 200;
    outcome_.answer.prompt_tokens = summary.usage.prompt_tokens;
    outcome_.answer.completion_tokens = summary.usage.completion_tokens;
    outcome_.answer.cached_tokens = summary.usage.cached_tokens;
    outcome_.answer.counted = outcome_.answer.done = true;
    outcome_.answer.stages =
        load::Stages{t.queue_prefill_ms, t.prefill_ms, t.transfer_ms, t.queue_decode_ms, t.first_decode_ms,
                     t.decode_ms,        t.router_ms,  t.lost_ms,     t.reserve_ms,      t.network_ms};
    End(outcome_.arrivals.empty() ? cluster_.time_.Now() - cluster_.start_ : outcome_.arrivals.back());
  }
  void OnFailed(const router::ApiError& error) override {
    outcome_.http_status = error.http_status;
    outcome_.failure = outcome_.arrivals.empty() ? load::Failure::kRefused : load::Failure::kError;
    if (error.grpc_code == absl::StatusCode::kDeadlineExceeded) outcome_.failure = load::Failure::kTimeout;
    outcome_.error = error.message;
    End(cluster_.time_.Now() - cluster_.start_);
  }
  size_t UnsentBytes() const override { return 0; }
  uint64_t TakenBytes() const override { return 0; }

 private:
  void End(Duration at) {
    outcome_.end = at;
    view_->end = ClientView::End::kComplete;
    cluster_.token_times_.Forget(id_);
    cluster_.Ended();
  }
  PlannedCluster& cluster_;
  load::Outcome& outcome_;
  const std::string id_;
  int64_t position_;
  const std::shared_ptr<ClientView> view_;
};

PlannedCluster::PlannedCluster(PlannedTerms terms, const StepCost& cost)
    : terms_(std::move(terms)),
      scenario_(ScenarioOf(terms_)),
      time_(terms_.seed),
      links_(time_, LinksOf(terms_)),
      engines_(terms_.worker, cost),
      plant_{scenario_, time_, faults_on_, faults_, {}, broken_, engines_, &links_, &token_times_, &terms_.router} {
  const PlannedLayout& layout = terms_.layout;
  for (int p = 0; p < layout.prefill; ++p)
    workers_.push_back(std::make_unique<HandoffNode>(plant_, StrCat("prefill-", p), v1::WORKER_ROLE_PREFILL, false));
  for (int d = 0; d < layout.decode; ++d)
    workers_.push_back(std::make_unique<HandoffNode>(plant_, StrCat("decode-", d), v1::WORKER_ROLE_DECODE, false));
  for (int b = 0; b < layout.both; ++b) workers_.push_back(std::make_unique<BothNode>(plant_, StrCat("both-", b)));
  std::vector<WorkerNode*> known;
  for (const auto& worker : workers_) {
    known.push_back(worker.get());
    worker->Start();
  }
  router_ = std::make_unique<RouterProcess>(plant_, "router", known);
  router_->Start();
  kills_ = std::make_unique<PlannedKills>(time_, *router_, workers_);
}

PlannedCluster::~PlannedCluster() {
  time_.Clear();
  router_->Bury();
  for (const auto& worker : workers_) {
    if (worker->alive()) worker->Kill();
  }
}

void PlannedCluster::AwaitReady() {
  const TimePoint until = time_.Now() + seconds(60);
  while (router_->ready_workers() < terms_.layout.workers() && time_.Now() < until) {
    const TimePoint then = time_.Now() + milliseconds(100);
    while (time_.Now() < then) BATON_CHECK(time_.RunNext());
  }
  BATON_CHECK(router_->ready_workers() == terms_.layout.workers(), router_->ready_workers(), " of ",
              terms_.layout.workers(), " simulated workers are ready after a minute");
}

load::RunResult PlannedCluster::Run(const OfferedLoad& load) {
  AwaitReady();
  load_ = &load;
  start_ = time_.Now();
  result_.outcomes.resize(load.prompts.size());
  for (size_t i = 0; i < load.prompts.size(); ++i) result_.outcomes[i].index = i;
  Offer(0);
  time_.After(seconds(1), [this] { Look(); });
  kills_->Plan(terms_.kills, start_);
  while (ended_ < load.prompts.size() && broken_.empty()) BATON_CHECK(time_.RunNext());
  for (const load::Outcome& one : result_.outcomes) result_.duration = std::max(result_.duration, one.end);
  result_.faults = kills_->seen();
  Count();
  load_ = nullptr;
  return std::move(result_);
}

/// Those that are due now; the next one in its time.
void PlannedCluster::Offer(size_t index) {
  for (; index < load_->prompts.size() && load_->due[index] <= time_.Now() - start_; ++index) {
    load::Outcome& outcome = result_.outcomes[index];
    outcome.due = load_->due[index];
    waiting_.push_back(index);
  }
  SendWaiting();
  if (index < load_->prompts.size()) time_.At(start_ + load_->due[index], [this, index] { Offer(index); });
}

void PlannedCluster::SendWaiting() {
  while (next_waiting_ < waiting_.size() && (load_->most_at_a_time == 0 || running_ < load_->most_at_a_time)) {
    const size_t index = waiting_[next_waiting_++];
    load::Outcome& outcome = result_.outcomes[index];
    outcome.sent = time_.Now() - start_;
    outcome.waited = outcome.sent - outcome.due;  // a place is all that a request waits for here
    result_.most_at_a_time = std::max(result_.most_at_a_time, ++running_);
    load::Prompt prompt = load_->prompts[index];
    load::WriteOut(engine::kFakeVocab, prompt);
    router::TokenizedRequest request;
    request.request_id = StrCat("r", index);
    request.prompt = std::move(prompt.ids);
    request.sampling.n = 1;
    request.sampling.max_tokens = static_cast<int32_t>(prompt.output_tokens);
    request.sampling.temperature = 0.0f;
    request.sampling.seed = index;
    request.sampling.ignore_eos = true;
    if (load_->timeout > Duration::zero()) request.timeout = load_->timeout;
    auto view = std::make_shared<ClientView>();
    view->sink =
        std::make_shared<Client>(*this, outcome, request.request_id, static_cast<int64_t>(request.prompt.size()), view);
    router_->Ask(std::move(request), std::move(view));
  }
}

void PlannedCluster::Ended() {
  --running_;
  ++ended_;
  SendWaiting();
}

/// Once a second: how full the workers are.
void PlannedCluster::Look() {
  ++looks_;
  use_.roles.resize(workers_.empty() ? 0 : 4);
  for (const auto& worker : workers_) {
    if (!worker->alive()) continue;
    const engine::SchedulerLoad load = worker->LoadNow();
    RoleUse& role = use_.roles[static_cast<size_t>(worker->role())];
    const double used = static_cast<double>(load.used_blocks[0]) / load.total_blocks[0];
    role.kv_mean += used;
    role.kv_most = std::max(role.kv_most, used);
  }
  time_.After(seconds(1), [this] { Look(); });
}

void PlannedCluster::Count() {
  const double run_s = std::max(1e-9, Seconds(result_.duration));
  use_.roles.resize(4);
  for (const auto& worker : workers_) {
    RoleUse& role = use_.roles[static_cast<size_t>(worker->role())];
    role.role = RoleNameOf(worker->role());
    ++role.workers;
    role.busy += Seconds(worker->busy()) / run_s;
    std::vector<engine::SchedulerLoad> lives = kills_->LostCounts(*worker);
    if (worker->alive()) lives.push_back(worker->LoadNow());
    for (const engine::SchedulerLoad& load : lives) {
      role.prompt_tokens += load.prompt_tokens, role.cached_tokens += load.cached_tokens;
      role.generated_tokens += load.generated_tokens, role.preemptions += load.preemptions, role.steps += load.steps;
    }
  }
  std::erase_if(use_.roles, [](const RoleUse& role) { return role.workers == 0; });
  for (RoleUse& role : use_.roles) {
    role.busy /= role.workers;
    if (looks_ > 0) role.kv_mean /= static_cast<double>(looks_) * role.workers;
  }
  use_.handoffs = router_->counters().prefills;
  for (const auto& port : links_.ports()) {
    use_.link_gigabytes += static_cast<double>(port->bytes_out) / 1e9;
    use_.link_busy_most =
        std::max({use_.link_busy_most, Seconds(port->busy_out) / run_s, Seconds(port->busy_in) / run_s});
  }
  use_.link_gigabytes_per_s = use_.link_gigabytes / run_s;
}

}  // namespace baton::sim
