// Fleet: every worker that is known, and the choice of one for a request. Workers come and go while requests run
// (roster.h). Owns the links, the prefix index, the scorer and the hash key. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/prefix_hash.h"
#include "router/fleet/canary_book.h"
#include "router/fleet/meetings.h"
#include "router/fleet/roster.h"
#include "router/fleet/worker_link.h"
#include "router/fleet/workers.h"
#include "router/policy/scorer.h"
#include "router/server.h"

namespace baton::trust {
class ClusterSecret;
}

namespace baton::router {

/// What a decision would be: /debug/route.
struct ExplainedCost {
  WorkerId worker;
  std::optional<WorkerId> prefill;  ///< null: `worker` computes the prompt
  Cost cost;
  uint32_t cached_tokens = 0;  ///< where the prompt is computed, as the index predicts
  bool chosen = false;
};
/// A worker or pair that was no option.
struct ExplainedOut {
  WorkerId worker;
  std::optional<WorkerId> prefill;
  std::string reason;
};
struct ExplainedRoute {
  size_t prompt_tokens = 0;
  std::string policy;
  std::vector<ExplainedCost> costs;  ///< of every option that the ready workers give
  std::vector<ExplainedOut> out;
};
/// As JSON. Of more options or outs than `most`, the chosen one and the cheapest are there, and how many are not.
std::string RouteJson(const std::vector<LinkView>& views, const ExplainedRoute& route, size_t most = SIZE_MAX);

/// Where a canary goes.
struct CanaryLegs {
  std::string request_id;
  std::optional<WorkerId> prefill;  ///< null: `decode` computes the prompt
  WorkerId decode;
  int32_t vocab_size = 0;
};
/// Sends a canary, on the home loop. What it returns is kept until `done` was called: once, later, OK when its answer
/// came through both.
using CanarySender =
    std::function<std::shared_ptr<void>(const CanaryLegs& legs, std::function<void(const absl::Status&)> done)>;

/// Beside one worker.
struct WhoElseDecodes {
  bool any = false;  ///< lost ones, too
  bool takes_requests = false;
};

class Fleet final : public LinkHost, public Workers {
 public:
  /// Where a fleet's own work runs.
  struct Loops {
    EventLoop& home;     ///< the links' state machines
    EventLoop& waiting;  ///< what waits for the calls of a connection to end; may be `home` where nothing waits
  };
  /// Its workers are config.worker. `wires`: called once for each worker, on the home loop after Start. With
  /// `send_canary` a worker takes requests when a canary has gone through it. `secret`: the cluster's, for the call;
  /// the key of prefix hashes follows from it where no file names one.
  static absl::StatusOr<std::unique_ptr<Fleet>> Create(const RouterConfig& config, Loops loops, const Clock& clock,
                                                       WireMaker wires, CanarySender send_canary = nullptr,
                                                       const trust::ClusterSecret* secret = nullptr);
  ~Fleet() override;

  void Start();
  /// The workers from now on, those of config.worker among them. Any thread; after Start, and not after Stop.
  void SetEndpoints(std::vector<Endpoint> endpoints);
  /// An operator's order about one worker, by its name or its address.
  struct DrainOrder {
    std::string worker;
    bool undo = false;   ///< it takes requests again
    bool force = false;  ///< even if nobody is left that decodes
  };
  /// It takes no new requests, whatever discovery says; what runs there goes on to its end. `done`, on the home loop:
  /// the worker as it is now. NotFound: who there is. InvalidArgument: two have that name. FailedPrecondition: it is
  /// the last that takes requests and decodes. Any thread, after Start and not after Stop.
  void Drain(DrainOrder order, std::function<void(absl::StatusOr<LinkView>)> done);
  struct FlipOrder {
    std::string worker;
    WorkerRole to = WorkerRole::kUnknown;
    bool force = false;   ///< even if nobody is left that decodes
    Duration patience{};  ///< for what runs there to end; 0: as long as it takes
  };
  /// It changes its role in place: takes no new requests, ends what runs, and takes requests again when a canary went
  /// through it. `done` as Drain's, when that has begun: LinkView::flip says how far it is.
  void Flip(FlipOrder order, std::function<void(absl::StatusOr<LinkView>)> done);
  /// Every request on a worker is told that it is lost. Idempotent; not on the home loop.
  void Stop();

  /// What the workers serve; null until one has been admitted. Stays when all are lost.
  std::shared_ptr<const WorkerFacts> model_facts() const;
  std::vector<LinkView> Views() const;
  /// Without copies, in the order of slots; `look` must be short and call no link.
  void ForEachView(absl::FunctionRef<void(const LinkView&)> look) const;
  std::vector<WorkerStatus> Status() const;
  /// Ready when a worker can take requests; otherwise says why not.
  Readiness ReadinessNow() const;

  /// The cost table of that decision, without taking it. InvalidArgument: an empty prompt. Unavailable: no worker.
  absl::StatusOr<ExplainedRoute> Explain(const TokenizedRequest& generation) const;

  absl::StatusOr<RoutedTo> Choose(const TokenizedRequest& generation, uint32_t tokens_to_prefill,
                                  const std::vector<WorkerId>& excluded, bool with_prefill,
                                  const std::string& numerics_so_far) override;
  absl::StatusOr<RoutedTo> ChoosePrefill(const TokenizedRequest& generation, const std::vector<WorkerId>& excluded,
                                         WorkerId decode) override;
  bool MayComeBack(bool one_leaves) const override;
  std::string NumericsOf(WorkerId id) const override;
  std::string NameOf(WorkerId id) const override;
  KvPath PathOf(WorkerId prefill, WorkerId decode) const override;
  void NoteHandoff(double ms) override;
  void Send(WorkerId id, const TokenizedRequest& generation, const LegOrder& order,
            std::shared_ptr<LegEvents> events) override;
  void Forget(WorkerId id, const std::string& leg_id) override;

