// Links that cost time: a transport for plans. Every worker has one port of a given rate each way, which all its peers
// share: a write leaves when those before it have left, and arrives when those before it at that receiver have arrived.
// Nothing is lost, harmed or doubled, messages keep their order, and nobody is polled: what has arrived wakes its
// owner. The bytes that travel stand for `scale` times as many.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kvtransfer/transport.h"
#include "sim/timeline.h"

namespace baton::sim {

struct LinkTerms {
  double bytes_per_s = 0;  ///< of a worker's port, each way
  Duration latency{};      ///< of a message, and of a write's first byte
  double scale = 1;        ///< bytes that a written one stands for, but for
  uint64_t overhead = 0;   ///< so many of each write
};

/// What a port has carried.
struct PortUse {
  int64_t bytes_out = 0, bytes_in = 0;  ///< that were stood for
  Duration busy_out{}, busy_in{};
};

class LinkTransport;

class LinkNetwork {
 public:
  LinkNetwork(Timeline& time, LinkTerms terms) : time_(time), terms_(terms) {}
  /// `wake`: calls Progress soon. Both references must outlive the transport, and this must as well.
  std::unique_ptr<Transport> Make(const LandingShape& shape, TransportEvents& events, std::function<void()> wake);
  double gigabytes_per_s() const { return terms_.bytes_per_s / 1e9; }
  /// Of all ports that ever were.
  const std::vector<std::shared_ptr<PortUse>>& ports() const { return ports_; }
  int64_t writes() const { return writes_; }

 private:
  friend class LinkTransport;
  Timeline& time_;
  const LinkTerms terms_;
  std::map<std::string, LinkTransport*, std::less<>> listeners_;
  std::vector<std::shared_ptr<PortUse>> ports_;
  uint64_t next_address_ = 1;
  int64_t writes_ = 0;
};

}  // namespace baton::sim
