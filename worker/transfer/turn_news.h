// What a turn of the transfer thread has to tell the scheduler thread: it goes with one post, for each may wake that
// thread. Thread: the transfer thread.
#pragma once

#include <functional>
#include <utility>
#include <vector>

namespace baton::worker {

class TurnNews {
 public:
  void Add(std::function<void()> news) { news_.push_back(std::move(news)); }
  /// At the end of a turn: all that was added since the last one, in order. `post` takes a task, whatever that is
  /// given.
  template <class PostsTask>
  void Tell(const PostsTask& post) {
    if (news_.empty()) return;
    post([news = std::exchange(news_, {})](auto&&...) {
      for (const auto& one : news) one();
    });
  }

 private:
  std::vector<std::function<void()>> news_;
};

}  // namespace baton::worker