  const WorkerPrefixes& index() const { return index_; }

 private:
  using Links = std::vector<std::shared_ptr<WorkerLink>>;  // [slot]; null: free

  Fleet(const RouterConfig& config, Loops loops, const Clock& clock, WireMaker wires, CanarySender send_canary,
        std::unique_ptr<Scorer> scorer, HashKey key, bool key_from_file);
  bool OthersReady(int32_t slot) const;
  size_t CountWorkers() const;
  /// Home loop, whenever a worker begins to serve or the roster changes.
  void NoteReady() { was_ready_ = was_ready_ || ReadinessNow().ready; }
  absl::StatusOr<LinkView> Named(const std::string& worker) const;
  absl::StatusOr<LinkView> DrainNow(const DrainOrder& order);
  /// FailedPrecondition: nobody else that takes requests decodes.
  absl::Status CheckNotLast(const LinkView& view) const;
  WhoElseDecodes OthersThatDecode(WorkerId id) const;
  absl::StatusOr<LinkView> FlipNow(const FlipOrder& order);
  void LookAtFlips();
  void CarryOutFlips();
  void Do(const HoldFlipped& action);
  void Do(const ReleaseFlipped& action);
  void Do(const OrderFlip& action);
  void Do(const ShowFlip& action);
  absl::Status CheckName(int32_t slot, const WorkerFacts& facts) const;
  void DialDuplicates();
  std::string ServesAlsoAt(int32_t slot) const;
  void ReleaseDoubles();

  // ---- membership; home loop, or before Start
  std::shared_ptr<const Links> links() const;
  void SetLink(int32_t slot, std::shared_ptr<WorkerLink> link);
  void Seat();
  void Do(const AddWorker& action);
  void Do(const HoldWorker& action);
  void Do(const TakeWorker& action);
  void Do(const DropWorker& action);
  void Do(const RefuseWorkers& action);
  void Tick();

  std::string GreetingKey(bool refused_before) override;
  absl::Status Admit(int32_t slot, const WorkerFacts& facts) override;
  void OnReady(int32_t slot) override;
  std::string UnprovenAtFirst() const override;
  // ---- canaries; home loop
  void LookAtCanaries();
  void Do(const RunCanary& action);
  void Do(const ShowProof& action);
  void Do(const ArmCanaries& action);
  /// The workers that can take a request.
  struct Ready {
    /// What a candidate has beside what decides.
    struct Part {
      std::shared_ptr<const WorkerFacts> facts;
      std::shared_ptr<OutstandingLoad> outstanding;
      PeerPaths peers;
      double mean_peer_gigabytes_per_second = 0;
    };
    std::vector<Candidate> candidates;
    std::vector<Part> parts;  // [candidates]
    UnitKeys keys;            // of the prompt
    int64_t prompt_tokens = 0;
    /// On candidate `i`, which computes what it lacks of so many tokens.
    RoutedTo Place(size_t i, uint32_t tokens_to_prefill) const;
  };
  class Peers;
  absl::StatusOr<Ready> ReadyFor(const TokenizedRequest& generation, const std::vector<WorkerId>& excluded) const;
  /// Of what it refers to, `ready` must outlive it.
  static double UnmetGigabytesPerSecond(const Ready& ready);
  HandoffTerms HandoffTermsOf(const Ready& ready) const;
  std::shared_ptr<WorkerLink> LinkOf(WorkerId id) const;
  /// Null: it has left, or was never greeted.
  std::shared_ptr<const WorkerFacts> FactsOf(WorkerId id) const;
  UnitKeys KeysOf(const TokenizedRequest& generation) const;
  void Match(const TokenizedRequest& generation, Ready& ready) const;

  const RouterConfig config_;
  const std::unique_ptr<Scorer> scorer_;
  WorkerPrefixes index_;
  const Loops loops_;
  const Clock& clock_;
  const WireMaker wires_;
  const CanarySender send_canary_;  ///< null: none are sent
  std::atomic<bool> stopped_{false};
  const bool key_from_file_;
  const TimePoint created_;
  std::atomic<double> handoff_ms_{4};   ///< moving mean of NoteHandoff
  std::atomic<bool> was_ready_{false};  ///< then workers that join are not waited for

  Meetings meetings_;          // home loop
  Roster roster_;              // home loop, or before Start
  std::set<int32_t> doubles_;  // home loop; slots that are held because their worker serves at another address
  std::unique_ptr<EventLoopTimer> timer_;                    // as roster_: armed while the roster waits
  CanaryBook canaries_;                                      // home loop
  std::map<uint64_t, std::shared_ptr<void>> sent_canaries_;  // home loop; by their numbers in canaries_
  FlipBook flips_;                                           // home loop
  std::unique_ptr<EventLoopTimer> flip_timer_;               // home loop: armed while a role changes
  std::unique_ptr<EventLoopTimer> canary_timer_;             // home loop
  bool started_ = false, closed_ = false;                    // as roster_

  mutable std::mutex links_mutex_;  // guards links_
  std::shared_ptr<const Links> links_ = std::make_shared<const Links>();

  mutable std::mutex mutex_;  // guards what follows
  HashKey key_;
  std::shared_ptr<const PrefixHasher> hasher_;
  std::shared_ptr<const WorkerFacts> facts_;
};

}  // namespace baton::router
