#include "router/request/retry_budget.h"

#include <algorithm>
#include <vector>

namespace baton::router {

void RetryBudget::Share::Release() {
  if (RetryBudget* budget = std::exchange(budget_, nullptr)) budget->GiveBack();
}

int64_t RetryBudget::Limit() const {
  return std::max<int64_t>(at_least_, static_cast<int64_t>(per_request_ * static_cast<double>(admission_.running())));
}

std::optional<RetryBudget::Share> RetryBudget::TryTake() {
  const int64_t limit = Limit();
  std::lock_guard lock(mutex_);
  if (!waiting_.empty() || taken_ >= limit) return std::nullopt;
  ++taken_;
  return Share(this);
}

void RetryBudget::Wait(EventLoop& loop, absl::AnyInvocable<void(Share)> then) {
  {
    std::lock_guard lock(mutex_);
    waiting_.push_back({&loop, std::move(then)});
  }
  HandOut();
}

int64_t RetryBudget::taken() const {
  std::lock_guard lock(mutex_);
  return taken_;
}

void RetryBudget::GiveBack() {
  {
    std::lock_guard lock(mutex_);
    --taken_;
  }
  HandOut();
}

void RetryBudget::HandOut() {
  const int64_t limit = Limit();
  std::vector<Waiter> next;
  {
    std::lock_guard lock(mutex_);
    for (; taken_ < limit && !waiting_.empty(); ++taken_, waiting_.pop_front())
      next.push_back(std::move(waiting_.front()));
  }
  for (Waiter& waiter : next) {
    waiter.loop->Post([share = Share(this), then = std::move(waiter.then)]() mutable { then(std::move(share)); });
  }
}

}  // namespace baton::router
