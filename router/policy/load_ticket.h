// LoadTicket: the work one request puts on a worker, counted when the worker is chosen and taken back when it is done.
// This is the router's own view; workers' reports correct it (fleet.cc takes the larger queue).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace baton::router {

/// Predicted work on one worker. Thread-safe.
struct OutstandingLoad {
  std::atomic<int64_t> uncached_tokens{0};  ///< prompt tokens not computed yet
  std::atomic<int32_t> requests{0};
};

/// Move-only; any thread, one at a time.
class LoadTicket {
 public:
  LoadTicket() = default;
  LoadTicket(std::shared_ptr<OutstandingLoad> load, int64_t uncached_tokens)
      : load_(std::move(load)), uncached_tokens_(uncached_tokens) {
    load_->uncached_tokens.fetch_add(uncached_tokens_, std::memory_order_relaxed);
    load_->requests.fetch_add(1, std::memory_order_relaxed);
  }
  LoadTicket(LoadTicket&& other) noexcept
      : load_(std::move(other.load_)), uncached_tokens_(std::exchange(other.uncached_tokens_, 0)) {}
  LoadTicket& operator=(LoadTicket&& other) noexcept {
    if (this != &other) {
      Release();
      load_ = std::move(other.load_);
      uncached_tokens_ = std::exchange(other.uncached_tokens_, 0);
    }
    return *this;
  }
  ~LoadTicket() { Release(); }

  /// The prompt has been computed: the first token is here.
  void PrefillDone() {
    if (load_) load_->uncached_tokens.fetch_sub(std::exchange(uncached_tokens_, 0), std::memory_order_relaxed);
  }
  void Release() {
    if (!load_) return;
    PrefillDone();
    load_->requests.fetch_sub(1, std::memory_order_relaxed);
    load_.reset();
  }

 private:
  std::shared_ptr<OutstandingLoad> load_;
  int64_t uncached_tokens_ = 0;
};

}  // namespace baton::router
