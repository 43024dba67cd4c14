#include "sim/disturber.h"

#include <algorithm>

namespace baton::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

void Disturber::Start() {
  over_at_ = time_.Now();
  if (plant_.scenario.calm) return;
  if (plant_.scenario.meddles) Meddle();
  if (plant_.scenario.rivals_at_ms > 0)
    time_.After(milliseconds(plant_.scenario.rivals_at_ms), [this] { FlipAllThatDecode(); });
  if (plant_.scenario.one_fault == OneFault::kNone) return Tick();
  time_.After(milliseconds(plant_.scenario.fault_at_ms), [this] { Once(); });
}

void Disturber::Tick() {
  if (!plant_.faults_on) return;
  for (WorkerNode* worker : workers_) DisturbWorker(*worker);
  for (RouterProcess* router : routers_) DisturbRouter(*router);
  time_.After(milliseconds(100), [this] { Tick(); });
}

void Disturber::Meddle() {
  if (!plant_.faults_on) return;
  RouterProcess& router = AnyRouter();
  const WorkerNode& worker = AnyWorker();
  if (router.alive() && !router.stopped()) router.Meddle(worker);
  time_.After(time_.Between(milliseconds(1), milliseconds(10)), [this] { Meddle(); });
}

Duration Disturber::Pause() {
  const int most = plant_.scenario.most_stop_ms;
  const Duration short_one = time_.Between(milliseconds(50), milliseconds(std::min(most, 4000)));
  return time_.Below(3) != 0 ? short_one : time_.Between(milliseconds(100), milliseconds(most));
}

void Disturber::DisturbWorker(WorkerNode& worker) {
  const ClusterScenario& s = plant_.scenario;
  if (!worker.alive() || worker.stopped()) return;
  if (time_.Chance(s.cut / 10)) AnyRouter().Break(worker);
  if (time_.Chance(s.part / 10)) {
    const Duration pause = Pause();
    AnyRouter().Part(worker, pause);
    LastsFor(pause);
  }
  if (time_.Chance(s.stop / 10)) Stop(worker, Pause());
  if (time_.Chance(s.flip / 10)) Flip(worker);
  if (s.drain > 0 && time_.Chance(s.drain / 10)) Order(worker);
  if (s.rank_dies > 0 && worker.ranks() > 1 && time_.Chance(s.rank_dies / 10)) LoseRank(worker);
  if (s.upgrade > 0 && time_.Chance(s.upgrade / 10)) return Upgrade(worker);
  if (time_.Chance(s.die / 10)) {
    Die(worker, false);
  } else if (time_.Chance(s.vanish / 10)) {
    Die(worker, true);
  }
}

void Disturber::DisturbRouter(RouterProcess& router) {
  const ClusterScenario& s = plant_.scenario;
  if (!router.alive() || router.stopped()) return;
  if (time_.Chance(s.router_stop / 10)) Stop(router, Pause());
  const bool dies = time_.Chance(s.router_die / 10), vanishes = time_.Chance(s.router_vanish / 10);
  if (!dies && !vanishes) return;
  dies ? router.Kill() : router.Vanish();
  ++deaths_;
  ComeBack(router, time_.Between(milliseconds(200), seconds(1)));
}

void Disturber::Stop(Process& process, Duration how_long) {
  process.Stop();
  LastsFor(how_long);
  time_.After(how_long, [&process, life = process.life()] {
    if (process.life() == life && process.stopped()) process.Resume();
  });
}

void Disturber::Die(WorkerNode& worker, bool with_machine) {
  for (RouterProcess* router : routers_) with_machine ? router->OnHostGone(worker) : router->OnWorkerGone(worker);
  with_machine ? worker.Vanish() : worker.Kill();
  ++deaths_;
  const Duration after = time_.Between(milliseconds(50), seconds(1));
  LastsFor(after);
  time_.After(after, [this, &worker] {  // operators know that somebody has to decode
    if (plant_.scenario.roles_change() && !AnotherDecodes(worker)) worker.BeginAs(v1::WORKER_ROLE_DECODE);
    worker.Start();
  });
}

int Disturber::AnyRankBut0(const WorkerNode& worker, Timeline& time) {
  return 1 + static_cast<int>(time.Below(static_cast<uint64_t>(worker.ranks() - 1)));
}

/// For the one fault: of the role that it befalls.
WorkerNode& Disturber::OneWithRanks() {
  const auto role = plant_.scenario.rank_prefills ? v1::WORKER_ROLE_PREFILL : v1::WORKER_ROLE_DECODE;
  WorkerNode* worker = &AnyWorker();
  while (worker->role() != role) worker = &AnyWorker();
  rank_moment_ = worker->Moment();
  return *worker;
}

