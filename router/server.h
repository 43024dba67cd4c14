// RouterServer: a running router. Thread-safe; the destructor stops it. It owns every thread it starts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "router/router_config.h"

namespace baton::router {

/// A worker that takes no requests now.
struct AwaitedWorker {
  std::string worker, state, detail;
  double for_s = 0;                    ///< that it has been so
  std::optional<double> next_try_s{};  ///< until it is dialled, or its canary runs, again; nothing: neither
};

/// The answer of /ready.
struct Readiness {
  bool ready = false;
  std::string status;                    ///< "ready", "loading", "draining", "no_worker"
  std::string phase;                     ///< of the loading worker: "weights", "warm-up" …; "" otherwise
  double progress = 0;                   ///< 0…1 of that phase
  std::string detail;                    ///< why it is not ready, with the numbers
  std::vector<AwaitedWorker> awaited{};  ///< at most kAwaitedShown
  size_t awaited_more = 0;               ///< workers that take no requests beside those
};
/// More are counted, not named: everybody may ask /ready, and each refused request says why.
inline constexpr size_t kAwaitedShown = 20;

/// One worker as the router sees it, for start-up lines and `baton top`.
struct WorkerStatus {
  std::string address;
  std::string state;   ///< "connecting", "loading", "ready", "draining", "lost", "mismatch"
  std::string detail;  ///< mismatch: the field and both values; lost: why
  std::string incarnation;
  int64_t kv_blocks = 0;
  int32_t max_num_seqs = 0;
};

class RouterServer {
 public:
  /// Reads the model's text side, binds the ports and begins to dial the workers; does not wait for them.
  /// FailedPrecondition: the config, also a non-loopback bind without auth and TLS. NotFound, InvalidArgument from
  /// text/: the model's files. AlreadyExists, PermissionDenied: an address (the message names host, port and flag).
  static absl::StatusOr<std::unique_ptr<RouterServer>> Start(const RouterConfig& config, std::string version);

  ~RouterServer();
  RouterServer(const RouterServer&) = delete;
  RouterServer& operator=(const RouterServer&) = delete;

  uint16_t http_port() const;
  uint16_t grpc_port() const;   ///< 0 without gRPC
  uint16_t admin_port() const;  ///< 0 without an admin port
  const std::string& model_name() const;

  Readiness readiness() const;
  std::vector<WorkerStatus> workers() const;
  /// Waits until /ready would answer 200. False after `timeout`.
  bool WaitReady(Duration timeout) const;

  /// New generations get 503 (gRPC: UNAVAILABLE, health NOT_SERVING) from now on; running ones go on. Returns at once.
  void Drain();
  /// Waits until nothing runs and clients of gRPC have gone, or had a second to. False after `timeout`.
  bool WaitDrained(Duration timeout) const;
  /// A request runs.
  bool Busy() const;
  /// Ends what still runs with an error, closes every socket and joins every thread. Idempotent.
  void Stop();
  /// Returns after Stop().
  void Wait();

 private:
  class Parts;
  explicit RouterServer(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace baton::router
