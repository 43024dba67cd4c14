// WorkerRpc: one gRPC connection to one worker, as a handful of callbacks. Knows the wire, decides nothing: no retries,
// no state machine (worker_link.h has that). Every callback of a call carries the number the caller gave it and runs on
// a gRPC thread, in order per call. Hides gRPC and protobuf from its users.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "router/fleet/live_legs.h"
#include "router/fleet/worker_facts.h"
#include "router/generation.h"

namespace baton::router {

/// One message of the Watch stream. Keys are the low 64 bits of the unit hashes.
struct WatchEvent {
  enum class Kind : uint8_t { kSnapshot, kStored, kRemoved, kLoad, kState } kind = Kind::kLoad;
  std::string incarnation;
  uint64_t sequence_number = 0;
  std::vector<uint64_t> keys;
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
  uint32_t protocol_min = 0, protocol_max = 0;
  WorkerFacts facts;
};

/// Protocol versions this router speaks.
inline constexpr uint32_t kProtocolMin = 1, kProtocolMax = 1;

/// Thread-safe. Destroy only after Shutdown().
class WorkerRpc {
 public:
  struct Options {
    std::string address, router_id, router_version;
    int32_t backoff_max_ms = 2000;
    uint32_t load_interval_ms = 100;
    size_t max_pending_attaches = 1024;  ///< relay orders waiting to be written; more is ResourceExhausted
  };
  explicit WorkerRpc(Options options);
  ~WorkerRpc();

  void Handshake(const std::string& hash_key, Duration timeout, std::function<void(HandshakeAnswer)> done);

  /// Opens the Relay stream of a session: it takes orders from now on. `on_closed` is called once.
  struct RelayHandlers {
    std::function<void(std::vector<LegNews>&)> on_news;  ///< one call per message, whose leg ids die with it
    std::function<void(absl::Status)> on_closed;
  };
  void OpenRelay(uint64_t session, RelayHandlers handlers);
  /// Opens the Watch stream, and cancels the one before (whose on_closed still comes).
  struct WatchHandlers {
    /// The next event comes after `next` was called (by any thread), once per event.
    std::function<void(WatchEvent, std::function<void()> next)> on_event;
    std::function<void(absl::Status)> on_closed;
  };
  void OpenWatch(WatchHandlers handlers);
  /// Cancels both streams of the current session.
  void CloseSession();

  /// Orders of another session than the current one are refused (Unavailable) or dropped.
  absl::Status Attach(uint64_t session, const Generation& generation, const AttachOrder& order);
  void Cancel(uint64_t session, const std::string& leg_id, uint64_t attach_gen, std::optional<uint32_t> index);
  void Credit(uint64_t session, const std::string& leg_id, uint64_t attach_gen, uint32_t index, uint32_t tokens);
  void Renew(uint64_t session, const std::vector<LegRenewal>& legs);
  /// A prefill worker connects to a decode worker.
  void Meet(uint64_t session, const std::string& landing_address);

  /// The legs of a handoff. `done` is called once, with Unavailable when the connection or session ends first.
  void Reserve(uint64_t session, const Generation& generation, const LegKey& key, uint32_t expiry_ms,
               std::function<void(ReserveResult)> done);
  struct PrefillHandlers {
    std::function<void(std::string piece)> on_prompt_logprobs;
    std::function<void(PrefillResult)> done;
  };
  void Prefill(uint64_t session, const Generation& generation, const LegKey& key, const TicketGrant& grant,
               uint32_t deadline_ms, PrefillHandlers handlers);
  /// Ends a ticket (epoch 0) or a prefill leg on the worker, if it is there.
  void CancelLeg(uint64_t session, const LegKey& key, bool asks_again);

  /// Cancels everything and waits until no callback can run any more.
  void Shutdown();

 private:
  struct Inner;
  std::shared_ptr<Inner> inner_;
};

}  // namespace baton::router
