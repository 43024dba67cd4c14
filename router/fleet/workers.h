// Workers: what a request needs of the fleet: the choice of workers, and a way to give them orders. Fleet is the
// product's; a test has one of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "router/fleet/leg_events.h"
#include "router/fleet/leg_order.h"
#include "router/policy/load_share.h"

namespace baton::router {

/// A worker for a request, and the request's share in that worker's load.
struct RoutedTo {
  WorkerId worker;
  LoadShare ticket;
  uint32_t predicted_cached_tokens = 0;
  double predicted_ttft_ms = 0;         ///< until its first token: queue, prefill, transfer
  std::unique_ptr<RoutedTo> prefill{};  ///< who computes the prompt; null: `worker` does
  uint32_t local_prefill_tokens = 0;    ///< with `prefill`: so many uncached ones `worker` computes itself all the same
};

/// How KV goes from one worker to another.
struct KvPath {
  std::string transport, path;      ///< empty: not known
  double gigabytes_per_second = 0;  ///< in the self-test
  int64_t bytes_per_token = 0;
};

/// Thread-safe.
class Workers {
 public:
  virtual ~Workers() = default;

  /// Unavailable: no worker can take it (says why). ResourceExhausted is the workers' own answer to an Attach.
  /// `with_prefill`: a (prefill, decode) pair may be chosen, when it is predicted to be faster than one worker alone.
  /// `numerics_so_far`: of what the client has already; empty: nothing.
  virtual absl::StatusOr<RoutedTo> Choose(const TokenizedRequest& generation, uint32_t tokens_to_prefill,
                                          const std::vector<WorkerId>& excluded, bool with_prefill,
                                          const std::string& numerics_so_far) = 0;
  /// Another prefill worker for a ticket that `decode` gave.
  virtual absl::StatusOr<RoutedTo> ChoosePrefill(const TokenizedRequest& generation,
                                                 const std::vector<WorkerId>& excluded, WorkerId decode) = 0;
  /// A worker that decodes was there and is not now: its connection broke, it leaves, or it starts again; or one has
  /// joined and is not greeted yet. `one_leaves`: a worker has said so that is not yet seen to leave.
  virtual bool MayComeBack(bool one_leaves) const = 0;
  /// What people call the worker.
  virtual std::string NameOf(WorkerId id) const = 0;
  /// For people who look.
  virtual KvPath PathOf(WorkerId /*prefill*/, WorkerId /*decode*/) const { return {}; }
  /// What decides the bits of a worker's answers; empty: not known.
  virtual std::string NumericsOf(WorkerId id) const = 0;
  /// What a handoff took beside the prefill: reserving, and waiting for the last KV.
  virtual void NoteHandoff(double ms) = 0;

  /// `events` hears what becomes of the leg (leg_events.h), also when `id` is gone.
  virtual void Send(WorkerId id, const TokenizedRequest& generation, const LegOrder& order,
                    std::shared_ptr<LegEvents> events) = 0;
  /// Nobody waits for this ticket or attached leg any more.
  virtual void Forget(WorkerId id, const std::string& leg_id) = 0;
};

}  // namespace baton::router
