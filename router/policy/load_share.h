// LoadShare: the work one request puts on a worker, counted when the worker is chosen and taken back when it is done.
// This is the router's own view; workers' reports add what other routers sent (fleet.cc).
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/clock.h"
#include "router/prompt_ids.h"

namespace baton::router {

/// Predicted work on one worker: prompts under way, and requests. Thread-safe.
class OutstandingLoad {
 public:
  /// `clock` outlives the load and its tickets.
  explicit OutstandingLoad(const Clock& clock) : clock_(clock) {}

  /// Prompt tokens that are not computed yet. The worker takes one prompt after the other, so at `tokens_per_s` (0 =
  /// not known) the oldest one shrinks; it is counted as over when its first token is here.
  double QueuedTokens(double tokens_per_s) const;
  /// All tokens of those prompts, cached or not.
  int64_t PromptTokens() const;
  /// Units at the head of `keys` that a prompt under way has, too: the worker holds them before it begins with the
  /// next.
  uint32_t UnitsUnderWay(absl::Span<const uint64_t> keys) const;
  int32_t requests() const { return requests_.load(std::memory_order_relaxed); }

 private:
  friend class LoadShare;
  struct Prompt {
    int64_t uncached_tokens, tokens;
    UnitKeys keys;
  };
  using Place = std::list<Prompt>::iterator;
  Place Begin(Prompt prompt);
  void End(Place place);

  const Clock& clock_;
  std::atomic<int32_t> requests_{0};
  mutable std::mutex mutex_;                  // guards what follows
  std::list<Prompt> prompts_;                 // oldest first
  int64_t uncached_tokens_ = 0, tokens_ = 0;  // of all prompts
  TimePoint oldest_since_{};                  // when the oldest became it
};

/// Move-only; any thread, one at a time.
class LoadShare {
 public:
  LoadShare() = default;
  /// The worker computes `uncached_tokens` of a prompt of `tokens` with these keys, which may be null; 0: it computes
  /// none.
  LoadShare(std::shared_ptr<OutstandingLoad> load, int64_t uncached_tokens, int64_t tokens = 0,
            UnitKeys keys = nullptr);
  LoadShare(LoadShare&& other) noexcept
      : load_(std::move(other.load_)), place_(other.place_), prompt_(std::exchange(other.prompt_, false)) {}
  LoadShare& operator=(LoadShare&& other) noexcept {
    if (this != &other) {
      Release();
      load_ = std::move(other.load_);
      place_ = other.place_;
      prompt_ = std::exchange(other.prompt_, false);
    }
    return *this;
  }
  ~LoadShare() { Release(); }

  /// The prompt has been computed: the first token is here.
  void PrefillDone();
  void Release();

 private:
  std::shared_ptr<OutstandingLoad> load_;
  OutstandingLoad::Place place_;
  bool prompt_ = false;  // place_ is one of load_'s
};

}  // namespace baton::router
