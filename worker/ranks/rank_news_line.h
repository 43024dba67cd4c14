// What a rank says to rank 0: at once, or with what it says next, for each message wakes rank 0's transfer thread. In
// order. At every tick of rank 0 something is said. Thread: the rank's transfer thread.
#pragma once

#include <functional>
#include <utility>
#include <vector>

namespace baton::worker {

/// News: v1::RankNews, which its users include.
template <class News>
class RankNewsLine {
 public:
  /// `tell` sends what it is given until it returns to its loop with one call of the system.
  explicit RankNewsLine(std::function<void(const News&)> tell) : tell_(std::move(tell)) {}

  /// Behind what was kept.
  void Tell(const News& news) {
    for (const News& one : std::exchange(kept_, {})) tell_(one);
    tell_(news);
  }
  /// Until the next Tell.
  void Keep(News news) { kept_.push_back(std::move(news)); }

 private:
  const std::function<void(const News&)> tell_;
  std::vector<News> kept_;
};

}  // namespace baton::worker
