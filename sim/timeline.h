// Virtual time: a clock, a queue of what happens when, and the one source of chance. Everything of a simulation runs in
// the turns of this queue, in one thread; a seed decides all of it.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"

namespace baton::sim {

class Timeline final : public Clock {
 public:
  explicit Timeline(uint64_t seed) : random_(seed) {}
  TimePoint Now() const override { return now_; }
  void At(TimePoint when, std::function<void()> work) {
    size_t place = works_.size();
    if (free_.empty()) {
      works_.push_back(std::move(work));
    } else {
      place = free_.back();
      free_.pop_back();
      works_[place] = std::move(work);
    }
    turns_.push({std::max(when, now_), ++order_, place});
  }
  void After(Duration delay, std::function<void()> work) { At(now_ + delay, std::move(work)); }
  /// The next turn; false when there is none.
  bool RunNext() {
    if (turns_.empty()) return false;
    const Turn turn = turns_.top();
    turns_.pop();
    now_ = turn.at;
    Write(static_cast<uint64_t>(now_.time_since_epoch().count())), Write(turn.order);
    const std::function<void()> work = std::move(works_[turn.work]);
    free_.push_back(turn.work);
    work();
    return true;
  }

  /// What was to happen does not.
  void Clear() {
    while (!turns_.empty()) {  // what goes may ask for turns
      turns_ = {};
      free_.clear();
      const std::vector<std::function<void()>> gone = std::exchange(works_, {});
    }
  }

  /// Every turn's time and order, and every answer of chance, from now on are written to the end of `trace`, 8 bytes
  /// each. It must outlive this, or the last turn.
  void WriteTo(std::string& trace) { trace_ = &trace; }

  bool Chance(double probability) {
    const bool so = probability > 0 && std::bernoulli_distribution(probability)(random_);
    Write(so ? 1 : 0);
    return so;
  }
  uint64_t Below(uint64_t n) {
    const uint64_t drawn = random_() % n;
    Write(drawn);
    return drawn;
  }
  Duration Between(Duration low, Duration high) {
    return low + Duration(static_cast<Duration::rep>(Below(static_cast<uint64_t>((high - low).count()) + 1)));
  }

 private:
  struct Turn {
    TimePoint at;
    uint64_t order;
    size_t work;  ///< its place in works_: a queue moves its entries often
    bool operator<(const Turn& other) const { return at != other.at ? at > other.at : order > other.order; }
  };
  void Write(uint64_t number) {
    if (trace_ != nullptr) trace_->append(reinterpret_cast<const char*>(&number), sizeof(number));
  }

  std::string* trace_ = nullptr;
  TimePoint now_{std::chrono::seconds(100)};
  uint64_t order_ = 0;
  std::priority_queue<Turn> turns_;
  std::vector<std::function<void()>> works_;
  std::vector<size_t> free_;  ///< places of works_ that may be taken
  std::mt19937_64 random_;
};

}  // namespace baton::sim
