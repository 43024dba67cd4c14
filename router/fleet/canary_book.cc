#include "router/fleet/canary_book.h"

#include <algorithm>
#include <tuple>

#include "common/str_cat.h"

namespace baton::router {

bool CanaryBook::proven(int32_t slot) const {
  const auto found = workers_.find(slot);
  return found != workers_.end() && found->second.state == State::kProven;
}

void CanaryBook::Serve(absl::Span<const Member> serving, TimePoint now) {
  for (auto& [slot, worker] : workers_) worker.served = std::exchange(worker.serves, false);
  for (const Member& member : serving) {
    Worker& worker = workers_[member.slot];
    const bool same = worker.member.incarnation == member.incarnation && worker.member.role == member.role;
    if (!same) {
      worker = {};
      worker.member = member;
    }
    if (worker.state == State::kFailed && !worker.served) worker.state = State::kDue;
    worker.serves = true;
  }
  std::optional<TimePoint> next;
  for (auto& [slot, worker] : workers_) {
    if (!worker.serves || (worker.state != State::kDue && worker.state != State::kFailed)) continue;
    const bool due = worker.state == State::kDue || now >= worker.due;
    if (due && (canaries_.size() >= kMostAtOnce || Begin(worker))) continue;  // or looked at when one has ended
    if (!due && (!next || worker.due < *next)) next = worker.due;
  }
  if (next) actions_.emplace_back(ArmCanaries{*next});
}

/// Its canary, with the best other half there is. False: it has to wait for one.
bool CanaryBook::Begin(Worker& worker) {
  const bool prefills = worker.member.role == WorkerRole::kPrefill;
  Worker* other = OtherHalf(worker);
  if (other == nullptr && prefills) {
    Show(worker,
         StrCat("its canary waits for a worker that decodes and speaks KV protocol ", Text(worker.member.kv_protocol)));
    return false;
  }
  Canary canary;
  canary.decode = prefills ? other->member.slot : worker.member.slot;
  if (other != nullptr) canary.prefill = prefills ? worker.member.slot : other->member.slot;
  const uint64_t number = ++last_canary_;
  for (Worker* one : {&worker, other}) {
    if (one == nullptr) continue;
    canary.incarnations[one->member.slot] = one->member.incarnation;
    ++one->canaries;
    if (one->state == State::kProven || one->state == State::kRuns) continue;
    one->state = State::kRuns;
    one->canary = number;
  }
  for (const auto& [slot, incarnation] : canary.incarnations) {
    Worker& one = workers_.at(slot);
    if (one.canary == number) Show(one, StrCat("its canary runs, through ", Through(canary)));
  }
  actions_.emplace_back(RunCanary{number, canary.prefill, canary.decode});
  canaries_.emplace(number, std::move(canary));
  return true;
}

/// Not the one that it failed with, where there is another; of the same numerics, as most requests have it; a proven
/// one; and not always the same one.
CanaryBook::Worker* CanaryBook::OtherHalf(const Worker& worker) {
  if (worker.member.role == WorkerRole::kBoth) return nullptr;
  const WorkerRole wanted = worker.member.role == WorkerRole::kPrefill ? WorkerRole::kDecode : WorkerRole::kPrefill;
  const auto rank = [&worker](const Worker& other) {
    return std::tuple(worker.failed_with == other.member.slot, other.member.numerics != worker.member.numerics,
                      other.state != State::kProven, other.state == State::kFailed, other.canaries);
  };
  Worker* best = nullptr;
  for (auto& [slot, other] : workers_) {
    if (!other.serves || other.member.role != wanted) continue;
    if (!other.member.kv_protocol.Shares(worker.member.kv_protocol)) continue;
    if (best == nullptr || rank(other) < rank(*best)) best = &other;
  }
  return best;
}

std::string CanaryBook::Through(const Canary& canary) const {
  const auto name = [this](int32_t slot) {
    const auto found = workers_.find(slot);
    return found == workers_.end() ? std::string("a worker that has left") : found->second.member.name;
  };
  return canary.prefill ? StrCat(name(*canary.prefill), " and ", name(canary.decode)) : name(canary.decode) + " alone";
}

void CanaryBook::Show(Worker& worker, std::string unproven, std::optional<TimePoint> next) {
  if (worker.shown == unproven && !unproven.empty() && !next) return;
  worker.shown = unproven;
  actions_.emplace_back(ShowProof{worker.member.slot, std::move(unproven), next});
}

void CanaryBook::Ended(uint64_t number, const absl::Status& status, TimePoint now) {
  const auto found = canaries_.find(number);
  if (found == canaries_.end()) return;
  const Canary canary = std::move(found->second);
  canaries_.erase(found);
  for (const auto& [slot, incarnation] : canary.incarnations) {
    const auto at = workers_.find(slot);
    if (at == workers_.end() || at->second.member.incarnation != incarnation) continue;
    Worker& worker = at->second;
    if (worker.state == State::kProven) continue;
    if (status.ok()) {
      worker.state = State::kProven;
      Show(worker, "");
    } else if (worker.canary == number) {
      Failed(worker, canary, StrCat(absl::StatusCodeToString(status.code()), ": ", status.message()), now);
    }
  }
}

void CanaryBook::Failed(Worker& worker, const Canary& canary, const std::string& why, TimePoint now) {
  worker.state = worker.serves ? State::kFailed : State::kDue;
  worker.canary = 0;
  const int32_t self = worker.member.slot;
  if (canary.prefill) worker.failed_with = canary.decode == self ? *canary.prefill : canary.decode;
  const Duration pause = kPauseMin * (1 << std::min(worker.failures, 10));
  ++worker.failures;
  worker.due = now + std::min(pause, kPauseMax);
  Show(worker, StrCat("its canary failed, through ", Through(canary), ": ", why), worker.due);
}

std::vector<CanaryAction> CanaryBook::TakeActions() { return std::exchange(actions_, {}); }

}  // namespace baton::router
