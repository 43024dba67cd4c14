#include "common/tls/peer_tls.h"

#include <utility>

#include "common/status.h"
#include "common/tls/context.h"
#include "common/tls/live_identity.h"

namespace baton::tls {

PeerTls::PeerTls(std::shared_ptr<const LiveIdentity> identity, std::string server_name,
                 std::shared_ptr<KernelTls> kernel)
    : identity_(std::move(identity)), server_name_(std::move(server_name)), kernel_(std::move(kernel)) {}

absl::StatusOr<std::shared_ptr<const PeerTls>> PeerTls::Open(const TlsFiles& files, std::string server_name,
                                                             std::shared_ptr<KernelTls> kernel) {
  BATON_ASSIGN_OR_RETURN(std::shared_ptr<LiveIdentity> identity, LiveIdentity::Open(files));
  identity->Watch();
  return std::make_shared<const PeerTls>(std::move(identity), std::move(server_name), std::move(kernel));
}

absl::StatusOr<std::shared_ptr<const Context>> PeerTls::ForDialled() const {
  const auto now = identity_->now();
  std::lock_guard lock(mutex_);
  if (dialled_ == nullptr || &dialled_->identity() != now.get()) {
    BATON_ASSIGN_OR_RETURN(dialled_, Context::ForServer(now, {.kernel = kernel_}));
  }
  return dialled_;
}

absl::StatusOr<std::shared_ptr<const Context>> PeerTls::ForDialling(const std::string& host) const {
  return Context::ForClient(identity_->now(), {.names = NamesToProve(host, server_name_), .kernel = kernel_});
}

}  // namespace baton::tls
