// What a rank says to rank 0: at once, or with what it says next, for each message wakes rank 0's transfer thread. In
// order. At every tick of rank 0 something is said. Thread: the rank's transfer thread.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "kvtransfer/rank_line_codec.h"

namespace baton::worker {

class RankNewsLine {
 public:
  /// `tell` sends what it is given until it returns to its loop with one call of the system.
  explicit RankNewsLine(std::function<void(const RankNews&)> tell) : tell_(std::move(tell)) {}

  /// Behind what was kept.
  void Tell(const RankNews& news) {
    for (const RankNews& one : std::exchange(kept_, {})) tell_(one);
    tell_(news);
  }
  /// Until the next Tell.
  void Keep(RankNews news) { kept_.push_back(std::move(news)); }

 private:
  const std::function<void(const RankNews&)> tell_;
  std::vector<RankNews> kept_;
};

}  // namespace baton::worker
