// gRPC's health service and nothing else: what a machine with ranks of a worker shows, where rank 0 is elsewhere.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/worker_config.h"

namespace baton::worker {

/// Answers at --host and --port, in TLS as a worker does: "" is alive, "baton.v1.Worker" serves when it is ready. Any
/// thread.
class HealthServer {
 public:
  /// AlreadyExists: the address cannot be bound. FailedPrecondition: --host cannot be used, or the TLS files.
  static absl::StatusOr<std::unique_ptr<HealthServer>> Listen(const WorkerConfig& config);
  ~HealthServer();

  uint16_t port() const;
  void SetReady(bool ready);

 private:
  class Parts;
  explicit HealthServer(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace baton::worker
