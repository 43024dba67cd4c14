// WorkerServer: a running worker of any role. Thread-safe; the destructor stops it. It owns every thread it starts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "worker/process/role_service.h"
#include "worker/process/start_up.h"
#include "worker/ranks/rank_host.h"
#include "worker/worker_config.h"

namespace baton::worker {

class WorkerServer {
 public:
  /// Binds the port and answers Handshake from then on (with the loading phase), then loads the model on a thread of
  /// its own. InvalidArgument: config. AlreadyExists: address in use (names host, port and flag). Whether others may
  /// reach it is asked before (reach.h). `make_role` is called once the model is loaded, and whenever the role changes;
  /// empty: `--role both`. `ranks`: the other ranks, where they are processes; threads are made here.
  static absl::StatusOr<std::unique_ptr<WorkerServer>> Start(const WorkerConfig& config, std::string version,
                                                             RoleFactory make_role = {},
                                                             std::unique_ptr<RankHost> ranks = nullptr);

  ~WorkerServer();
  WorkerServer(const WorkerServer&) = delete;
  WorkerServer& operator=(const WorkerServer&) = delete;

  uint16_t port() const;
  /// Waits until requests are accepted, or the start has failed (then LoadStatus says why). False after `timeout`.
  bool WaitReady(Duration timeout) const;
  /// The result of the load; OK while it runs.
  absl::Status LoadStatus() const;

  /// Whether requests are accepted now; and what the start does until then.
  bool Serving() const;
  StartUpProgress::View Progress() const;

  /// Not OK: a rank has ended, and the worker cannot go on. The main thread's.
  absl::Status Health() const;

  /// Refuses new requests from now on; running ones go on. Returns at once.
  void Drain();
  /// Waits until nothing runs. False after `timeout`.
  bool WaitDrained(Duration timeout) const;
  /// Ends what still runs, closes every stream and joins every thread. Idempotent.
  void Stop();

 private:
  class Parts;
  explicit WorkerServer(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace baton::worker
