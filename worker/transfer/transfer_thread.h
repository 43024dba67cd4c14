// The transfer thread: moves the transports, runs the work that is posted, sleeps in poll() when there is nothing to
// do. Everything about landing memory and lanes' messages happens on it; decisions come from the scheduler thread by
// Post.
#pragma once

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
  void Watch(Transport* transport) override { transports_.push_back(transport); }
  void Unwatch(Transport* transport) override { std::erase(transports_, transport); }
  /// Joins. All work that was posted before has run.
  void Stop();

 private:
  void Run();
  bool RunPosted();
  void Sleep();

  const int wake_;  ///< eventfd
  std::vector<Transport*> transports_;
  std::mutex mutex_;  ///< guards posted_ and stopping_
  std::vector<std::function<void()>> posted_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace baton::worker