/// The others end when they have waited for --rank-timeout-ms.
void Disturber::HangRank(WorkerNode& worker) {
  const int rank = AnyRankBut0(worker, time_);
  const Duration stands = milliseconds(plant_.scenario.most_stop_ms),
                 patience = milliseconds(plant_.scenario.rank_timeout_ms);
  worker.HangRank(rank);
  LastsFor(std::min(stands, patience));
  time_.After(std::min(stands, patience), [this, &worker, rank, life = worker.life(), ends = stands > patience] {
    if (!worker.alive() || worker.life() != life) return;
    ends ? Die(worker, false) : worker.ResumeRank(rank);
  });
}

/// Who is left notices that steps do not end, or that a line broke, and ends as well.
void Disturber::LoseRank(WorkerNode& worker) {
  worker.LoseRank(AnyRankBut0(worker, time_));
  const Duration noticed = time_.Between(milliseconds(1), milliseconds(1500));
  LastsFor(noticed + seconds(1));
  time_.After(noticed, [this, &worker, life = worker.life()] {
    if (worker.alive() && worker.life() == life) Die(worker, false);
  });
}

void Disturber::Upgrade(WorkerNode& worker) {
  const uint32_t old = KvProtocol().max;
  const bool apart = plant_.scenario.seed % 2 == 0;
  const bool is_old = worker.kv_protocol() == KvProtocol();
  worker.Upgrade(is_old ? ProtocolVersions{apart ? old + 1 : old, old + 1} : KvProtocol());
  Die(worker, false);
}

void Disturber::ComeBack(Process& process, Duration after) {
  LastsFor(after);
  time_.After(after, [&process] { process.Start(); });
}

void Disturber::Once() {
  const Duration how_long = milliseconds(plant_.scenario.most_stop_ms);
  WorkerNode& worker = AnyWorker();
  switch (plant_.scenario.one_fault) {
    case OneFault::kNone:
    case OneFault::kMeddle: return;
    case OneFault::kKill: return Die(worker, false);
    case OneFault::kVanish: return Die(worker, true);
    case OneFault::kStop: return Stop(worker, how_long);
    case OneFault::kCut: return AnyRouter().Break(worker);
    case OneFault::kPart: {
      AnyRouter().Part(worker, how_long);
      return LastsFor(how_long);
    }
    case OneFault::kPauseRouter: return Stop(AnyRouter(), how_long);
    case OneFault::kDrain: return Drain(AnyRouter(), worker, how_long);
    case OneFault::kFlip: {
      for (WorkerNode* one = &worker; !Flip(*one);) one = &AnyWorker();
      return;
    }
    case OneFault::kLoseRank: return LoseRank(OneWithRanks());
    case OneFault::kHangRank: return HangRank(OneWithRanks());
    case OneFault::kPauseAll: {
      for (WorkerNode* one : workers_) Stop(*one, how_long);
      for (RouterProcess* one : routers_) Stop(*one, how_long);
    }
  }
}

void Disturber::Drain(RouterProcess& router, const WorkerNode& worker, Duration how_long) {
  router.Drain(worker, /*undo=*/false);
  LastsFor(how_long);
  time_.After(how_long, [&router, &worker] { router.Drain(worker, /*undo=*/true); });
}

/// Now, and nobody has asked it to change; or as soon as it is back.
bool Disturber::AnotherDecodes(const WorkerNode& worker) const {
  return std::ranges::any_of(workers_, [&](const WorkerNode* one) {
    const v1::WorkerRole role = one->alive() ? one->role() : one->begins_as();
    const bool asked = one->changes_role() || std::ranges::count(flips_asked_, one) > 0 ||
                       std::ranges::any_of(flips_, [one](const OrderedFlip& flip) {
                         const auto view = flip.worker == one ? flip.View() : nullptr;
                         return view != nullptr && !view->over();
                       });
    const bool drained = std::ranges::any_of(routers_, [&](const auto* router) { return IsDrained(*router, *one); });
    return one != &worker && role == v1::WORKER_ROLE_DECODE && !asked && !drained;
  });
}

bool Disturber::Flip(WorkerNode& worker) {
  const bool prefills = worker.role() == v1::WORKER_ROLE_PREFILL;
  RouterProcess& router = AnyRouter();
  if (!flips_asked_.empty() || !OpenFlips().empty() || (!prefills && !AnotherDecodes(worker))) return false;
  if (!router.alive() || router.stopped() || !router.ViewOf(worker)) return false;
  AskToFlip(router, worker, prefills ? router::WorkerRole::kDecode : router::WorkerRole::kPrefill);
  return true;
}

