#include "sim/router_process.h"

#include <algorithm>
#include <utility>

#include "text/gguf_tokenizer.h"

namespace baton::sim {

using std::chrono::microseconds;
using std::chrono::milliseconds;

namespace {

router::RouterMetrics& SimMetrics() {
  static router::RouterMetrics metrics("fake");
  return metrics;
}

router::RouterConfig ConfigOf(const Plant& plant, const std::vector<WorkerNode*>& workers) {
  const ClusterScenario& scenario = plant.scenario;
  router::RouterConfig config;
  if (plant.router != nullptr) config = *plant.router;
  for (const WorkerNode* worker : workers) config.worker.push_back(worker->name());
  config.log_requests = false;
  if (plant.router != nullptr) return config;
  config.local_prefill_max_tokens = scenario.local_prefill_tokens;
  if (scenario.round_robin) config.route_policy = "round-robin";
  if (scenario.credit_tokens > 0) config.relay_credit_tokens = scenario.credit_tokens;
  if (scenario.most_running > 0) config.max_running_requests = scenario.most_running;
  return config;
}

}  // namespace

namespace {

/// One letter a token.
router::ModelText MakeText() {
  static constexpr std::string_view kLetters = "!#$%&()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVW";
  GgufTokenizerMetadata vocabulary{.model = "gpt2", .pre = "gpt-2"};
  for (int32_t id = 0; id < engine::kFakeVocab; ++id)
    vocabulary.tokens.push_back(kLetters.substr(static_cast<size_t>(id), 1));
  router::ModelText text{.name = "planned"};
  text.tokenizer = Tokenizer::FromGguf(vocabulary).value();
  text.longest_token = 1;
  return text;
}

}  // namespace

const router::ModelText& PlanText() {
  static const router::ModelText text = MakeText();
  return text;
}

const router::ModelText& SimText() {
  static const router::ModelText text =
      router::ModelText::Load("tests/data/tiny-llama", "", /*use_generation_config=*/false, 0).value();
  return text;
}

std::vector<router::ChoiceText> TextsOf(const router::ModelText& model, const router::TokenizedRequest& generation) {
  std::vector<router::ChoiceText> texts;
  for (int32_t i = 0; i < generation.sampling.n; ++i) {
    texts.emplace_back(*model.tokenizer, generation,
                       StopMatcher::Create(generation.stop, generation.include_stop_str_in_output).value());
  }
  return texts;
}

RouterProcess::RouterProcess(const Plant& plant, std::string name, const std::vector<WorkerNode*>& workers)
    : Process(plant.time), plant_(plant), name_(std::move(name)), config_(ConfigOf(plant, workers)) {
  for (WorkerNode* worker : workers) cables_.push_back({*this, *worker, plant_});
  for (int key = 0; key < plant.scenario.keys; ++key)
    keys_.emplace_back(StrCat("key-", key), router::KeyAccount::Limits{});
}

RouterProcess::~RouterProcess() { BATON_CHECK(life_now_ == nullptr && dead_.empty(), "not buried"); }

RouterProcess::Life::Life(RouterProcess& router, const router::RouterConfig& config)
    : home(router, router.time_),
      admission(config.max_running_requests, config.max_running_tokens, router.keys_.size() > 1),
      budget(config.retry_budget, 3, admission) {
  io.emplace_back(router, router.time_);
  io.emplace_back(router, router.time_);
  fleet = router::Fleet::Create(
              config, {home, home}, router.time_,
              [&router, this](const std::string& address) { return router.MakeWire(*this, address); },
              router.Canaries(home, fleet))
              .value();
  services = std::make_unique<router::CallServices>(
      router::CallServices{config, router.text(), router.time_, *fleet, admission, budget, SimMetrics()});
}

/// As router/server.cc does; but named as the seed has it: workers and routers hold things in the order of their names.
router::CanarySender RouterProcess::Canaries(SimEventLoop& home, const std::unique_ptr<router::Fleet>& fleet) {
  if (!plant_.scenario.canaries) return nullptr;
  return
      [this, &home, &fleet, sent = 0](router::CanaryLegs legs, std::function<void(const absl::Status&)> done) mutable {
        legs.request_id = StrCat("canary-", name_, ".", life(), "-", ++sent);
        return router::CanaryRequest::Start(*fleet, home, time_, legs,
                                            [this, done = std::move(done)](const absl::Status& s) {
                                              ++(s.ok() ? counters_.canaries : counters_.failed_canaries);
                                              done(s);
                                            });
      };
}

std::unique_ptr<router::WorkerWire> RouterProcess::MakeWire(Life& life, const std::string& address) {
  for (Cable& cable : cables_) {
    if (cable.worker.name() != address) continue;
    auto wire =
        std::make_unique<SimWire>(cable, StrCat(name_, ".", this->life()), router::ReportTermsOf(config_), counters_);
    life.wires.push_back(wire.get());
    return wire;
  }
  BATON_CHECK(false, "no worker ", address);
  return nullptr;
}

void RouterProcess::OnBirth() {
  life_now_ = std::make_unique<Life>(*this, config_);
  life_now_->fleet->Start();
}

void RouterProcess::OnDeath() {
  for (SimWire* wire : life_now_->wires) wire->Shutdown();
  for (Cable& cable : cables_) {
    if (cable.connection == nullptr) continue;
    vanishing_ ? cable.connection->GoSilent() : cable.connection->CloseByRouter();
    cable.connection = nullptr;
  }
  for (const Asked& asked : life_now_->asked) {
    if (asked.view->end == ClientView::End::kNone) asked.view->end = ClientView::End::kLeft;
  }
  life_now_->home.Bury(SimEventLoop::AfterDeath::kDrop);
  for (SimEventLoop& io : life_now_->io) io.Bury(SimEventLoop::AfterDeath::kDrop);
  dead_.push_back(std::move(life_now_));
}

void RouterProcess::Bury() {
  if (alive()) Kill();
  for (Cable& cable : cables_) cable.connection = nullptr;
  for (auto& life : dead_) {
    life->home.Bury(SimEventLoop::AfterDeath::kRun);
    life->fleet->Stop();
    life->asked.clear();
  }
  dead_.clear();
}

void RouterProcess::Ask(router::TokenizedRequest generation, std::shared_ptr<ClientView> view) {
  if (view->end != ClientView::End::kNone) return;  // left before it could ask
  if (!alive() || stopped() || !life_now_->fleet->ReadinessNow().ready) {
    return time_.After(milliseconds(50), [this, generation = std::move(generation), view] { Ask(generation, view); });
  }
  Life& life = *life_now_;
  SimEventLoop& io = life.io[life.next_io++ % life.io.size()];
  std::erase_if(life.asked, [](const Asked& asked) { return asked.view->end != ClientView::End::kNone; });
  life.asked.push_back({view, nullptr});  // it is connected
  Post(time_.Between(microseconds(50), milliseconds(1)),
       [this, &io, generation = std::move(generation), view = std::move(view)] {
         io.Post([this, &io, generation, view] { Begin(io, generation, view); });
       });
}

/// As router/request/request_service.cc does.
void RouterProcess::Begin(SimEventLoop& executor, const router::TokenizedRequest& generation,
                          const std::shared_ptr<ClientView>& view) {
  Life& life = *life_now_;
  if (view->end != ClientView::End::kNone) return;
  std::shared_ptr<router::AnswerSink> sink = view->sink;
  if (sink == nullptr) sink = std::make_shared<ClientSink>(view, time_);
  view->asked = time_.Now();
  router::KeyAccount* const key = keys_.empty() ? nullptr : &keys_[static_cast<size_t>(view->key)];
  auto place = life.admission.Enter(/*connected=*/{}, time_.Now(), key);
  if (const auto* error = std::get_if<router::ApiError>(&place)) return sink->OnFailed(*error);
  auto room = life.admission.EnterTokens(static_cast<int64_t>(generation.prompt.size()), time_.Now(), key);
  if (const auto* error = std::get_if<router::ApiError>(&room)) return sink->OnFailed(*error);
  std::vector<router::AdmissionHold> tickets;
  tickets.push_back(std::move(std::get<router::AdmissionHold>(place)));
  tickets.push_back(std::move(std::get<router::AdmissionHold>(room)));
  auto call = std::make_shared<router::RequestDriver>(*life.services, executor, generation, TextsOf(text(), generation),
                                                      time_.Now(), std::move(tickets), std::move(sink));
  call->ChargeTo(key);
  for (Asked& asked : life.asked) {
    if (asked.view == view) asked.call = call;
  }
  call->Start();
}

void RouterProcess::Meddle(const WorkerNode& worker) {
  if (life_now_ == nullptr) return;
  for (SimWire* wire : life_now_->wires) {
    if (&wire->worker() == &worker) return wire->Meddle();
  }
}

void RouterProcess::Leave(const ClientView& view) {
  if (!life_now_) return;
  for (const Asked& asked : life_now_->asked) {
    if (asked.view.get() == &view && asked.call) asked.call->loop().Post([call = asked.call] { call->ClientGone(); });
  }
}

void RouterProcess::Drained(const ClientView& view) {
  if (!life_now_) return;
  for (const Asked& asked : life_now_->asked) {
    if (asked.view.get() == &view && asked.call)
      asked.call->loop().Post([call = asked.call] { call->OutputDrained(); });
  }
}

int RouterProcess::ready_workers() const {
  if (life_now_ == nullptr) return 0;
  return static_cast<int>(std::ranges::count_if(life_now_->fleet->Views(), [](const router::LinkView& view) {
    return view.state == router::LinkState::kReady && view.has_load;
  }));
}

Cable* RouterProcess::CableTo(const WorkerNode& worker) {
  for (Cable& cable : cables_) {
    if (&cable.worker == &worker) return &cable;
  }
  return nullptr;
}

void RouterProcess::Break(const WorkerNode& worker) {
  Cable* cable = CableTo(worker);
  if (cable != nullptr && cable->connection != nullptr) cable->connection->Break();
}

void RouterProcess::Part(const WorkerNode& worker, Duration how_long) {
  if (Cable* cable = CableTo(worker)) cable->open_at = std::max(cable->open_at, time_.Now() + how_long);
}

void RouterProcess::Drain(const WorkerNode& worker, bool undo) {
  life_now_->fleet->Drain({worker.name(), undo, /*force=*/false}, [undo](const absl::StatusOr<router::LinkView>& now) {
    BATON_CHECK(now.ok() && now->held.empty() == undo, now.status().message());
  });
}

void RouterProcess::Order(const WorkerNode& worker, bool undo, std::function<void(const absl::Status&)> done) {
  life_now_->fleet->Drain(
      {worker.name(), undo, /*force=*/false},
      [done = std::move(done)](const absl::StatusOr<router::LinkView>& now) { done(now.status()); });
}

void RouterProcess::Flip(const WorkerNode& worker, router::WorkerRole to, Duration patience,
                         std::function<void(const absl::Status&)> done) {
  life_now_->fleet->Flip({worker.name(), to, /*force=*/false, patience},
                         [done = std::move(done)](const absl::StatusOr<router::LinkView>& now) { done(now.status()); });
}

std::optional<router::LinkView> RouterProcess::ViewOf(const WorkerNode& worker) const {
  if (life_now_ == nullptr) return std::nullopt;
  for (router::LinkView& view : life_now_->fleet->Views()) {
    if (view.address == worker.name()) return std::move(view);
  }
  return std::nullopt;
}

void RouterProcess::OnHostGone(const WorkerNode& worker) {
  Cable* cable = CableTo(worker);
  if (cable != nullptr && cable->connection != nullptr) cable->connection->GoSilent();
}

void RouterProcess::Vanish() {
  vanishing_ = true;
  Kill();
  vanishing_ = false;
}

}  // namespace baton::sim
