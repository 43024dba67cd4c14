#include "router/admission/admission.h"

#include <algorithm>

#include "common/str_cat.h"

namespace baton::router {

AdmissionHold::~AdmissionHold() {
  if (admission_) admission_->Leave(tokens_);
}

std::variant<AdmissionHold, ApiError> Admission::Enter(TimePoint connected, TimePoint now) {
  std::lock_guard lock(mutex_);
  if (drains_since_ && (connected > *drains_since_ || now > *drains_since_ + kOnItsWay)) return Draining();
  if (requests_ >= max_requests_) {
    return Overloaded(StrCat(requests_, " requests are running or waiting, the limit is ", max_requests_),
                      Overload{requests_, PredictedWaitMsLocked(), "--max-running-requests"});
  }
  ++requests_;
  return AdmissionHold(this, 0);
}

std::variant<AdmissionHold, ApiError> Admission::EnterTokens(int64_t tokens) {
  std::lock_guard lock(mutex_);
  if (tokens_ > 0 && tokens_ + tokens > max_tokens_) {
    return Overloaded(
        StrCat(tokens_, " prompt tokens are in the router, this request has ", tokens, ", the limit is ", max_tokens_),
        Overload{requests_, PredictedWaitMsLocked(), "--max-running-tokens"});
  }
  tokens_ += tokens;
  return AdmissionHold(this, tokens);
}

void Admission::Leave(int64_t tokens) {
  std::lock_guard lock(mutex_);
  if (tokens > 0) {
    tokens_ -= tokens;
  } else if (--requests_ == 0) {
    empty_.notify_all();
  }
}

void Admission::Finished(Duration took) {
  std::lock_guard lock(mutex_);
  const double ms = Milliseconds(took);
  mean_ms_ = mean_ms_ == 0 ? ms : 0.9 * mean_ms_ + 0.1 * ms;
}

// By Little's law a place becomes free every mean time / requests.
int64_t Admission::PredictedWaitMsLocked() const {
  return static_cast<int64_t>(mean_ms_ / static_cast<double>(std::max<int64_t>(1, requests_)));
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
  return requests_;
}

bool Admission::WaitEmpty(Duration timeout) const {
  std::unique_lock lock(mutex_);
  return empty_.wait_for(lock, timeout, [this] { return requests_ == 0; });
}

}  // namespace baton::router
