// An executor of a test: what is posted runs when the test says so.
#pragma once

#include <deque>

#include "router/executor.h"

namespace baton::router {

class HandExecutor final : public Executor {
 public:
  void Post(absl::AnyInvocable<void()> fn) override { posted_.push_back(std::move(fn)); }
  std::unique_ptr<ExecutorTimer> MakeTimer() override { return std::make_unique<NoTimer>(); }
  bool RunningHere() const override { return true; }
  /// Everything that is posted, and what that posts.
  void Run() {
    for (; !posted_.empty(); posted_.pop_front()) posted_.front()();
  }

 private:
  class NoTimer final : public ExecutorTimer {
   public:
    void ArmAt(TimePoint, absl::AnyInvocable<void()>) override {}
    void Cancel() override {}
  };
  std::deque<absl::AnyInvocable<void()>> posted_;
};

}  // namespace baton::router
