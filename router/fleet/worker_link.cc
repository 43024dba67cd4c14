#include "router/fleet/worker_link.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <utility>

#include "common/log.h"
#include "common/str_cat.h"

namespace baton::router {
namespace {

constexpr Duration kHandshakeTimeout = std::chrono::seconds(5);
constexpr Duration kLoadingPoll = std::chrono::milliseconds(200);
constexpr Duration kLivenessPoll = std::chrono::milliseconds(100);

// Sessions are numbered over all links, so that one number never means two connections.
uint64_t NextSession() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

WorkerRpc::Options RpcOptions(const std::string& address, const RouterConfig& config, const std::string& router_id,
                              const std::string& version) {
  WorkerRpc::Options options;
  options.address = address;
  options.router_id = router_id;
  options.router_version = version;
  options.backoff_max_ms = config.worker_backoff_max_ms;
  options.load_interval_ms = static_cast<uint32_t>(config.load_interval_ms);
  return options;
}

}  // namespace

WorkerLink::WorkerLink(int32_t slot, const std::string& address, const RouterConfig& config,
                       const std::string& router_id, const std::string& version, Executor& home, LinkHost& host,
                       PrefixIndex& index, const Clock& clock)
    : slot_(slot),
      config_(config),
      home_(home),
      host_(host),
      index_(index),
      clock_(clock),
      rpc_(RpcOptions(address, config, router_id, version)),
      dial_timer_(home.MakeTimer()),
      liveness_timer_(home.MakeTimer()) {
  view_.address = address;
  view_.id.slot = slot;
  view_.outstanding = std::make_shared<OutstandingLoad>(clock_);
}

void WorkerLink::Start() {
  home_.Post([self = shared_from_this()] { self->Dial(); });
}

void WorkerLink::Stop() {
  std::promise<void> done;
  home_.Post([self = shared_from_this(), &done] {
    self->stopped_ = true;
    self->dial_timer_->Cancel();
    self->liveness_timer_->Cancel();
    if (self->session_ != 0) self->Lost(self->session_, absl::UnavailableError("the router stops"));
    done.set_value();
  });
  done.get_future().wait();
  rpc_.Shutdown();
}

void WorkerLink::Dial() {
  if (stopped_) return;
  rpc_.Handshake(
      host_.GreetingKey(key_refused_), kHandshakeTimeout, [self = shared_from_this()](HandshakeAnswer answer) {
        self->home_.Post([self, answer = std::move(answer)]() mutable { self->OnHandshake(std::move(answer)); });
      });
}

void WorkerLink::DialAfter(Duration pause) {
  if (stopped_) return;
  dial_timer_->ArmAt(clock_.Now() + pause, [this] { Dial(); });
}

Duration WorkerLink::NextBackoff() {
  const int64_t ms = std::min<int64_t>(config_.worker_backoff_max_ms,
                                       int64_t{config_.worker_backoff_min_ms} << std::min(failures_, 16));
  ++failures_;
  return std::chrono::milliseconds(ms);
}

void WorkerLink::OnHandshake(HandshakeAnswer answer) {
  if (stopped_) return;
  if (answer.status.code() == absl::StatusCode::kFailedPrecondition) {
    if (!key_refused_ && host_.GreetingKey(true).empty()) {
      key_refused_ = true;  // its key is another one: adopt it while this router has no index
      return Dial();
    }
    SetState(LinkState::kMismatch, std::string(answer.status.message()));
    return DialAfter(std::chrono::milliseconds(config_.worker_backoff_max_ms));
  }
  if (!answer.status.ok()) {
    SetState(LinkState::kConnecting, std::string(answer.status.message()));
    return DialAfter(NextBackoff());
  }
  if (answer.loading) {
    failures_ = 0;
    SetState(LinkState::kLoading, "", answer.phase, answer.progress);
    return DialAfter(kLoadingPoll);
  }
  absl::Status admitted;
  if (answer.protocol_min > kProtocolMax || answer.protocol_max < kProtocolMin) {
    admitted =
        absl::FailedPreconditionError(StrCat("protocol: worker speaks ", answer.protocol_min, "..", answer.protocol_max,
                                             ", router ", kProtocolMin, "..", kProtocolMax));
  } else {
    admitted = host_.Admit(slot_, answer.facts);
  }
  if (!admitted.ok()) {
    SetState(LinkState::kMismatch, std::string(admitted.message()));
    return DialAfter(std::chrono::milliseconds(config_.worker_backoff_max_ms));
  }
  OpenSession(std::move(answer.facts));
}

void WorkerLink::OpenSession(WorkerFacts facts) {
  failures_ = 0;
  session_ = NextSession();
  steps_ = 0;
  heard_ = steps_changed_ = renewed_ = clock_.Now();
  {
    std::lock_guard lock(mutex_);
    view_.id = WorkerId{slot_, session_};
    view_.facts = std::make_shared<const WorkerFacts>(std::move(facts));
    view_.load = WorkerLoad{};
    view_.has_load = false;
    view_.others_queued_tokens = 0;
    view_.outstanding = std::make_shared<OutstandingLoad>(clock_);
  }
  auto self = shared_from_this();
  const uint64_t session = session_;
  WorkerRpc::RelayHandlers handlers;
  handlers.on_news = [self](std::vector<LegNews>& news) { self->OnRelay(news); };
  handlers.on_closed = [self, session](absl::Status status) {
    auto why =
        absl::UnavailableError(StrCat("the relay ended: ", status.ok() ? "the worker closed it" : status.message()));
    self->home_.Post([self, session, why = std::move(why)] { self->Lost(session, why); });
  };
  rpc_.OpenRelay(session, std::move(handlers));
  Watch();
  SetState(LinkState::kReady, "");
  liveness_timer_->ArmAt(clock_.Now() + kLivenessPoll, [this] { CheckLiveness(); });
  host_.OnReady(slot_);
}

void WorkerLink::Meet(const std::string& landing_address) { rpc_.Meet(session_, landing_address); }

// A round is one Watch stream. What an older round still says is dropped.
void WorkerLink::Watch() {
  const uint64_t round = ++watch_round_;
  next_sequence_ = 1;
  digest_ = 0;
  snapshot_open_ = true;
  index_.Clear(slot_);
  auto self = shared_from_this();
  WorkerRpc::WatchHandlers handlers;
  handlers.on_event = [self, round](WatchEvent event, std::function<void()> next) {
    self->home_.Post([self, round, event = std::move(event), next = std::move(next)]() mutable {
      self->OnWatch(round, std::move(event));
      next();
    });
  };
  handlers.on_closed = [self, round](absl::Status status) {
    auto why = absl::UnavailableError(
        StrCat("the event stream ended: ", status.ok() ? "the worker closed it" : status.message()));
    self->home_.Post([self, round, why = std::move(why)] {
      if (round == self->watch_round_) self->Lost(self->session_, why);
    });
  };
  rpc_.OpenWatch(std::move(handlers));
}

// The index of this worker cannot be trusted: a new stream begins with a snapshot. Requests go on.
void WorkerLink::WatchAgain(const std::string& why) {
  LogWarning("worker {}: {}; asking for a snapshot", view_.address, why);
  Watch();
}

void WorkerLink::OnWatch(uint64_t round, WatchEvent event) {
  if (round != watch_round_ || session_ == 0) return;
  heard_ = clock_.Now();
  if (event.sequence_number != next_sequence_) {
    return WatchAgain(StrCat("event ", event.sequence_number, " came, expected ", next_sequence_));
  }
  ++next_sequence_;
  switch (event.kind) {
    case WatchEvent::Kind::kLoad: {
      if (event.load.steps != steps_) {
        steps_ = event.load.steps;
        steps_changed_ = heard_;
      }
      if (event.load.running + event.load.waiting == 0) steps_changed_ = heard_;
      std::lock_guard lock(mutex_);
      view_.load = event.load;
      view_.has_load = true;
      view_.others_queued_tokens = std::max<int64_t>(0, event.load.queued_tokens - view_.outstanding->PromptTokens());
      return;
    }
    case WatchEvent::Kind::kState:
      if (event.state == LinkState::kDraining || event.state == LinkState::kReady) SetState(event.state, event.detail);
      return;
    default: OnKvEvent(event);
  }
}

void WorkerLink::OnKvEvent(const WatchEvent& event) {
  uint64_t sum = 0;
  for (const uint64_t key : event.keys) sum += key;
  if (event.kind == WatchEvent::Kind::kRemoved) {
    index_.Remove(slot_, event.keys);
    digest_ -= sum;
  } else {
    if (event.kind == WatchEvent::Kind::kSnapshot && !snapshot_open_) {
      index_.Clear(slot_);
      digest_ = 0;
    }
    index_.Store(slot_, event.keys);
    digest_ += sum;
  }
  if (event.kind == WatchEvent::Kind::kSnapshot) {
    snapshot_open_ = !event.snapshot_last;
  } else if (digest_ != event.digest) {
    WatchAgain(StrCat("prefix digest differs after event ", event.sequence_number));
  }
}

// On a gRPC thread: sorts the news by the executor of its request; one post per executor and message.
void WorkerLink::OnRelay(std::vector<LegNews>& news) {
  struct Batch {
    Executor* executor;
    std::vector<std::pair<std::shared_ptr<RelaySink>, RelayNews>> items;
  };
  std::vector<Batch> batches;
  {
    std::lock_guard lock(mutex_);
    for (LegNews& one : news) {
      auto found = sinks_.find(AbslView(one.leg_id));
      if (found == sinks_.end()) continue;
      Executor* executor = &found->second->executor();
      auto batch = std::find_if(batches.begin(), batches.end(), [&](const Batch& b) { return b.executor == executor; });
      if (batch == batches.end()) {
        batch = batches.insert(batches.end(), Batch{executor, {}});
        batch->items.reserve(news.size());
      }
      batch->items.emplace_back(found->second, std::move(one.news));
    }
  }
  for (Batch& batch : batches) {
    batch.executor->Post([items = std::move(batch.items)]() mutable {
      for (auto& [sink, one] : items) sink->OnNews(std::move(one));
    });
  }
}

void WorkerLink::Lost(uint64_t session, const absl::Status& why) {
  if (session != session_ || session == 0) return;
  const WorkerId id{slot_, session_};
  session_ = 0;
  ++watch_round_;
  liveness_timer_->Cancel();
  rpc_.CloseSession();
  index_.Clear(slot_);
  absl::flat_hash_map<std::string, std::shared_ptr<RelaySink>> sinks;
  SetState(LinkState::kLost, std::string(why.message()));
  {
    std::lock_guard lock(mutex_);
    sinks.swap(sinks_);
    live_.Clear();
  }
  for (auto& [leg, sink] : sinks) {
    sink->executor().Post([sink = sink, id, why] { sink->OnWorkerLost(id, why); });
  }
  DialAfter(NextBackoff());
}

// Two signals: reports (is the process there) and the step counter (does it make progress). A starved machine makes
// steps slow, so a stall is judged against the step time the worker itself predicts.
void WorkerLink::CheckLiveness() {
  if (session_ == 0) return;
  const TimePoint now = clock_.Now();
  double predicted_ms = 0;
  {
    std::lock_guard lock(mutex_);
    predicted_ms = view_.load.predicted_step_ms;
  }
  const double silent_ms = Milliseconds(now - heard_);
  const double stalled_ms = Milliseconds(now - steps_changed_);
  const double stall_limit_ms = std::max<double>(config_.step_stall_ms, config_.step_stall_factor * predicted_ms);
  if (silent_ms > config_.heartbeat_timeout_ms) {
    return Lost(session_,
                absl::UnavailableError(StrCat("no report for ", static_cast<int64_t>(silent_ms),
                                              " ms (--heartbeat-timeout-ms ", config_.heartbeat_timeout_ms, ")")));
  }
  if (stalled_ms > stall_limit_ms) {
    return Lost(session_, absl::UnavailableError(StrCat("no step for ", static_cast<int64_t>(stalled_ms), " ms, limit ",
                                                        static_cast<int64_t>(stall_limit_ms),
                                                        " (--step-stall-ms, --step-stall-factor)")));
  }
  RenewLegs(now);
  liveness_timer_->ArmAt(now + kLivenessPoll, [this] { CheckLiveness(); });
}

void WorkerLink::RenewLegs(TimePoint now) {
  if (now - renewed_ < kRenewEvery) return;
  renewed_ = now;
  std::vector<LegRenewal> legs;
  {
    std::lock_guard lock(mutex_);
    legs = live_.Renewals();
  }
  rpc_.Renew(session_, legs);
}

void WorkerLink::SetState(LinkState state, std::string detail, std::string phase, double progress) {
  std::lock_guard lock(mutex_);
  if (!stopped_ && (view_.state != state || view_.detail != detail)) {
    const auto level =
        state == LinkState::kLost || state == LinkState::kMismatch ? LogLevel::kWarning : LogLevel::kInfo;
    Log(level, "worker {}: {}{}{}{}", view_.address, LinkStateName(state), phase.empty() ? "" : " " + phase,
        detail.empty() ? "" : ": ", detail);
  }
  view_.state = state;
  view_.detail = std::move(detail);
  view_.phase = std::move(phase);
  view_.progress = progress;
  if (state == LinkState::kLost) view_.id.session = 0;
}

LinkView WorkerLink::View() const {
  std::lock_guard lock(mutex_);
  return view_;
}

absl::Status WorkerLink::Attach(WorkerId id, const Generation& generation, const AttachOrder& order,
                                std::shared_ptr<RelaySink> sink) {
  {
    std::lock_guard lock(mutex_);
    if (view_.id != id) return absl::UnavailableError("the worker's connection was replaced");
    sinks_[order.leg_id] = std::move(sink);
    live_.Attached(order.leg_id, order.attempt, order.attach_gen);
  }
  absl::Status sent = rpc_.Attach(id.session, generation, order);
  if (!sent.ok()) Forget(id, order.leg_id);
  return sent;
}

void WorkerLink::Reserve(WorkerId id, const Generation& generation, const LegKey& key, uint32_t expiry_ms,
                         std::shared_ptr<RelaySink> sink) {
  {
    std::lock_guard lock(mutex_);
    if (view_.id == id) sinks_[key.leg_id] = sink, live_.Reserved(key);
  }
  rpc_.Reserve(id.session, generation, key, expiry_ms, [sink, key](ReserveResult result) {
    sink->executor().Post(
        [sink, key, result = std::move(result)]() mutable { sink->OnReserved(key, std::move(result)); });
  });
}

void WorkerLink::Prefill(WorkerId id, const Generation& generation, const LegKey& key, const TicketGrant& grant,
                         uint32_t deadline_ms, std::shared_ptr<RelaySink> sink) {
  {
    std::lock_guard lock(mutex_);
    if (view_.id == id) live_.Prefilling(key);
  }
  WorkerRpc::PrefillHandlers handlers;
  handlers.on_prompt_logprobs = [sink, key](std::string piece) {
    sink->executor().Post(
        [sink, key, piece = std::move(piece)]() mutable { sink->OnPrefillPiece(key, std::move(piece)); });
  };
  handlers.done = [self = shared_from_this(), id, sink, key](PrefillResult result) {
    self->PrefillOver(id, key);
    sink->executor().Post(
        [sink, key, result = std::move(result)]() mutable { sink->OnPrefillEnd(key, std::move(result)); });
  };
  rpc_.Prefill(id.session, generation, key, grant, deadline_ms, std::move(handlers));
}

void WorkerLink::PrefillOver(WorkerId id, const LegKey& key) {
  std::lock_guard lock(mutex_);
  if (view_.id == id) live_.PrefillEnded(key);
}

void WorkerLink::CancelLeg(WorkerId id, const LegKey& key, bool asks_again) {
  if (key.epoch == 0) {
    Forget(id, key.leg_id);
  } else {
    PrefillOver(id, key);
  }
  rpc_.CancelLeg(id.session, key, asks_again);
}

void WorkerLink::Cancel(WorkerId id, const std::string& leg_id, uint64_t attach_gen, std::optional<uint32_t> index) {
  rpc_.Cancel(id.session, leg_id, attach_gen, index);
  if (!index) Forget(id, leg_id);
}

void WorkerLink::Credit(WorkerId id, const std::string& leg_id, uint64_t attach_gen, uint32_t index, uint32_t tokens) {
  rpc_.Credit(id.session, leg_id, attach_gen, index, tokens);
}

void WorkerLink::Forget(WorkerId id, const std::string& leg_id) {
  std::lock_guard lock(mutex_);
  if (view_.id == id) sinks_.erase(leg_id), live_.Ended(leg_id);
}

}  // namespace baton::router
