// RAII over one UCX context, worker and registered landing memory, and the address that peers connect to.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "kvtransfer/ucx/peer_address.h"
#include "kvtransfer/ucx/ucx_transport.h"

namespace baton::ucx {

/// Unavailable with UCX's text; OK for UCS_OK.
absl::Status ToStatus(ucs_status_t status, std::string_view what);

class Worker {
 public:
  static absl::StatusOr<std::unique_ptr<Worker>> Create(const UcxOptions& options);
  ~Worker();
  ucp_worker_h get() const { return worker_; }
  std::span<std::byte> landing() const { return landing_; }
  const PeerAddress& address() const { return address_; }
  /// Readable when it may progress, once Arm has answered true.
  int wait_fd() const { return wait_fd_; }
  /// False: there is something to progress already.
  bool Arm() { return ucp_worker_arm(worker_) == UCS_OK; }

 private:
  Worker() = default;
  absl::Status Open(const UcxOptions& options);
  absl::Status MapLanding(const UcxOptions& options);
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_mem_h memory_ = nullptr;
  int wait_fd_ = -1;  ///< UCX's own
  std::span<std::byte> landing_;
  bool own_memory_ = false;  ///< of landing_: mapped by us, unknown to UCX
  PeerAddress address_;
};

}  // namespace baton::ucx
