// PeerTls: how this process's own sockets to its peers (KV, ranks) speak TLS: by the identity that it has now, each end
// with a certificate of the other's authority. Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "common/tls/tls_files.h"

namespace baton::tls {

class Context;
class Identity;
class KernelTls;
class LiveIdentity;

class PeerTls {
 public:
  /// `server_name` (--tls-server-name): what a peer that is dialled by address may prove to be instead. `kernel`:
  /// encrypts what is sent over TCP; null: this process does.
  PeerTls(std::shared_ptr<const LiveIdentity> identity, std::string server_name,
          std::shared_ptr<KernelTls> kernel = nullptr);
  /// With an identity of its own, read again when its files change. As LiveIdentity::Open.
  static absl::StatusOr<std::shared_ptr<const PeerTls>> Open(const TlsFiles& files, std::string server_name,
                                                             std::shared_ptr<KernelTls> kernel = nullptr);

  /// For the end that is dialled; for the end that dials `host`, an IP address. FailedPrecondition: a flag is missing.
  absl::StatusOr<std::shared_ptr<const Context>> ForDialled() const;
  absl::StatusOr<std::shared_ptr<const Context>> ForDialling(const std::string& host) const;

 private:
  const std::shared_ptr<const LiveIdentity> identity_;
  const std::string server_name_;
  const std::shared_ptr<KernelTls> kernel_;
  mutable std::mutex mutex_;  ///< guards what follows
  mutable std::shared_ptr<const Context> dialled_;
};

}  // namespace baton::tls