void Disturber::AskToFlip(RouterProcess& router, const WorkerNode& worker, router::WorkerRole to) {
  flips_asked_.push_back(&worker);
  router.Flip(worker, to, milliseconds(plant_.scenario.flip_patience_ms),
              [this, &router, &worker, life = router.life()](const absl::Status& begun) {
                flips_asked_.erase(std::ranges::find(flips_asked_, &worker));
                if (begun.ok()) flips_.push_back({&router, life, &worker, time_.Now()});
              });
}

void Disturber::FlipAllThatDecode() {
  for (WorkerNode* worker : workers_) {
    RouterProcess& router = AnyRouter();
    if (!worker->alive() || worker->role() != v1::WORKER_ROLE_DECODE) continue;
    if (!router.alive() || router.stopped() || !router.ViewOf(*worker)) continue;
    AskToFlip(router, *worker, router::WorkerRole::kPrefill);
  }
}

bool Disturber::IsDrained(const RouterProcess& router, const WorkerNode& worker) const {
  const auto found = drained_.find({&router, &worker});
  return found != drained_.end() && router.alive() && found->second == router.life();
}

/// A drain counts from when it was ordered, and a resumption once it is done: operators keep one that decodes.
void Disturber::Order(WorkerNode& worker) {
  RouterProcess& router = AnyRouter();
  const bool undo = time_.Below(2) == 0;
  if (!router.alive() || router.stopped() || !router.ViewOf(worker)) return;
  if (!undo && !AnotherDecodes(worker)) return;
  const bool before = IsDrained(router, worker);
  const std::pair<const RouterProcess*, const WorkerNode*> which(&router, &worker);
  if (!undo) drained_[which] = router.life();
  router.Order(worker, undo, [this, which, undo, before](const absl::Status& done) {
    if (undo ? done.ok() : !done.ok() && !before) drained_.erase(which);
  });
}

std::string Disturber::Disobeyed() const {
  std::string wrong;
  for (const RouterProcess* router : routers_) {
    for (const WorkerNode* worker : workers_) {
      const auto view = router->alive() ? router->ViewOf(*worker) : std::nullopt;
      if (view && !view->held.empty() != IsDrained(*router, *worker))
        wrong += StrCat(" ", worker->name(), " is ", view->held.empty() ? "not held" : view->held.c_str(), ";");
    }
  }
  return wrong;
}

int Disturber::drains_held() const {
  return static_cast<int>(std::ranges::count_if(
      drained_, [this](const auto& one) { return IsDrained(*one.first.first, *one.first.second); }));
}

void Disturber::ResumeDrained() {
  for (RouterProcess* router : routers_) {
    for (const WorkerNode* worker : workers_) {
      if (IsDrained(*router, *worker)) router->Order(*worker, /*undo=*/true, [](const absl::Status&) {});
    }
  }
  drained_.clear();
}

std::shared_ptr<const router::FlipView> Disturber::OrderedFlip::View() const {
  if (!router->alive() || router->life() != router_life) return nullptr;
  return router->ViewOf(*worker)->flip;
}

std::string Disturber::OpenFlips() const {
  std::string open;
  for (const OrderedFlip& flip : flips_) {
    const auto view = flip.View();
    if (view != nullptr && !view->over()) open += StrCat(" ", flip.worker->name(), " ", FlipStageName(view->stage));
  }
  return open;
}

std::string Disturber::FailedFlips() const {
  std::string failed;
  for (const OrderedFlip& flip : flips_) {
    const auto view = flip.View();
    if (view != nullptr && view->stage == router::FlipStage::kFailed)
      failed += StrCat(" ", flip.worker->name(), ": ", view->why);
  }
  return failed;
}

TimePoint Disturber::flips_over_by() const {
  TimePoint by = over_at_;
  for (const OrderedFlip& flip : flips_) by = std::max(by, flip.ordered);
  return by + milliseconds(plant_.scenario.flip_patience_ms) + router::FlipBook::kReturnWithin + seconds(1);
}

int Disturber::flips_done() const {
  return static_cast<int>(std::ranges::count_if(flips_, [](const OrderedFlip& flip) {
    const auto view = flip.View();
    return view != nullptr && view->stage == router::FlipStage::kDone;
  }));
}

void Disturber::ResumeAll() {
  for (WorkerNode* worker : workers_) {
    if (worker->stopped()) worker->Resume();
  }
  for (RouterProcess* router : routers_) {
    if (router->stopped()) router->Resume();
  }
}

}  // namespace baton::sim
