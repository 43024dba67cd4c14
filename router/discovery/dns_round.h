// DnsRound: some questions to DNS at once, answered within a few seconds, whatever the servers do. c-ares stays inside.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "router/discovery/dns_answers.h"

namespace baton::router {

/// One thread's.
class DnsRound {
 public:
  using Done = std::function<void(DnsAnswer)>;

  /// `server`: IP:PORT, or empty: what the system's configuration names now. Unavailable: no resolver.
  static absl::StatusOr<std::unique_ptr<DnsRound>> Begin(const std::string& server);
  ~DnsRound();

  void AskSrv(const std::string& name, Done done);
  /// `family`: AF_INET or AF_INET6.
  void AskAddresses(const std::string& host, int family, Done done);
  /// Returns when everything is answered; false: `stop_fd` was readable first, and the answers are CANCELLED.
  bool Wait(int stop_fd);

 private:
  struct Channel;
  explicit DnsRound(std::unique_ptr<Channel> channel);
  const std::unique_ptr<Channel> channel_;
};

}  // namespace baton::router
