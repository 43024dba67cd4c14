// Whether a peer's certificate is believed, and if not, which fact differs. The one place that decides it, for our own
// sockets and for gRPC. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/tls/identity.h"

namespace baton::tls {

/// Why a connection was refused: the label `reason` of baton_tls_refused_total.
enum class Refusal {
  kNoCertificate,
  kUnknownAuthority,
  kExpired,
  kNotYetValid,
  kWrongName,
  kBadCertificate,
  kPlaintext,
  kHandshake
};
inline constexpr int kRefusals = 8;
std::string_view RefusalName(Refusal refusal);

enum class PeerRole { kServer, kClient };

struct PeerCheck {
  std::optional<Refusal> refusal;  ///< null: the peer is believed
  std::string message;             ///< both facts, of a refusal
};

/// `leaf`: null when the peer showed none. `others`: what it sent beside it, may be null. `names`: the certificate must
/// be valid for one of them, DNS names or addresses; empty: any. `ours` must have authorities.
PeerCheck CheckPeer(X509* leaf, STACK_OF(X509) * others, const Identity& ours, const std::vector<std::string>& names,
                    PeerRole role, int64_t now_s);

/// What the certificate of a server dialled at `host` must be valid for: the host name; of an IP address that address
/// or `server_name` (--tls-server-name).
std::vector<std::string> NamesToProve(const std::string& host, const std::string& server_name);

}  // namespace baton::tls
