// SimEventLoop: one thread of a simulated router. What is posted runs in order, each in a turn of its own, a little
// later; what was posted to a process that has died is gone.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>

#include "router/event_loop.h"
#include "sim/process.h"

namespace baton::sim {

class SimEventLoop final : public router::EventLoop {
 public:
  SimEventLoop(Process& process, Timeline& time) : process_(process), time_(time), life_(process.life()) {}

  void Post(absl::AnyInvocable<void()> fn) override {
    if (after_death_ == AfterDeath::kRun) return fn();
    if (after_death_ == AfterDeath::kDrop) return;
    last_ = std::max(last_ + Duration(1), time_.Now() + time_.Between(kSoonest, kLatest));
    Run(last_, std::make_shared<absl::AnyInvocable<void()>>(std::move(fn)));
  }
  std::unique_ptr<router::EventLoopTimer> MakeTimer() override { return std::make_unique<Timer>(*this); }
  bool RunningHere() const override { return running_; }

  /// The process is gone, and its objects are about to be destroyed: what they still post runs at once, or never.
  enum class AfterDeath : uint8_t { kLives, kRun, kDrop };
  void Bury(AfterDeath how) { after_death_ = how; }

 private:
  static constexpr Duration kSoonest = std::chrono::microseconds(2), kLatest = std::chrono::microseconds(40);

  class Timer final : public router::EventLoopTimer {
   public:
    explicit Timer(SimEventLoop& executor) : executor_(executor) {}
    ~Timer() override { ++*armed_; }
    void ArmAt(TimePoint at, absl::AnyInvocable<void()> fn) override {
      const uint64_t now_armed = ++*armed_;
      auto work = [armed = armed_, now_armed, fn = std::move(fn)]() mutable {
        if (*armed == now_armed) fn();
      };
      executor_.Run(at, std::make_shared<absl::AnyInvocable<void()>>(std::move(work)));
    }
    void Cancel() override { ++*armed_; }

   private:
    SimEventLoop& executor_;
    const std::shared_ptr<uint64_t> armed_ = std::make_shared<uint64_t>(0);
  };

  void Run(TimePoint at, std::shared_ptr<absl::AnyInvocable<void()>> fn) {
    if (after_death_ != AfterDeath::kLives || process_.life() != life_) return;
    process_.Post(std::max(Duration::zero(), at - time_.Now()), [this, fn = std::move(fn)] {
      running_ = true;
      (*fn)();
      running_ = false;
    });
  }

  Process& process_;
  Timeline& time_;
  const uint64_t life_;
  AfterDeath after_death_ = AfterDeath::kLives;
  TimePoint last_{};
  bool running_ = false;
};

}  // namespace baton::sim
