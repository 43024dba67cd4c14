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

/// What an address says.
struct PeerAddress {
  uint64_t incarnation = 0;
  int64_t pid = 0;
  uint64_t memory = 0;  ///< of the landing slots, in the peer's address space
  LandingShape landing;
  std::string worker;
  std::string remote_key;

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

 private:
  Worker() = default;
  absl::Status Open(const UcxOptions& options);
  absl::Status MapLanding(const UcxOptions& options);
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_mem_h memory_ = nullptr;
  std::span<std::byte> landing_;
  PeerAddress address_;
};

}  // namespace baton::ucx
