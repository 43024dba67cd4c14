#include "router/fleet/worker_link.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <utility>

#include "common/log.h"
#include "common/planted_bug.h"
#include "common/str_cat.h"
#include "router/fleet/report_terms.h"

namespace baton::router {
namespace {

using std::chrono::milliseconds;

constexpr Duration kHandshakeTimeout = std::chrono::seconds(5);
constexpr Duration kLastWordsTick = milliseconds(5);

// Sessions are numbered over all links, so that one number never means two connections.
uint64_t NextSession() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

LinkLimits LinkLimitsOf(const RouterConfig& config) {
  LinkLimits limits;
  limits.heartbeat = milliseconds(config.heartbeat_timeout_ms);
  limits.report = ReportTermsOf(config).Longest();
  limits.step_stall = milliseconds(config.step_stall_ms);
  limits.step_stall_factor = config.step_stall_factor;
  limits.backoff_min = milliseconds(config.worker_backoff_min_ms);
  limits.backoff_max = milliseconds(config.worker_backoff_max_ms);
  return limits;
}

/// A call that was cut off says nothing of the request: not when this router cancelled it, nor when the connection
/// broke under it (gRPC then says CANCELLED, UNKNOWN or INTERNAL). Nor does one that a worker takes for a stranger's:
/// it has restarted since it was greeted.
absl::Status OfCall(const absl::Status& status) {
  if (absl::IsUnauthenticated(status))
    return absl::UnavailableError(StrCat("the worker knows no session of this router: ", status.message()));
  const bool cut = absl::IsCancelled(status) || absl::IsUnknown(status) || absl::IsInternal(status);
  if (!cut || PlantedBug("stale answer taken")) return status;
  return absl::UnavailableError(StrCat("the call was cut off: ", status.message()));
}

}  // namespace

WorkerLink::WorkerLink(int32_t slot, const std::string& address, const Parts& parts, std::unique_ptr<WorkerWire> wire)
    : slot_(slot),
      parts_(parts),
      wire_(std::move(wire)),
      timer_(parts.home.MakeTimer()),
      closed_timer_(parts.home.MakeTimer()),
      flow_(LinkLimitsOf(parts.config)) {
  view_.address = address;
  view_.id.index = slot;
  view_.outstanding = std::make_shared<OutstandingLoad>(parts_.clock);
  view_.since = parts_.clock.Now();
  view_.unproven = parts_.host.UnprovenAtFirst();
}

void WorkerLink::Start() {
  parts_.home.Post([self = shared_from_this()] {
    self->flow_.Start(self->parts_.clock.Now());
    self->Pump();
  });
}

void WorkerLink::Stop() {
  std::promise<void> done;
  parts_.home.Post([self = shared_from_this(), &done] {
    self->Leave(absl::CancelledError("the router stops before the answer is whole"));
    done.set_value();
  });
  done.get_future().wait();
  Shutdown();
}

void WorkerLink::Leave(const absl::Status& why) {
  timer_->Cancel();
  closed_timer_->Cancel();
  flow_.Stop(why);
  Pump();
}

void WorkerLink::DialNow() {
  flow_.DialNow();
  Pump();
}

void WorkerLink::Hold(std::string why) {
  std::lock_guard lock(mutex_);
  if (why.empty() != view_.held.empty()) view_.since = parts_.clock.Now();
  view_.held = std::move(why);
}

void WorkerLink::Prove(std::string unproven, std::optional<TimePoint> next) {
  std::unique_lock lock(mutex_);
  if (unproven.empty() != view_.unproven.empty()) view_.since = parts_.clock.Now();
  view_.unproven = unproven;
  view_.canary_at = next;
  const std::string name = view_.name();
  lock.unlock();
  if (unproven.empty()) return LogInfo("worker {}: proven by a canary, takes requests", name);
  Log(next ? LogLevel::kWarning : LogLevel::kInfo, "worker {}: unproven: {}", name, unproven);
}

void WorkerLink::Flip(WorkerRole to, Duration patience, std::function<void(const FlipAnswer&)> done) {
  wire_->Flip(to, patience, [self = shared_from_this(), done = std::move(done)](FlipAnswer answer) {
    self->parts_.home.Post([done, answer = std::move(answer)] { done(answer); });
  });
}

void WorkerLink::ShowFlip(const FlipView& view) {
  std::unique_lock lock(mutex_);
  view_.flip = std::make_shared<const FlipView>(view);
  const std::string name = view_.name();
  lock.unlock();
  LogInfo("worker {}: changes its role to {}: {}{}{}", name, WorkerRoleName(view.to), FlipStageName(view.stage),
          view.why.empty() ? "" : ": ", view.why);
}

bool WorkerLink::idle() const {
  std::lock_guard lock(mutex_);
  return view_.outstanding->requests() == 0 && book_.empty();
}

// Carrying out an action can cause events, whose actions come after those already here.
void WorkerLink::Pump() {
  if (std::exchange(pumping_, true)) return;
  for (auto actions = flow_.TakeActions(); !actions.empty(); actions = flow_.TakeActions()) {
    for (LinkAction& action : actions) std::visit([this](auto& one) { Do(std::move(one)); }, action);
  }
  pumping_ = false;
}

// ---- the flow's actions

void WorkerLink::Do(DialWorker action) {
  wire_->Handshake(
      parts_.host.GreetingKey(action.other_key), kHandshakeTimeout,
      [self = shared_from_this()](HandshakeAnswer answer) {
        self->parts_.home.Post([self, answer = std::move(answer)]() mutable { self->OnHandshake(std::move(answer)); });
      });
}

absl::Status WorkerLink::CheckProtocol(const HandshakeAnswer& answer) const {
  if (answer.protocol.Shares(WorkerProtocol())) return absl::OkStatus();
  return absl::FailedPreconditionError(StrCat("protocol: worker ", answer.facts.worker_id, " of version ",
                                              answer.facts.version, " speaks ", Text(answer.protocol), ", this router ",
                                              Text(WorkerProtocol())));
}

void WorkerLink::OnHandshake(HandshakeAnswer answer) {
  if (flow_.state() != LinkFlow::State::kDialling) return;
  const TimePoint now = parts_.clock.Now();
  if (absl::IsFailedPrecondition(answer.status)) {
    flow_.KeyRefused(answer.status, /*may_adopt=*/parts_.host.GreetingKey(true).empty(), now);
  } else if (absl::IsPermissionDenied(answer.status)) {
    flow_.Mismatch(answer.status, now);
  } else if (!answer.status.ok()) {
    flow_.Unreachable(answer.status, now);
  } else if (answer.loading) {
    flow_.Loading(answer.phase, answer.progress, now);
  } else {
    absl::Status admitted = CheckProtocol(answer);
    if (admitted.ok()) admitted = parts_.host.Admit(slot_, answer.facts);
    {
      std::lock_guard lock(mutex_);
      view_.duplicate = absl::IsAlreadyExists(admitted);
    }
    if (admitted.ok()) {
      facts_ = std::make_shared<const WorkerFacts>(std::move(answer.facts));
      flow_.Admitted(NextSession(), facts_->incarnation, now);
    } else {
      flow_.Mismatch(admitted, now);
    }
  }
  Pump();
}

void WorkerLink::Do(OpenSession action) {
  {
    std::lock_guard lock(mutex_);
    view_.id = WorkerId{slot_, action.session};
    const bool other = view_.facts != nullptr && view_.facts->incarnation != facts_->incarnation;
    // Who drained and is back with another role was told so by another router: `baton flip`.
    const bool flipped = other && view_.left_in_order && view_.facts->role != facts_->role;
    view_.restarts += other && !flipped && !view_.changes_its_role();
    view_.left_draining = view_.left_in_order = false;
    if (other) view_.unproven = parts_.host.UnprovenAtFirst();
    view_.facts = facts_;
    view_.load = WorkerLoad{};
    view_.has_load = false;
    view_.others_queued_tokens = 0;
    view_.outstanding = std::make_shared<OutstandingLoad>(parts_.clock);
  }
  auto self = shared_from_this();
  const uint64_t session = action.session;
  WorkerWire::RelayHandlers handlers;
  handlers.on_news = [self, session](std::vector<LegNews>& news) { self->OnRelay(session, news); };
  handlers.on_closed = [self, session](absl::Status why) {
    self->parts_.home.Post([self, session, why = std::move(why)] {
      self->OnClosed([&flow = self->flow_, session, why](TimePoint now) { flow.RelayClosed(session, why, now); });
    });
  };
  wire_->OpenRelay(session, std::move(handlers));
}

void WorkerLink::Do(OpenWatch action) {
  parts_.index.Clear(slot_);
  auto self = shared_from_this();
  const uint64_t round = action.round;
  WorkerWire::WatchHandlers handlers;
  handlers.on_event = [self, round](WatchEvent event, std::function<void()> next) {
    self->parts_.home.Post([self, round, event = std::move(event), next = std::move(next)]() mutable {
      self->OnWatch(round, std::move(event));
      next();
    });
  };
  handlers.on_closed = [self, round](absl::Status why) {
    self->parts_.home.Post([self, round, why = std::move(why)] {
      self->OnClosed([&flow = self->flow_, round, why](TimePoint now) { flow.WatchClosed(round, why, now); });
    });
  };
  wire_->OpenWatch(std::move(handlers));
}

void WorkerLink::OnWatch(uint64_t round, WatchEvent event) {
  event_ = &event;
  flow_.Watched(round, event, parts_.clock.Now());
  Pump();
  event_ = nullptr;
}

void WorkerLink::OnClosed(std::function<void(TimePoint)> tell) {
  closed_until_ = parts_.clock.Now() + kLastWordsWithin;
  closed_.push_back(std::move(tell));
  LookAtClosed();
}

void WorkerLink::LookAtClosed() {
  const TimePoint now = parts_.clock.Now();
  bool drained = false;
  Look([&](const LinkView& view) { drained = view.state == LinkState::kDraining; });
  if (drained && !idle() && now < closed_until_ && flow_.state() == LinkFlow::State::kServing)
    return closed_timer_->ArmAt(now + kLastWordsTick, [this] { LookAtClosed(); });
  for (const auto& tell : std::exchange(closed_, {})) tell(now);
  Pump();
}

void WorkerLink::Do(StoreUnits action) {
  if (action.forget_others) parts_.index.Clear(slot_);
  parts_.index.Store(slot_, event_->keys);
}

void WorkerLink::Do(RemoveUnits) { parts_.index.Remove(slot_, event_->keys); }

void WorkerLink::Do(TakeLoad) {
  std::lock_guard lock(mutex_);
  view_.load = event_->load;
  view_.has_load = true;
  view_.others_queued_tokens = std::max<int64_t>(0, event_->load.queued_tokens - view_.outstanding->PromptTokens());
}

// The book is emptied before the wire closes: what the wire still says of its calls is nobody's then.
void WorkerLink::Do(EndSession action) {
  LegBook book;
  WorkerId id;
  {
    std::lock_guard lock(mutex_);
    id = std::exchange(view_.id, WorkerId{slot_, 0});
    view_.losses += !view_.changes_its_role() && !view_.left_in_order;
    std::swap(book, book_);
  }
  wire_->CloseSession();
  parts_.index.Clear(slot_);
  book.TellLost(id, action.why);
}

void WorkerLink::Do(RenewLegs) {
  std::vector<LegRenewal> legs;
  {
    std::lock_guard lock(mutex_);
    legs = book_.Renewals();
  }
  if (!legs.empty()) wire_->Renew(flow_.session(), legs);
}

void WorkerLink::Do(ShowLink show) {
  std::unique_lock lock(mutex_);
  const bool changed = view_.state != show.state || view_.detail != show.detail;
  if (show.state == LinkState::kLost) {
    view_.left_draining = view_.state == LinkState::kDraining;
    view_.left_in_order = view_.left_draining && book_.empty() && view_.outstanding->requests() == 0 &&
                          !PlantedBug("who leaves in order is lost");
  }
  if (view_.state != show.state) view_.since = parts_.clock.Now();
  view_.state = show.state;
  view_.detail = show.detail;
  view_.phase = show.phase;
  view_.progress = show.progress;
  const bool asked_for = view_.changes_its_role() || view_.left_in_order;
  const std::string name = view_.facts ? view_.name() + " (" + view_.address + ")" : view_.address;
  lock.unlock();
  if (changed) {
    const bool bad = !asked_for && (show.state == LinkState::kLost || show.state == LinkState::kMismatch);
    Log(bad ? LogLevel::kWarning : LogLevel::kInfo, "worker {}: {}{}{}{}", name, LinkStateName(show.state),
        show.phase.empty() ? "" : " " + show.phase, show.detail.empty() ? "" : ": ", show.detail);
  }
}

void WorkerLink::Do(NowServing) { parts_.host.OnReady(slot_); }

void WorkerLink::Do(ArmLink action) {
  {
    std::lock_guard lock(mutex_);
    view_.dials_at = action.at;
  }
  timer_->ArmAt(action.at, [this] {
    flow_.Timer(parts_.clock.Now(), flow_.SeemsSilent() && wire_->HasUnread());
    Pump();
  });
}

void WorkerLink::Meet(const std::string& landing_address) { wire_->Meet(flow_.session(), landing_address); }

// ---- any thread

LinkView WorkerLink::View() const {
  std::lock_guard lock(mutex_);
  return view_;
}

void WorkerLink::Look(absl::FunctionRef<void(const LinkView&)> look) const {
  std::lock_guard lock(mutex_);
  look(view_);
}

void WorkerLink::Send(WorkerId id, const TokenizedRequest& generation, const LegOrder& order,
                      std::shared_ptr<LegEvents> events) {
  LegKey key;
  if (const auto* reserve = std::get_if<ReserveLeg>(&order)) key = reserve->key;
  if (const auto* prefill = std::get_if<PrefillLeg>(&order)) key = prefill->key;
  absl::Status sent = absl::UnavailableError("the connection to the worker was replaced");
  bool current = false;
  {
    std::lock_guard lock(mutex_);
    current = id.session != 0 && view_.id == id;
    if (current) book_.Note(order, events);
  }
  if (current) {
    sent = wire_->Send(id.session, generation, order, [self = shared_from_this(), id, key](LegAnswer answer) {
      self->OnAnswer(id, key, std::move(answer));
    });
  }
  if (sent.ok()) return;
  LegBook unsent;  // of this order alone
  unsent.Note(order, events);
  if (unsent.empty()) return;
  if (current) {
    std::lock_guard lock(mutex_);
    if (view_.id == id) book_.Drop(order);
  }
  unsent.TellLost(id, sent);
}

void WorkerLink::Forget(WorkerId id, const std::string& leg_id) {
  std::lock_guard lock(mutex_);
  if (view_.id == id) book_.End(leg_id);
}

void WorkerLink::OnAnswer(WorkerId id, const LegKey& key, LegAnswer answer) {
  if (auto* reserved = std::get_if<ReserveResult>(&answer)) reserved->status = OfCall(reserved->status);
  if (auto* prefilled = std::get_if<PrefillResult>(&answer)) prefilled->status = OfCall(prefilled->status);
  std::shared_ptr<LegEvents> events;
  {
    std::lock_guard lock(mutex_);
    if (view_.id == id || PlantedBug("stale answer taken")) events = book_.Answered(key, answer);
  }
  if (!events) return;
  EventLoop& loop = events->loop();
  loop.Post([events = std::move(events), key, answer = std::move(answer)]() mutable {
    events->OnAnswer(key, std::move(answer));
  });
}

// On a thread of the wire's: sorts the news by the loop of its request; one post per loop and message.
void WorkerLink::OnRelay(uint64_t session, std::vector<LegNews>& news) {
  struct Batch {
    EventLoop* loop;
    std::vector<std::pair<std::shared_ptr<LegEvents>, RelayNews>> items;
  };
  std::vector<Batch> batches;
  {
    std::lock_guard lock(mutex_);
    if (view_.id.session != session) return;
    for (LegNews& one : news) {
      const std::shared_ptr<LegEvents>* events = book_.Of(one.leg_id);
      if (events == nullptr) continue;
      EventLoop* loop = &(*events)->loop();
      auto batch = std::find_if(batches.begin(), batches.end(), [&](const Batch& b) { return b.loop == loop; });
      if (batch == batches.end()) {
        batch = batches.insert(batches.end(), Batch{loop, {}});
        batch->items.reserve(news.size());
      }
      batch->items.emplace_back(*events, std::move(one.news));
    }
  }
  for (Batch& batch : batches) {
    batch.loop->Post([items = std::move(batch.items)]() mutable {
      for (auto& [events, one] : items) events->OnNews(std::move(one));
    });
  }
}

}  // namespace baton::router
