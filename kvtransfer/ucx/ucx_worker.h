// RAII over one UCX context, worker and registered landing memory, and the address that peers connect to.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvtransfer/ucx/peer_address.h"
#include "kvtransfer/ucx/ucx_transport.h"

namespace baton::ucx {

/// Unavailable with UCX's text; OK for UCS_OK.
absl::Status ToStatus(ucs_status_t status, std::string_view what);

/// Memory that one peer may write, with a key of its own, until this ends. Then no write of his by that key arrives any
/// more: where it is RDMA, by the device's own word.
class Registration {
 public:
  /// Unavailable with UCX's reason. `context` outlives it, and so does `count`, in which it counts.
  static absl::StatusOr<std::unique_ptr<Registration>> Of(ucp_context_h context, std::span<std::byte> memory,
                                                          int& count);
  ~Registration();
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  const std::string& key() const { return key_; }

 private:
  Registration(ucp_context_h context, ucp_mem_h memory, int& count)
      : context_(context), memory_(memory), count_(count) {
    ++count_;
  }
  ucp_context_h context_;
  ucp_mem_h memory_;
  int& count_;
  std::string key_;
};

class Worker {
 public:
  static absl::StatusOr<std::unique_ptr<Worker>> Create(const UcxOptions& options);
  ~Worker();
  ucp_worker_h get() const { return worker_; }
  std::span<std::byte> landing() const { return landing_; }
  const PeerAddress& address() const { return address_; }
  /// Landing memory, for one more peer. Null: there is none, or peers have its key from address(), or none needs one.
  absl::StatusOr<std::unique_ptr<Registration>> RegisterForPeer();
  /// Memory of the kind that UcxOptions::lends says, registered while this lives. Unimplemented, FailedPrecondition: as
  /// Transport::Lend.
  absl::StatusOr<ucp_mem_h> Map(std::span<std::byte> memory, unsigned access);
  absl::StatusOr<std::string> KeyOf(ucp_mem_h memory) const;
  ucs_memory_type_t lent_type() const { return lent_type_; }
  /// That RegisterForPeer has given out and that live.
  int registrations() const { return registrations_; }
  /// Readable when it may progress, once Arm has answered true.
  int wait_fd() const { return wait_fd_; }
  /// False: there is something to progress already.
  bool Arm() { return ucp_worker_arm(worker_) == UCS_OK; }

 private:
  Worker() = default;
  absl::Status Open(const UcxOptions& options);
  absl::Status MapLanding(const UcxOptions& options);
  void LookForCuda(const UcxOptions& options);
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_mem_h memory_ = nullptr;
  int wait_fd_ = -1;  ///< UCX's own
  std::span<std::byte> landing_;
  bool own_memory_ = false;  ///< of landing_: mapped by us, unknown to UCX but for `registrations_`
  bool for_each_peer_ = false;
  int registrations_ = 0;
  PeerAddress address_;
  absl::Status lends_;  ///< why not
  ucs_memory_type_t lent_type_ = UCS_MEMORY_TYPE_CUDA;
  std::vector<ucp_mem_h> mapped_;  ///< by Map
};

}  // namespace baton::ucx
