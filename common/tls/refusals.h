// Refusals: connections that a port refused because of TLS, counted by port and reason, with at most one line a second
// for an address and sixteen in all. Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/limited_lines.h"
#include "common/tls/peer_check.h"

namespace baton::tls {

class Refusals {
 public:
  explicit Refusals(const Clock& clock) : lines_(clock) {}

  /// `port`: "http", "grpc", "admin", "worker". `address`: the peer's, without its port; empty: not known.
  void Note(std::string_view port, Refusal refusal, std::string_view address, std::string_view message);

  struct Count {
    std::string port;
    std::string_view reason;
    int64_t connections = 0;
  };
  /// Every reason of every port that has refused somebody.
  std::vector<Count> Counts() const;
  /// Of all ports and reasons.
  int64_t total() const;

 private:
  mutable std::mutex mutex_;  // guards what follows
  std::map<std::string, std::array<int64_t, kRefusals>, std::less<>> counts_;
  LimitedLines lines_;
};

}  // namespace baton::tls
