// What is known of names by their DNS answers: an answer replaces the one before, no answer changes nothing. Sans-IO;
// not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "router/endpoint.h"

namespace baton::router {

/// A host behind a name, with the port where its worker serves.
struct DnsTarget {
  std::string host;
  uint16_t port = 0;
  auto operator<=>(const DnsTarget&) const = default;
};

/// What a question was answered with.
struct DnsAnswer {
  absl::Status status;                 ///< NotFound: there is no such record; else nobody knows
  std::vector<std::string> addresses;  ///< of A or AAAA
  std::vector<DnsTarget> targets;      ///< of SRV
};

class DnsAnswers {
 public:
  /// One of these begins a round. The name has these targets:
  void Targets(const DnsAnswer& srv);
  void Targets(DnsTarget only) { targets_ = {std::move(only)}; }
  /// The hosts of the round's targets, each once.
  std::vector<std::string> Hosts() const;
  /// Answers of one host. A family that has none while the other has some is empty; without any answer both stay.
  void Addresses(const std::string& host, const DnsAnswer& v4, const DnsAnswer& v6);
  /// Ends the round: everything that is known, in order.
  std::vector<Endpoint> Endpoints();
  /// Why the round did not learn everything; OK: it did.
  absl::Status TakeTrouble() { return std::exchange(trouble_, absl::OkStatus()); }

 private:
  struct Known {
    std::vector<std::string> v4, v6;
  };
  void Trouble(const absl::Status& status);

  std::vector<DnsTarget> targets_;
  std::map<std::string, Known> known_;
  absl::Status trouble_;
};

}  // namespace baton::router
