#include "router/request/text_pool.h"

#include <algorithm>
#include <utility>

namespace baton::router {

TextPool::TextPool(size_t threads, size_t max_queued) : max_queued_(max_queued) {
  for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Loop(); });
}

TextPool::~TextPool() { Stop(); }

void TextPool::Stop() {
  std::map<std::string, Line> dropped;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    dropped.swap(lines_);
    turns_.clear();
    queued_ = 0;
  }
  wake_.notify_all();
  for (std::thread& t : threads_) {
    if (t.joinable()) t.join();
  }
}

bool TextPool::TryRun(const std::string& owner, absl::AnyInvocable<void()> fn) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_ || queued_ >= max_queued_) return false;
    const auto known = lines_.find(owner);
    const size_t own = known == lines_.end() ? 0 : known->second.size();
    if (!owner.empty() && own >= std::max<size_t>(1, max_queued_ / 2)) return false;
    if (own == 0) turns_.push_back(owner);
    lines_[owner].push_back(std::move(fn));
    ++queued_;
  }
  wake_.notify_one();
  return true;
}

size_t TextPool::queued() const {
  std::lock_guard lock(mutex_);
  return queued_;
}

absl::AnyInvocable<void()> TextPool::TakeNext() {
  const auto line = lines_.find(turns_.front());
  absl::AnyInvocable<void()> fn = std::move(line->second.front());
  line->second.pop_front();
  if (line->second.empty()) {
    lines_.erase(line);
  } else {
    turns_.push_back(line->first);
  }
  turns_.pop_front();
  --queued_;
  return fn;
}

void TextPool::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || queued_ > 0; });
    if (stopping_) return;
    absl::AnyInvocable<void()> fn = TakeNext();
    lock.unlock();
    fn();
    fn = nullptr;
    lock.lock();
  }
}

}  // namespace baton::router
