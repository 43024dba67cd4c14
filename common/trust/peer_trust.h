// What a process's own sockets (KV, ranks) ask of the process at the other end, and show it. A value; null: not asked.
#pragma once

#include <memory>

#include "common/trust/cluster_secret.h"

namespace baton::tls {
class PeerTls;
}  // namespace baton::tls

namespace baton::trust {

struct PeerTrust {
  /// What both ends must know before either says or keeps anything.
  std::shared_ptr<const ClusterSecret> secret{};
  /// After that: what they say is said in TLS.
  std::shared_ptr<const tls::PeerTls> tls{};
};

}  // namespace baton::trust
