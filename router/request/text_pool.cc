#include "router/request/text_pool.h"

#include <utility>

namespace baton::router {

TextPool::TextPool(size_t threads, size_t max_queued) : max_queued_(max_queued) {
  for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Loop(); });
}

TextPool::~TextPool() { Stop(); }

void TextPool::Stop() {
  std::deque<absl::AnyInvocable<void()>> dropped;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    dropped.swap(queue_);
  }
  wake_.notify_all();
  for (std::thread& t : threads_) {
    if (t.joinable()) t.join();
  }
}

bool TextPool::TryRun(absl::AnyInvocable<void()> fn) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_ || queue_.size() >= max_queued_) return false;
    queue_.push_back(std::move(fn));
  }
  wake_.notify_one();
  return true;
}

size_t TextPool::queued() const {
  std::lock_guard lock(mutex_);
  return queue_.size();
}

void TextPool::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    absl::AnyInvocable<void()> fn = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    fn();
    fn = nullptr;
    lock.lock();
  }
}

}  // namespace baton::router
