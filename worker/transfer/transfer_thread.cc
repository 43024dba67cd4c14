#include "worker/transfer/transfer_thread.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
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
    if (!std::exchange(sleeps_, false)) return;  // it looks before it sleeps, or has been woken
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
    for (size_t i = 0; i < watched_.size(); ++i) {  // by index: what it does may watch others
      if (watched_[i].ready || !watched_[i].transport->waits_for_descriptor())
        moved |= watched_[i].transport->Progress();
    }
    if (at_turn_end_) at_turn_end_();
    if (moved && !std::ranges::all_of(watched_, [](const Watched& w) { return w.transport->waits_for_descriptor(); })) {
      for (Watched& watched : watched_) watched.ready = true;
      continue;
    }
    bool sleeps = false;
    {
      std::lock_guard lock(mutex_);
      if (posted_.empty() && stopping_) return;
      sleeps_ = sleeps = posted_.empty();
    }
    Look(sleeps);
  }
}

/// Which transports are ready; `sleeps`: until one is, or work is posted.
void TransferThread::Look(bool sleeps) {
  polled_.assign(1, {wake_, POLLIN, 0});
  int timeout_ms = sleeps ? 1000 : 0;
  for (const Watched& watched : watched_) {
    const int fd = watched.transport->wait_fd();
    polled_.push_back({fd, POLLIN, 0});
    if (fd < 0) timeout_ms = std::min(timeout_ms, 1);  // no way to be told: look again soon
  }
  const int count = poll(polled_.data(), polled_.size(), timeout_ms);
  for (size_t i = 0; i < watched_.size(); ++i)
    watched_[i].ready = polled_[i + 1].revents != 0 || polled_[i + 1].fd < 0 || (sleeps && count <= 0);
  if (sleeps) {
    std::lock_guard lock(mutex_);
    sleeps_ = false;
  }
  uint64_t woken = 0;
  if (polled_[0].revents != 0 && read(wake_, &woken, sizeof(woken)) < 0) BATON_CHECK(errno == EAGAIN);
}

}  // namespace baton::worker
