// Admission: how much the router holds at once, in requests and prompt tokens, and how much of that an API key. Full
// means 429, draining means 503; nobody waits here. Whose answers stand still because nobody reads them gives way to
// others (StandsStill). Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <variant>

#include "common/clock.h"
#include "router/admission/key_shares.h"
#include "router/api_error.h"

namespace baton::router {

class Admission;

/// A request's place; given back by the destructor. Move-only.
class AdmissionHold {
 public:
  AdmissionHold() = default;
  AdmissionHold(Admission* admission, KeyOwner owner, int64_t tokens)
      : admission_(admission), owner_(owner), tokens_(tokens) {}
  AdmissionHold(AdmissionHold&& o) noexcept
      : admission_(std::exchange(o.admission_, nullptr)), owner_(o.owner_), tokens_(o.tokens_) {}
  AdmissionHold& operator=(AdmissionHold&& o) noexcept {
    std::swap(admission_, o.admission_);
    std::swap(owner_, o.owner_);
    std::swap(tokens_, o.tokens_);
    return *this;
  }
  ~AdmissionHold();

 private:
  Admission* admission_ = nullptr;
  KeyOwner owner_ = nullptr;
  int64_t tokens_ = 0;
};

/// A request's answer stands still, as long as this lives. Move-only.
class StillHold {
 public:
  StillHold() = default;
  StillHold(Admission* admission, uint64_t number) : admission_(admission), number_(number) {}
  StillHold(StillHold&& o) noexcept : admission_(std::exchange(o.admission_, nullptr)), number_(o.number_) {}
  StillHold& operator=(StillHold&& o) noexcept {
    std::swap(admission_, o.admission_);
    std::swap(number_, o.number_);
    return *this;
  }
  ~StillHold();

 private:
  Admission* admission_ = nullptr;
  uint64_t number_ = 0;
};

class Admission {
 public:
  /// `several_keys`: each leaves some to the others (KeyShares).
  Admission(int64_t max_requests, int64_t max_tokens, bool several_keys = false)
      : max_requests_(max_requests),
        max_tokens_(max_tokens),
        requests_(max_requests, several_keys),
        tokens_(max_tokens, several_keys) {}

  /// What clients of before the drain sent before they could know of it is taken, as long as it comes within this.
  static constexpr Duration kOnItsWay = std::chrono::seconds(1);
  /// An answer that stands still for so long may be told to give way.
  static constexpr Duration kStill = std::chrono::seconds(5);
  /// And whose client takes less than that.
  static constexpr int64_t kReadBytesPerSecond = 16 << 10;

  /// A place for a request that comes `now`, before its prompt is read, on a connection that there is since
  /// `connected`. Where its key holds less than its share and finds none, an answer of the key that holds most of
  /// those beyond their shares is told to give way, if one has stood still for kStill.
  std::variant<AdmissionHold, ApiError> Enter(TimePoint connected, TimePoint now, KeyOwner owner = nullptr);
  /// A place for its tokens, once they are counted.
  std::variant<AdmissionHold, ApiError> EnterTokens(int64_t tokens, TimePoint now, KeyOwner owner = nullptr);
  /// From `since` on nobody reads the answer of one of the key's requests. `give_way` is called once at most, on any
  /// thread, with the lock held: it is to pass that on, and whoever still stands still then ends.
  StillHold StandsStill(KeyOwner owner, TimePoint since, std::function<void()> give_way);
  /// Teaches the predicted wait.
  void Finished(Duration took);

  /// The first time counts.
  void Drain(TimePoint now);
  bool draining() const;
  int64_t running() const;
  int64_t PredictedWaitMs() const;
  /// False after `timeout`.
  bool WaitEmpty(Duration timeout) const;

 private:
  friend class AdmissionHold;
  friend class StillHold;
  struct Still {
    KeyOwner owner;
    TimePoint since;
    std::function<void()> give_way;
    bool told = false;
  };
  void Leave(KeyOwner owner, int64_t tokens);
  void GoesOn(uint64_t number);
  // With mutex_ held:
  int64_t PredictedWaitMsLocked() const;
  bool Admits(KeyShares& shares, KeyOwner owner, int64_t amount, TimePoint now);
  bool MakeRoom(const KeyShares& shares, KeyOwner owner, TimePoint now);

  const int64_t max_requests_, max_tokens_;
  mutable std::mutex mutex_;
  mutable std::condition_variable empty_;
  KeyShares requests_, tokens_;
  std::map<uint64_t, Still> still_;  // in the order in which they were told of
  uint64_t next_still_ = 0;
  double mean_ms_ = 0;
  std::optional<TimePoint> drains_since_;
};

}  // namespace baton::router
