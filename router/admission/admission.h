// Admission: how much the router holds at once, in requests and prompt tokens. Full means 429, draining means 503;
// nobody waits here. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <variant>

#include "common/clock.h"
#include "router/api_error.h"

namespace baton::router {

class Admission;

/// A request's place; given back by the destructor. Move-only.
class AdmissionHold {
 public:
  AdmissionHold() = default;
  AdmissionHold(Admission* admission, int64_t tokens) : admission_(admission), tokens_(tokens) {}
  AdmissionHold(AdmissionHold&& o) noexcept : admission_(std::exchange(o.admission_, nullptr)), tokens_(o.tokens_) {}
  AdmissionHold& operator=(AdmissionHold&& o) noexcept {
    std::swap(admission_, o.admission_);
    std::swap(tokens_, o.tokens_);
    return *this;
  }
  ~AdmissionHold();

 private:
  Admission* admission_ = nullptr;
  int64_t tokens_ = 0;
};

class Admission {
 public:
  Admission(int64_t max_requests, int64_t max_tokens) : max_requests_(max_requests), max_tokens_(max_tokens) {}

  /// What clients of before the drain sent before they could know of it is taken, as long as it comes within this.
  static constexpr Duration kOnItsWay = std::chrono::seconds(1);
  /// A place for a request that comes `now`, before its prompt is read, on a connection that there is since
  /// `connected`.
  std::variant<AdmissionHold, ApiError> Enter(TimePoint connected, TimePoint now);
  /// A place for its tokens, once they are counted.
  std::variant<AdmissionHold, ApiError> EnterTokens(int64_t tokens);
  /// Teaches the predicted wait.
  void Finished(Duration took);

  /// The first time counts.
  void Drain(TimePoint now);
  bool draining() const;
  int64_t running() const;
  int64_t PredictedWaitMs() const;
  /// False after `timeout`.
  bool WaitEmpty(Duration timeout) const;

 private:
  friend class AdmissionHold;
  void Leave(int64_t tokens);
  int64_t PredictedWaitMsLocked() const;

  const int64_t max_requests_, max_tokens_;
  mutable std::mutex mutex_;
  mutable std::condition_variable empty_;
  int64_t requests_ = 0, tokens_ = 0;
  double mean_ms_ = 0;
  std::optional<TimePoint> drains_since_;
};

}  // namespace baton::router
