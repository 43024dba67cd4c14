// RetryBudget: how much may be computed a second time at once. When a worker is lost, everything that it ran is
// computed again elsewhere; without a limit that burst of prompts would starve the requests that lost nothing. Whoever
// finds no share waits its turn, first come, first served: a request is late then, never failed. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "router/admission/admission.h"
#include "router/event_loop.h"

namespace baton::router {

class RetryBudget {
 public:
  /// Held from the order that computes again to its first token or end; given back by the destructor. Move-only.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept : budget_(std::exchange(other.budget_, nullptr)) {}
    Share& operator=(Share&& other) noexcept {
      std::swap(budget_, other.budget_);
      return *this;
    }
    ~Share() { Release(); }
    void Release();
    explicit operator bool() const { return budget_ != nullptr; }

   private:
    friend class RetryBudget;
    explicit Share(RetryBudget* budget) : budget_(budget) {}
    RetryBudget* budget_ = nullptr;
  };

  /// `per_request`: shares for each request in `admission`, but at least `at_least`.
  RetryBudget(double per_request, int32_t at_least, const Admission& admission)
      : per_request_(per_request), at_least_(at_least), admission_(admission) {}

  /// A share, unless there is none free or others wait for one.
  std::optional<Share> TryTake();
  /// Runs `then` on `loop` with a share as soon as there is one. Its destruction there without being looked at
  /// gives the share back.
  void Wait(EventLoop& loop, absl::AnyInvocable<void(Share)> then);
  int64_t taken() const;

 private:
  struct Waiter {
    EventLoop* loop;
    absl::AnyInvocable<void(Share)> then;
  };
  int64_t Limit() const;
  void GiveBack();
  void HandOut();

  const double per_request_;
  const int32_t at_least_;
  const Admission& admission_;
  mutable std::mutex mutex_;  // guards what follows
  int64_t taken_ = 0;
  std::deque<Waiter> waiting_;
};

}  // namespace baton::router
