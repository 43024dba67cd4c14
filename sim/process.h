// A simulated process: may be stopped and resumed, may die and come back as another incarnation. What its threads would
// do is posted to it; one thing runs at a time.
#pragma once

#include <deque>
#include <functional>
#include <utility>

#include "sim/timeline.h"

namespace baton::sim {

class Process {
 public:
  explicit Process(Timeline& time) : time_(time) {}
  virtual ~Process() = default;

  /// Runs `work` after `delay` in this life; a stopped process does it when it goes on.
  void Post(Duration delay, std::function<void()> work) {
    time_.After(delay, [this, life = life_, work = std::move(work)]() mutable {
      if (life != life_) return;
      if (stopped_) return held_.push_back(std::move(work));
      OnTurnBegin();
      work();
      OnTurnEnd();
    });
  }
  void Stop() { stopped_ = true; }
  void Resume() {
    stopped_ = false;
    for (auto& work : std::exchange(held_, {})) Post(Duration::zero(), std::move(work));
  }
  /// Its memory is lost at once.
  void Kill() {
    ++life_;
    alive_ = false;
    stopped_ = false;
    held_.clear();
    OnDeath();
  }
  void Start() {
    alive_ = true;
    OnBirth();
  }
  bool alive() const { return alive_; }
  bool stopped() const { return stopped_; }
  uint64_t life() const { return life_; }

 protected:
  virtual void OnBirth() = 0;
  virtual void OnDeath() = 0;
  /// Before everything that it does, and after.
  virtual void OnTurnBegin() {}
  virtual void OnTurnEnd() {}
  Timeline& time_;

 private:
  bool alive_ = false, stopped_ = false;
  uint64_t life_ = 1;
  std::deque<std::function<void()>> held_;
};

}  // namespace baton::sim
