// A loop of a test, on one thread: what is posted runs at once, and timers when the test moves the clock.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <utility>

#include "common/clock.h"
#include "router/event_loop.h"

namespace baton::router {

class NowLoop final : public EventLoop {
 public:
  explicit NowLoop(FakeClock& clock) : clock_(clock) {}
  void Post(absl::AnyInvocable<void()> fn) override {
    posted_.push_back(std::move(fn));
    if (std::exchange(runs_, true)) return;
    for (; !posted_.empty(); posted_.pop_front()) posted_.front()();
    runs_ = false;
  }
  std::unique_ptr<EventLoopTimer> MakeTimer() override { return std::make_unique<HandTimer>(*this); }
  bool RunningHere() const override { return true; }
  void Advance(Duration by) {
    const TimePoint end = clock_.Now() + by;
    for (;;) {
      auto next = armed_.end();
      for (auto at = armed_.begin(); at != armed_.end(); ++at) {
        if (at->second.first <= end && (next == armed_.end() || at->second.first < next->second.first)) next = at;
      }
      if (next == armed_.end()) break;
      if (next->second.first > clock_.Now()) clock_.Advance(next->second.first - clock_.Now());
      Post(std::move(armed_.extract(next).mapped().second));
    }
    clock_.Advance(end - clock_.Now());
  }

 private:
  class HandTimer final : public EventLoopTimer {
   public:
    explicit HandTimer(NowLoop& loop) : loop_(loop), number_(++loop.timers_) {}
    ~HandTimer() override { Cancel(); }
    void ArmAt(TimePoint at, absl::AnyInvocable<void()> fn) override {
      loop_.armed_.insert_or_assign(number_, std::pair(at, std::move(fn)));
    }
    void Cancel() override { loop_.armed_.erase(number_); }

   private:
    NowLoop& loop_;
    const int number_;
  };

  FakeClock& clock_;
  std::deque<absl::AnyInvocable<void()>> posted_;
  std::map<int, std::pair<TimePoint, absl::AnyInvocable<void()>>> armed_;  // by the timer's number
  int timers_ = 0;
  bool runs_ = false;
};

}  // namespace baton::router
