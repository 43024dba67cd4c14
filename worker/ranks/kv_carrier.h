// A rank's own part of the handoff, where ranks are processes: it moves the KV that it keeps, on connections of its
// own, as rank 0 orders. What orders there are, a role says (prefill_worker/, decode_worker/); the shell around it is
// here.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/protocol_versions.h"
#include "common/trust/peer_trust.h"
#include "kvtransfer/kv_side.h"
#include "kvtransfer/rank_codec.h"
#include "kvtransfer/slot_passes.h"
#include "kvtransfer/transports/transports.h"
#include "worker/ranks/kv_lines.h"
#include "worker/transfer/transfer_loop.h"
#include "worker/transfer/transfer_thread.h"
#include "worker/worker_config.h"

namespace baton::worker {

class KvCarrier {
 public:
  virtual ~KvCarrier() = default;
  /// Any order but Begin.
  void Handle(const RankOrder& order);

 protected:
  /// `work` comes of the order, or says why none does.
  virtual void Work(const SlotOrder& order, absl::StatusOr<SlotWork> work) = 0;
  /// All else.
  virtual void Obey(const v1::RankOrder& order) = 0;

 private:
  PlanShelf plans_;
};

/// All of it outlives the carrier.
struct CarrierContext {
  const WorkerConfig& config;
  int rank = 0;
  KvPoolView pool;  ///< of this rank alone
  KvSide side;      ///< of the worker
  std::string model_digest;
  std::string incarnation, numerics_id;  ///< of the worker
  const Clock& clock;
  TransferLoop& thread;
  std::function<void(const RankNews& news)> tell;  ///< on the transfer thread
  trust::PeerTrust kv_trust = {};                  ///< of the cluster
  bool takes_kv = false;                           ///< decode; else it sends
  ProtocolVersions kv_protocol = KvProtocol();     ///< of the worker
  TransportMaker make = {};                        ///< of simulators: makes every transport, of any kind
};
using CarrierFactory = std::function<absl::StatusOr<std::unique_ptr<KvCarrier>>(const CarrierContext&)>;

/// Its thread, its line to rank 0, and from the first order on its carrier.
class RankCarrier {
 public:
  struct Facts {
    const WorkerConfig& config;
    int rank = 0;
    KvPoolView pool;
    KvSide side;
    std::string model_digest;
  };
  /// Dials rank 0. `on_broken`: the line broke, and this rank's end does not follow at once, as it does where rank 0
  /// ends in order; on a thread of its own. `trust` is the group's.
  static absl::StatusOr<std::unique_ptr<RankCarrier>> Start(Facts facts, CarrierFactory make,
                                                            const KvInvitation& invitation, trust::PeerTrust trust,
                                                            KvLine::OnBroken on_broken);
  ~RankCarrier();

 private:
  RankCarrier(Facts facts, CarrierFactory make, KvLine::OnBroken on_broken)
      : facts_(std::move(facts)), make_(std::move(make)), on_broken_(std::move(on_broken)) {}
  void Handle(const RankOrder& order);
  void BeginAnew(const v1::RankOrder& order);
  absl::Status Begin(const v1::RankOrder& order);
  void Break(const absl::Status& why);

  const SteadyClock clock_;
  const Facts facts_;
  const CarrierFactory make_;
  const KvLine::OnBroken on_broken_;
  std::mutex mutex_;  ///< guards ended_
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread breaks_;  ///< waits whether the end follows
  TransferThread thread_;
  std::unique_ptr<KvLine> line_;
  std::unique_ptr<KvCarrier> carrier_;
};

}  // namespace baton::worker
