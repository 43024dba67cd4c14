// The transfer thread: moves the transports, runs the work that is posted, sleeps in poll() when there is nothing to
// do. Everything about landing memory and lanes' messages happens on it; decisions come from the scheduler thread by
// Post.
#pragma once

#include <poll.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "worker/transfer/transfer_loop.h"

namespace baton::worker {

class TransferThread final : public TransferLoop {
 public:
  TransferThread();
  /// Stop, if it was not called.
  ~TransferThread() override;

  void Start();
  /// Dropped after Stop.
  void Post(std::function<void()> work) override;
  void Watch(Transport* transport) override { watched_.push_back({transport}); }
  void Unwatch(Transport* transport) override {
    std::erase_if(watched_, [transport](const Watched& one) { return one.transport == transport; });
  }
  /// Before Start: runs on the thread at the end of each turn, behind its work and what the transports did.
  void AtTurnEnd(std::function<void()> work) { at_turn_end_ = std::move(work); }
  /// Joins. All work that was posted before has run.
  void Stop();

 private:
  struct Watched {
    Transport* transport;
    bool ready = true;  ///< by its descriptor, or nobody has looked
  };
  void Run();
  bool RunPosted();
  void Look(bool sleeps);

  const int wake_;  ///< eventfd
  std::vector<Watched> watched_;
  std::vector<pollfd> polled_;
  std::function<void()> at_turn_end_;
  std::mutex mutex_;  ///< guards posted_, stopping_ and sleeps_
  std::vector<std::function<void()>> posted_;
  bool stopping_ = false;
  bool sleeps_ = false;  ///< and nobody has woken it
  std::thread thread_;
};

}  // namespace baton::worker
