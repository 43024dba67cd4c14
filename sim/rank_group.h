// The ranks of a simulated worker that carry their own KV, as ranks do that are processes: each has a landing or a
// sender of its own, the product's, which rank 0 orders about by lines in virtual time. What they share is the memory:
// an engine here keeps the KV of all ranks, a head of a layer as a layer of its own, and each sees what is its own.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "kvtransfer/kv_side.h"
#include "kvtransfer/slot_passes.h"
#include "sim/scenario.h"
#include "sim/worker_node.h"
#include "worker/ranks/kv_carrier.h"
#include "worker/ranks/rank_lines.h"

namespace baton::sim {

/// How a worker of this role cuts its KV, which an engine keeps by `kept`.
KvSide SideOfRole(const ClusterScenario& scenario, v1::WorkerRole role, const KvLayout& kept);

/// What `rank` has of the memory; it must outlive the view.
KvPoolView PoolOfRank(const engine::KvMemory& memory, const KvSide& side, int heads, int rank);

class RankGroup final : public worker::RankLines {
 public:
  /// The transports of a rank.
  using Transports = std::function<TransportMaker(int rank)>;
  /// Ranks 1 and up begin; what they say of it is heard by whoever listens then. The others must outlive it.
  RankGroup(WorkerNode& node, WorkerNode::Loop& loop, const engine::KvMemory& memory, const KvSide& side,
            worker::CarrierFactory make, Transports transports);

  int ranks() const override { return static_cast<int>(carriers_.size()); }
  void Listen(OnNews on_news) override;
  void Send(int rank, const RankOrder& order) override;
  /// Its process is gone: nothing reaches it, and nothing comes of it.
  void Lose(int rank);
  /// It stands still: what reaches it waits until it goes on.
  void Hang(int rank, bool hangs) { loops_.at(static_cast<size_t>(rank))->Hang(hangs); }

 private:
  /// The transfer thread of one rank, whose turns are those of the node's.
  class RankLoop final : public worker::TransferLoop {
   public:
    explicit RankLoop(WorkerNode::Loop& loop) : loop_(loop) {}
    void Post(std::function<void()> work) override;
    void Watch(Transport* transport) override;
    void Unwatch(Transport* transport) override;
    /// Now, or when it goes on.
    void Do(std::function<void()> work);
    void Hang(bool hangs);

   private:
    WorkerNode::Loop& loop_;
    bool hangs_ = false;
    std::vector<Transport*> transports_;
    std::vector<std::function<void()>> held_;
  };
  struct Line {
    TimePoint orders_at{}, news_at{};  ///< when what was sent last arrives: nothing overtakes it
    bool broken = false;
  };
  void Tell(int rank, const RankNews& news);
  /// When what is sent now arrives behind what arrives at `last`.
  Duration Behind(TimePoint& last);

  WorkerNode& node_;
  WorkerNode::Loop& loop_;
  worker::WorkerConfig config_;
  OnNews on_news_;
  std::vector<std::pair<int, RankNews>> first_news_;  ///< of the beginning, until somebody listens
  std::vector<Line> lines_;                           ///< by rank
  const std::shared_ptr<bool> here_ = std::make_shared<bool>(true);
  std::vector<std::unique_ptr<RankLoop>> loops_;              ///< by rank
  std::vector<std::unique_ptr<worker::KvCarrier>> carriers_;  ///< by rank; null: 0, and who is lost. Last
};

}  // namespace baton::sim
