#include "worker/transfer/transfer_thread.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

#include "common/check.h"

namespace baton::worker {

TransferThread::TransferThread() : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) { BATON_CHECK(wake_ >= 0); }

TransferThread::~TransferThread() {
  Stop();
  close(wake_);
}

void TransferThread::Start() {
  thread_ = std::thread([this] { Run(); });
}

void TransferThread::Post(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    posted_.push_back(std::move(work));
    if (posted_.size() > 1) return;  // it has been woken
  }
  const uint64_t one = 1;
  BATON_CHECK(write(wake_, &one, sizeof(one)) == sizeof(one));
}

void TransferThread::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  const uint64_t one = 1;
  BATON_CHECK(write(wake_, &one, sizeof(one)) == sizeof(one));
  if (thread_.joinable()) thread_.join();
}

bool TransferThread::RunPosted() {
  std::vector<std::function<void()>> work;
  {
    std::lock_guard lock(mutex_);
    work.swap(posted_);
  }
  for (auto& one : work) one();
  return !work.empty();
}

void TransferThread::Run() {
  pthread_setname_np(pthread_self(), "transfer");
  for (;;) {
    bool moved = RunPosted();
    for (size_t i = 0; i < transports_.size(); ++i) moved |= transports_[i]->Progress();
    if (moved) continue;
    {
      std::lock_guard lock(mutex_);
      if (stopping_ && posted_.empty()) return;
    }
    Sleep();
  }
}

void TransferThread::Sleep() {
  std::vector<pollfd> fds{{wake_, POLLIN, 0}};
  int timeout_ms = 1000;
  for (const Transport* transport : transports_) {
    if (transport->wait_fd() >= 0) {
      fds.push_back({transport->wait_fd(), POLLIN, 0});
    } else {
      timeout_ms = 1;  // no way to be told: look again soon
    }
  }
  poll(fds.data(), fds.size(), timeout_ms);
  uint64_t woken = 0;
  while (read(wake_, &woken, sizeof(woken)) > 0) {
  }
}

}  // namespace baton::worker
