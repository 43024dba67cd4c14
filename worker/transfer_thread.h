// The transfer thread: moves the transports, runs what is posted to it, sleeps in poll() when there is nothing to do.
// Everything about landing memory and lanes' messages happens on it; decisions come from the scheduler thread by Post.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "worker/transfer_loop.h"

namespace baton::worker {

/// When a thread that moves transports may sleep: not within 50 us of the last thing that moved. A stream of slots has
/// gaps of some microseconds, and to sleep and be woken in each of them takes longer than to carry what comes. It
/// yields meanwhile: on a machine without an idle core others run.
class TransferIdle {
 public:
  /// After a turn; `moved`: it had something to do.
  bool MaySleep(bool moved);

 private:
  std::chrono::steady_clock::time_point moved_{};
};

class TransferThread final : public TransferLoop {
 public:
  TransferThread();
  /// Stop, if it was not called.
  ~TransferThread() override;

  void Start();
  /// Dropped after Stop.
  void Post(std::function<void()> work) override;
  void Watch(Transport* transport) override { transports_.push_back(transport); }
  /// Joins. What was posted before has run.
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
  TransferIdle idle_;
  std::thread thread_;
};

}  // namespace baton::worker
