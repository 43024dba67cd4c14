// RAII over one UCX context, worker and registered landing memory, and the address that peers connect to.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "kvtransfer/ucx/ucx_transport.h"

namespace baton::ucx {

/// Unavailable with UCX's text; OK for UCS_OK.
absl::Status ToStatus(ucs_status_t status, std::string_view what);

/// The contents of an address, and, in a greeting, the memory that the peer may write.
struct PeerAddress {
  uint64_t incarnation = 0;
  int64_t pid = 0;
  std::string worker;
  uint64_t memory = 0;  ///< of the landing slots, in the peer's address space; the rest of it only in greetings
  LandingShape landing;
  std::string remote_key;

  PeerAddress WithoutLanding() const { return {incarnation, pid, worker, 0, {}, ""}; }

  std::string Pack() const;
  /// InvalidArgument when it is none.
  static absl::StatusOr<PeerAddress> Parse(std::string_view bytes);
};

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
