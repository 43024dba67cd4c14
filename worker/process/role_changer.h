// RoleChanger: a worker's role, changed in place (proto Flip): what runs ends in the old role, then weights, KV and
// prefix cache stay where they are, and the worker is another incarnation with the other role. One change at a time, on
// a thread of its own; while it runs, handshakes hear "loading".
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/trust/peer_trust.h"
#include "worker/process/role_service.h"
#include "worker/process/worker_service.h"

namespace baton::worker {

/// New at every start and every change of the role: 64 random bits.
absl::StatusOr<std::string> NewIncarnation();

/// Thread-safe.
class RoleChanger {
 public:
  struct Parts {
    const WorkerConfig& config;
    WorkerState& state;
    const Clock& clock;
    RoleFactory make;  ///< null: `--role both`
    std::function<trust::PeerTrust()> kv_trust;
    std::function<void(bool)> set_serving;
  };
  explicit RoleChanger(Parts parts) : parts_(std::move(parts)) {}
  ~RoleChanger() { Stop(); }

  /// The role that the worker starts with, or another.
  absl::StatusOr<std::unique_ptr<Role>> Make(const LoadedModel& loaded, v1::WorkerRole role,
                                             const std::string& incarnation) const;
  /// `done` comes once, on any thread. At once where it has that role; where it changes to it already, for another
  /// router, with the end of that. FailedPrecondition: it has no other, or changes to it now. DeadlineExceeded: what
  /// runs did not end within `patience` (0: as long as it takes), and it goes on as it was.
  void Change(v1::WorkerRole to, Duration patience, RoleChanged done);
  /// The worker ends: a change that waits for what runs is given up, and none begins.
  void GiveUp();
  /// GiveUp, and the thread has ended.
  void Stop();
  /// Not OK: neither role could be made. The worker cannot go on.
  absl::Status Health() const;

 private:
  absl::StatusOr<RoleChange> Run(v1::WorkerRole to, Duration patience);
  absl::Status Drain(EngineShell& engine, Duration patience);

  const Parts parts_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool given_up_ = false;
  std::optional<v1::WorkerRole> to_;  ///< none: nothing changes
  std::vector<RoleChanged> told_;     ///< once it has
  absl::Status health_;
  std::thread thread_;
};

}  // namespace baton::worker
