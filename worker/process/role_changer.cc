#include "worker/process/role_changer.h"

#include <utility>

#include "common/log.h"
#include "common/prefix_hash.h"
#include "common/status.h"

namespace baton::worker {
namespace {

const char* NameOf(v1::WorkerRole role) { return role == v1::WORKER_ROLE_PREFILL ? "prefill" : "decode"; }

}  // namespace

absl::StatusOr<std::string> NewIncarnation() {
  BATON_ASSIGN_OR_RETURN(const HashKey random, HashKey::Random());
  return random.Hex().substr(0, 16);
}

absl::StatusOr<std::unique_ptr<Role>> RoleChanger::Make(const LoadedModel& loaded, v1::WorkerRole role,
                                                        const std::string& incarnation) const {
  return parts_.make({parts_.config, loaded, incarnation, parts_.clock, parts_.kv_trust(), role});
}

void RoleChanger::Change(v1::WorkerRole to, Duration patience, RoleChanged done) {
  const std::shared_ptr<EngineShell> engine = parts_.state.engine();
  if (to != v1::WORKER_ROLE_PREFILL && to != v1::WORKER_ROLE_DECODE)
    return done(absl::InvalidArgumentError("a worker changes to prefill or decode"));
  std::unique_lock lock(mutex_);
  if (given_up_) return done(absl::UnavailableError("the worker ends"));
  if (to_ && *to_ != to)
    return done(absl::FailedPreconditionError(StrCat("the worker changes its role already, to ", NameOf(*to_))));
  if (to_) return told_.push_back(std::move(done));
  if (!engine) return done(absl::UnavailableError("the worker is still loading"));
  if (engine->wire_role() == to) return done(RoleChange{parts_.state.Describe().incarnation()});
  if (thread_.joinable()) thread_.join();  // it has ended
  to_ = to;
  told_.push_back(std::move(done));
  thread_ = std::thread([this, to, patience] {
    const absl::StatusOr<RoleChange> change = Run(to, patience);
    if (!change.ok()) LogWarning("worker: the role stays what it was: {}", View(change.status().message()));
    std::vector<RoleChanged> told;
    {
      std::lock_guard ended(mutex_);
      to_.reset();
      told.swap(told_);
    }
    for (const RoleChanged& one : told) one(change);
  });
}

absl::Status RoleChanger::Drain(EngineShell& engine, Duration patience) {
  struct Wait {
    std::mutex mutex;
    bool drained = false;
  };
  const auto wait = std::make_shared<Wait>();
  engine.Drain([this, wait] {
    {
      std::lock_guard lock(wait->mutex);
      wait->drained = true;
    }
    changed_.notify_all();
  });
  const TimePoint until = patience > Duration::zero() ? parts_.clock.Now() + patience : TimePoint::max();
  std::unique_lock lock(mutex_);
  for (;;) {
    if (given_up_) return absl::UnavailableError("the worker ends");
    {
      std::lock_guard drained(wait->mutex);
      if (wait->drained) return absl::OkStatus();
    }
    if (parts_.clock.Now() >= until) {
      engine.Resume();
      return absl::DeadlineExceededError(
          StrCat("requests still run after ", static_cast<int64_t>(Milliseconds(patience)), " ms"));
    }
    changed_.wait_for(lock, std::chrono::milliseconds(20));
  }
}

absl::StatusOr<RoleChange> RoleChanger::Run(v1::WorkerRole to, Duration patience) {
  const std::shared_ptr<EngineShell> engine = parts_.state.engine();
  const v1::WorkerRole from = engine->wire_role();
  const TimePoint began = parts_.clock.Now();
  LogInfo("worker: changes its role from {} to {}: takes no new requests", NameOf(from), NameOf(to));
  BATON_RETURN_IF_ERROR(Drain(*engine, patience));
  const TimePoint drained = parts_.clock.Now();
  parts_.set_serving(false);
  parts_.state.progress().Set("role", 0);
  parts_.state.SetEngine(nullptr);
  RoleChange change;
  absl::Status made = absl::OkStatus();
  for (const v1::WorkerRole role : {to, from}) {  // the one that it had, should the other not be had
    BATON_ASSIGN_OR_RETURN(change.incarnation, NewIncarnation());
    const absl::Status status =
        engine->ChangeRole([&] { return Make(engine->loaded(), role, change.incarnation); }, change.incarnation);
    if (role == to) made = status;
    if (status.ok()) break;
    if (role == to) continue;
    std::lock_guard lock(mutex_);
    health_ = absl::Status(status.code(), StrCat("the worker has no role any more: ", View(status.message())));
  }
  parts_.state.SetIncarnation(change.incarnation);
  parts_.state.SetEngine(engine);
  if (!Health().ok()) return Health();
  parts_.set_serving(true);
  BATON_RETURN_IF_ERROR(made);
  change.drained = drained - began;
  change.changed = parts_.clock.Now() - drained;
  LogInfo("worker: its role is {} from now on; {:.0f} ms until nothing ran, {:.0f} ms for the change", NameOf(to),
          Milliseconds(change.drained), Milliseconds(change.changed));
  return change;
}

void RoleChanger::GiveUp() {
  std::lock_guard lock(mutex_);
  given_up_ = true;
  changed_.notify_all();
}

void RoleChanger::Stop() {
  GiveUp();
  if (thread_.joinable()) thread_.join();
}

absl::Status RoleChanger::Health() const {
  std::lock_guard lock(mutex_);
  return health_;
}

}  // namespace baton::worker
