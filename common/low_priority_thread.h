// A thread of low priority that works for one of a higher priority.
#pragma once

#include <functional>
#include <thread>

#include "common/semaphore.h"

namespace baton {

/// Does one piece of work after the other on a thread that stands back (common/thread_priority.h). What must be done
/// under a lock is done before or behind it by the thread that waits for the work: nobody then waits for a lock that is
/// held by a thread without a core. One caller at a time.
class LowPriorityThread {
 public:
  LowPriorityThread();
  ~LowPriorityThread();
  LowPriorityThread(const LowPriorityThread&) = delete;
  LowPriorityThread& operator=(const LowPriorityThread&) = delete;

  /// Returns when it is done. `work` takes no lock that others take.
  void Do(const std::function<void()>& work);

 private:
  void Run();

  Semaphore given_, done_;
  const std::function<void()>* work_ = nullptr;  ///< null: the end
  std::thread thread_;                           // last: it uses the above
};

}  // namespace baton
