// Resolver: names are resolved on threads of its own, one for each question, for a thread that must not wait.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/net/socket_address.h"

namespace baton::net {

/// Where a client finds a server without a question: an IP address is itself, "localhost" both 127.0.0.1 and ::1.
/// nullopt: it is a name.
std::optional<std::vector<SocketAddress>> KnownAddresses(const std::string& host, uint16_t port);

/// Thread-safe. Gone, it calls nobody, and does not wait for the system's resolver, which can take half a minute.
class Resolver {
 public:
  using Done = std::function<void(absl::StatusOr<std::vector<SocketAddress>>)>;
  static constexpr int kMostAtOnce = 16;  ///< questions, for names come from peers

  ~Resolver();
  /// `done`: once, on another thread; at once, with ResourceExhausted, when kMostAtOnce questions are open.
  void Resolve(std::string host, uint16_t port, Done done);

 private:
  struct Life {
    std::mutex mutex;
    bool over = false;
    std::atomic<int> open{0};  ///< questions
  };
  const std::shared_ptr<Life> life_ = std::make_shared<Life>();
};

}  // namespace baton::net
