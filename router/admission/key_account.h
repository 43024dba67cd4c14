// KeyAccount: what the holder of a named API key may use: requests and tokens per minute, and how urgent his requests
// may be; and what he has used. Keys of one name, an old one and its successor say, share an account. Thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "common/clock.h"
#include "router/api_error.h"

namespace baton::router {

class KeyAccount {
 public:
  /// 0, or none: no limit.
  struct Limits {
    int64_t requests_per_minute = 0, tokens_per_minute = 0;
    std::optional<int32_t> priority;  ///< the most urgent, that is least, priority
    bool operator==(const Limits&) const = default;
  };
  /// Since the start.
  struct Use {
    int64_t requests = 0, prompt_tokens = 0, completion_tokens = 0;
    int64_t refused_for_requests = 0, refused_for_tokens = 0;
    int64_t refused_for_share = 0, ended_unread = 0;  ///< so that others have places of the router
  };

  KeyAccount(std::string name, const Limits& limits) : name_(std::move(name)), limits_(limits) {}

  const std::string& name() const { return name_; }
  const Limits& limits() const { return limits_; }

  /// A request: none, or 429 with the time until there is room for one. A minute's worth may come at once; then room
  /// comes back evenly.
  std::optional<ApiError> TakeRequest(TimePoint now);
  /// Of so many requests at once: none, or 400 where no minute has room for all of them.
  std::optional<ApiError> CheckEver(size_t requests) const;
  /// Its prompt, once the tokens are counted. A prompt of more than a minute's worth goes when all of it is there.
  std::optional<ApiError> TakePrompt(int64_t tokens, TimePoint now);
  /// What it was answered. Always taken: whoever has used more waits longer.
  void TakeCompletion(int64_t tokens, TimePoint now);
  /// The router has none for one more of his, or one of his answers, which nobody read, gave way.
  void RefusedForShare();
  void EndedUnread();
  int32_t Priority(int32_t asked) const { return limits_.priority ? std::max(asked, *limits_.priority) : asked; }

  Use use() const;

 private:
  // Room that comes back evenly, at most a minute's worth.
  struct Bucket {
    double room = 0;
    std::optional<TimePoint> filled;

    void Fill(int64_t per_minute, TimePoint now);
    /// Until there is room for `amount`.
    Duration Wait(int64_t per_minute, double amount) const;
  };
  ApiError Refusal(int64_t per_minute, const char* of_what, Duration wait) const;

  const std::string name_;
  const Limits limits_;
  mutable std::mutex mutex_;  // guards what follows
  Bucket requests_, tokens_;
  Use use_;
};

}  // namespace baton::router
