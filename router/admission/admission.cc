#include "router/admission/admission.h"

#include <algorithm>
#include <string>

#include "common/str_cat.h"
#include "router/admission/key_account.h"

namespace baton::router {

namespace {

void LeftToOthers(const KeyShares& shares, KeyOwner owner, std::string& what) {
  absl::StrAppend(&what, ", and what is free beside the ", shares.HeldBy(owner), " of this API key is for others");
  if (owner != nullptr) owner->RefusedForShare();
}

}  // namespace

AdmissionHold::~AdmissionHold() {
  if (admission_) admission_->Leave(owner_, tokens_);
}

StillHold::~StillHold() {
  if (admission_) admission_->GoesOn(number_);
}

std::variant<AdmissionHold, ApiError> Admission::Enter(TimePoint connected, TimePoint now, KeyOwner owner) {
  std::lock_guard lock(mutex_);
  if (drains_since_ && (connected > *drains_since_ || now > *drains_since_ + kOnItsWay)) return Draining();
  if (Admits(requests_, owner, 1, now)) return AdmissionHold(this, owner, 0);
  const int64_t running = requests_.used();
  std::string what = StrCat(running, " requests are running or waiting, the limit is ", max_requests_);
  if (requests_.Fits(1)) LeftToOthers(requests_, owner, what);
  return Overloaded(what, Overload{running, PredictedWaitMsLocked(), "--max-running-requests"});
}

std::variant<AdmissionHold, ApiError> Admission::EnterTokens(int64_t tokens, TimePoint now, KeyOwner owner) {
  std::lock_guard lock(mutex_);
  if (Admits(tokens_, owner, tokens, now)) return AdmissionHold(this, owner, tokens);
  std::string what = StrCat(tokens_.used(), " prompt tokens are in the router, this request has ", tokens,
                            ", the limit is ", max_tokens_);
  if (tokens_.Fits(tokens)) LeftToOthers(tokens_, owner, what);
  return Overloaded(what, Overload{requests_.used(), PredictedWaitMsLocked(), "--max-running-tokens"});
}

// Whoever holds less than his share may have what is free at once, where room is made for it.
bool Admission::Admits(KeyShares& shares, KeyOwner owner, int64_t amount, TimePoint now) {
  if (!shares.FitsShare(owner, amount) && !(MakeRoom(shares, owner, now) && shares.Fits(amount))) return false;
  shares.Take(owner, amount);
  return true;
}

// True: somebody was told to give way, or was told before and does so now: he may hold several places.
bool Admission::MakeRoom(const KeyShares& shares, KeyOwner owner, TimePoint now) {
  const int64_t share = shares.ShareOf(owner);
  if (shares.HeldBy(owner) >= share) return false;
  auto yields = still_.end();
  int64_t most = share;
  for (auto at = still_.begin(); at != still_.end(); ++at) {
    const int64_t held = shares.HeldBy(at->second.owner);
    if (held <= most || now < at->second.since + kStill) continue;
    most = held;
    yields = at;
  }
  if (yields == still_.end()) return false;
  if (!std::exchange(yields->second.told, true)) yields->second.give_way();
  return true;
}

StillHold Admission::StandsStill(KeyOwner owner, TimePoint since, std::function<void()> give_way) {
  std::lock_guard lock(mutex_);
  still_.emplace(++next_still_, Still{owner, since, std::move(give_way)});
  return StillHold(this, next_still_);
}

void Admission::GoesOn(uint64_t number) {
  std::lock_guard lock(mutex_);
  still_.erase(number);
}

void Admission::Leave(KeyOwner owner, int64_t tokens) {
  std::lock_guard lock(mutex_);
  if (tokens > 0) return tokens_.Return(owner, tokens);
  requests_.Return(owner, 1);
  if (requests_.used() == 0) empty_.notify_all();
}

void Admission::Finished(Duration took) {
  std::lock_guard lock(mutex_);
  const double ms = Milliseconds(took);
  mean_ms_ = mean_ms_ == 0 ? ms : 0.9 * mean_ms_ + 0.1 * ms;
}

// By Little's law a place becomes free every mean time / requests.
int64_t Admission::PredictedWaitMsLocked() const {
  return static_cast<int64_t>(mean_ms_ / static_cast<double>(std::max<int64_t>(1, requests_.used())));
}

int64_t Admission::PredictedWaitMs() const {
  std::lock_guard lock(mutex_);
  return PredictedWaitMsLocked();
}

void Admission::Drain(TimePoint now) {
  std::lock_guard lock(mutex_);
  if (!drains_since_) drains_since_ = now;
}

bool Admission::draining() const {
  std::lock_guard lock(mutex_);
  return drains_since_.has_value();
}

int64_t Admission::running() const {
  std::lock_guard lock(mutex_);
  return requests_.used();
}

bool Admission::WaitEmpty(Duration timeout) const {
  std::unique_lock lock(mutex_);
  return empty_.wait_for(lock, timeout, [this] { return requests_.used() == 0; });
}

}  // namespace baton::router
