// WorkerWire: the connection to one worker, as a handful of callbacks. It knows how things travel and decides nothing:
// no retries, no state machine (link_flow.h has that). GrpcWire is the product's; the simulator has its own, which
// answers what gRPC answers.
//
// The callbacks of one call come in order, on a thread of the wire's own. A call that the wire was told to cancel
// (CloseSession, Shutdown, a newer OpenWatch) still ends by its callback, with CANCELLED, some time later: the caller
// must not take that for news.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/protocol_versions.h"
#include "router/fleet/flip_book.h"
#include "router/fleet/leg_order.h"
#include "router/fleet/worker_facts.h"

namespace baton::router {

/// One message of the Watch stream. Keys are the low 64 bits of the unit hashes.
struct WatchEvent {
  enum class Kind : uint8_t { kSnapshot, kStored, kRemoved, kLoad, kState } kind = Kind::kLoad;
  std::string incarnation;
  uint64_t sequence_number = 0;
  std::vector<uint64_t> keys;
  size_t stray_bytes = 0;  ///< behind the last whole hash
  bool snapshot_last = false;
  uint64_t digest = 0;
  WorkerLoad load;
  LinkState state = LinkState::kReady;
  std::string detail;
};

struct HandshakeAnswer {
  absl::Status status;
  bool loading = false;
  std::string phase;
  double progress = 0;
  ProtocolVersions protocol;
  WorkerFacts facts;
};

/// Thread-safe. Destroy only after Shutdown().
class WorkerWire {
 public:
  virtual ~WorkerWire() = default;

  virtual void Handshake(const std::string& hash_key, Duration timeout, std::function<void(HandshakeAnswer)> done) = 0;

  /// Opens the Relay stream of a session: the wire takes orders of this session from now on. `on_closed` is called
  /// once.
  struct RelayHandlers {
    std::function<void(std::vector<LegNews>&)> on_news;  ///< one call per message, whose leg ids die with it
    std::function<void(absl::Status)> on_closed;
  };
  virtual void OpenRelay(uint64_t session, RelayHandlers handlers) = 0;

  /// Opens the Watch stream, and cancels the one before (whose on_closed still comes).
  struct WatchHandlers {
    /// The next event comes after `next` was called (by any thread), once per event.
    std::function<void(WatchEvent, std::function<void()> next)> on_event;
    std::function<void(absl::Status)> on_closed;
  };
  virtual void OpenWatch(WatchHandlers handlers) = 0;

  /// Whether the worker has said something that nobody here has read yet. Cheap, not free: for one that seems silent.
  virtual bool HasUnread() const = 0;

  /// Cancels both streams and every call of the current session.
  virtual void CloseSession() = 0;

  /// Unavailable: `session` is not the current one. ResourceExhausted: too many Attaches wait to be written. Then there
  /// is no answer. `on_answer` is for ReserveLeg and PrefillLeg; the other orders ignore it.
  virtual absl::Status Send(uint64_t session, const TokenizedRequest& generation, const LegOrder& order,
                            std::function<void(LegAnswer)> on_answer) = 0;
  /// Replaces a renewal that has not been written yet.
  virtual void Renew(uint64_t session, const std::vector<LegRenewal>& legs) = 0;
  /// A prefill worker connects to a decode worker.
  virtual void Meet(uint64_t session, const std::string& landing_address) = 0;

  /// A worker changes its role in place (proto Flip). No call of a session; `done` once.
  virtual void Flip(WorkerRole to, Duration patience, std::function<void(FlipAnswer)> done) = 0;

  /// Cancels everything and waits until no callback can run any more.
  virtual void Shutdown() = 0;
};

/// Makes the wire to the worker at `address`.
using WireMaker = std::function<std::unique_ptr<WorkerWire>(const std::string& address)>;

}  // namespace baton::router
