// Who may call this worker: routers that have proved that they know the cluster's secret. A greeting takes two
// Handshakes; its session's token stands in the metadata of every later call. Without a secret everybody may. Decides
// on bytes and a clock alone. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/limited_lines.h"
#include "common/trust/greeting.h"

namespace baton::worker {

class RouterSessions {
 public:
  static constexpr Duration kGreetingTime = std::chrono::seconds(2);
  static constexpr size_t kMostGreetings = 256, kMostSessions = 1024;

  /// `secret` null: none.
  RouterSessions(std::shared_ptr<const trust::ClusterSecret> secret, const Clock& clock)
      : secret_(std::move(secret)), clock_(clock), lines_(clock) {}

  bool open() const { return secret_ == nullptr; }
  /// What a Handshake says as its greeting. The answer to be sent back, and nothing beside it; empty: the router has
  /// proved itself, and its session has begun. Unauthenticated, PermissionDenied, InvalidArgument: it is refused.
  /// `host`: the router's, for the log. `router`: what it calls itself, new at every start of it, and the same when it
  /// greets again: known to workers only, and so random that nobody guesses another's.
  absl::StatusOr<std::string> Greet(std::string_view words, std::string_view host, std::string_view router = {});
  /// Whether a call with this token may be made, and of which router it is: the one that greeted, or its session where
  /// it did not say its name; empty without a secret. Unauthenticated: it may not.
  absl::StatusOr<std::string> Check(std::string_view token, std::string_view host);
  /// Forgets greetings that were left halfway.
  void Tick();
  /// Handshakes and calls since the start.
  int64_t refused() const;

 private:
  struct Begun {
    trust::Greeting greeting;
    std::string host;
    TimePoint since;
  };
  absl::StatusOr<std::string> Answer(std::string_view call, std::string_view host);
  struct Session {
    uint64_t used = 0;  ///< last, counted in calls
    std::string router;
  };
  absl::Status Finish(std::string_view words, std::string_view router);
  void Remember(const std::string& token, std::string_view router);
  absl::Status Refuse(absl::Status why, std::string_view host);
  void DropOld();

  const std::shared_ptr<const trust::ClusterSecret> secret_;
  const Clock& clock_;
  mutable std::mutex mutex_;  // guards what follows
  LimitedLines lines_;
  std::map<std::string, Begun, std::less<>> begun_;       ///< by the nonce that was given out
  std::map<std::string, Session, std::less<>> sessions_;  ///< by token
  uint64_t calls_ = 0;
  int64_t refused_ = 0;
};

}  // namespace baton::worker
