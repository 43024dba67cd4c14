#include "common/low_priority_thread.h"

#include "common/thread_priority.h"

namespace baton {

LowPriorityThread::LowPriorityThread() : thread_([this] { Run(); }) {}

LowPriorityThread::~LowPriorityThread() {
  work_ = nullptr;
  given_.Give();
  thread_.join();
}

void LowPriorityThread::Do(const std::function<void()>& work) {
  work_ = &work;
  given_.Give();
  done_.Take();
}

void LowPriorityThread::Run() {
  StandBack(ThisThread());
  for (;;) {
    given_.Take();
    if (work_ == nullptr) return;
    (*work_)();
    done_.Give();
  }
}

}  // namespace baton
