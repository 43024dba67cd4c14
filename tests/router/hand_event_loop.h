// A loop of a test: what is posted runs when the test says so.
#pragma once

#include <deque>

#include "router/event_loop.h"

namespace baton::router {

class HandEventLoop final : public EventLoop {
 public:
  void Post(absl::AnyInvocable<void()> fn) override { posted_.push_back(std::move(fn)); }
  std::unique_ptr<EventLoopTimer> MakeTimer() override { return std::make_unique<NoTimer>(); }
  bool RunningHere() const override { return true; }
  /// Everything that is posted, and what that posts.
  void Run() {
    for (; !posted_.empty(); posted_.pop_front()) posted_.front()();
  }

 private:
  class NoTimer final : public EventLoopTimer {
   public:
    void ArmAt(TimePoint, absl::AnyInvocable<void()>) override {}
    void Cancel() override {}
  };
  std::deque<absl::AnyInvocable<void()>> posted_;
};

}  // namespace baton::router
