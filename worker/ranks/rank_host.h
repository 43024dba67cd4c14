// Rank 0's view of the other ranks: links, their KV memory, and whether they live. The command that starts a worker
// makes it.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/trust/peer_trust.h"
#include "engine/parallel/rank_place.h"
#include "worker/ranks/rank.h"
#include "worker/ranks/shared_memory.h"
#include "worker/worker_config.h"

namespace baton::worker {

class RankHost {
 public:
  /// Ends the ranks that still live, and waits for them.
  virtual ~RankHost() = default;
  /// Rank 0's. For one thread at a time, but for Abort.
  virtual engine::RankLinks links() = 0;
  /// Of ranks 1, 2, … that are threads: where their KV is, from rank 0's side.
  virtual std::vector<SharedMemory>& kv() = 0;
  /// Of ranks 1, 2, … that are threads, once they have taken their KV: as it lies on their GPUs. Empty: it is in kv().
  virtual std::vector<DeviceKv> device_kv() { return {}; }
  /// Of ranks that are processes: what they prove to each other, and where rank 0 can be reached.
  virtual trust::PeerTrust trust() const { return {}; }
  virtual std::string host() const { return {}; }
  /// Rank 0 goes on with its start. Until Started all ranks are lost where nothing moves for --rank-start-timeout-ms.
  virtual void Note(std::string_view phase, double fraction) { static_cast<void>(phase), static_cast<void>(fraction); }
  /// All have loaded: from now on a rank that does not answer within --rank-timeout-ms is lost, and so is one for which
  /// a step waits as long. `running`: engine::StepChannel::running; null: steps wait over the host alone.
  virtual void Started(std::shared_ptr<const std::atomic<uint64_t>> running) { static_cast<void>(running); }
  /// A RankLoss: a rank has ended, and how, or does not answer. The main thread's.
  virtual absl::Status Health() = 0;
};

/// Ranks 1 … as threads of this process. Null for one rank.
absl::StatusOr<std::unique_ptr<RankHost>> StartRankThreads(const WorkerConfig& config);

}  // namespace baton::worker
