// WorkerLink: the shell around a LinkFlow: the wire to one worker, who waits for what there (LegBook), and what the
// rest of the router sees of the worker (LinkView). The flow runs on one loop (`home`); View, Send and Forget may
// be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "router/event_loop.h"
#include "router/fleet/leg_book.h"
#include "router/fleet/link_flow.h"
#include "router/fleet/worker_wire.h"
#include "router/index/worker_prefixes.h"
#include "router/policy/load_share.h"
#include "router/router_config.h"

namespace baton::router {

/// What the fleet tells links, and links ask the fleet. Called on the home loop.
class LinkHost {
 public:
  virtual ~LinkHost() = default;
  /// The key to greet a worker with; empty: adopt the worker's.
  virtual std::string GreetingKey(bool refused_before) = 0;
  /// OK: the worker may serve. FailedPrecondition: what differs, with both values. AlreadyExists: it serves already, at
  /// another address.
  virtual absl::Status Admit(int32_t slot, const WorkerFacts& facts) = 0;
  /// It serves from now on.
  virtual void OnReady(int32_t slot) = 0;
  /// Why a worker that nothing is known of takes no requests yet; empty: it takes them.
  virtual std::string UnprovenAtFirst() const { return {}; }
};

/// A link at one moment.
struct LinkView {
  WorkerId id;
  LinkState state = LinkState::kConnecting;
  std::string address, detail, phase;
  double progress = 0;
  std::shared_ptr<const WorkerFacts> facts;  ///< null before the first handshake
  WorkerLoad load;
  bool has_load = false;
  int64_t others_queued_tokens = 0;  ///< of `load`, what this router did not send
  std::shared_ptr<OutstandingLoad> outstanding;
  int64_t restarts = 0;        ///< handshakes in which the worker was another process than before
  int64_t losses = 0;          ///< sessions that ended, but for changes of its role and those that it left in order
  bool left_draining = false;  ///< it had said that it drains when it went
  bool left_in_order = false;  ///< it had said that it drains, and nothing of this router's ran there, when it went
  TimePoint since{};           ///< it is in this state, held or not
  TimePoint dials_at{};        ///< while it is not connected: again
  std::string held;            ///< why it takes no new requests though it is there; empty: it takes them
  std::string unproven;        ///< why no canary has proven this process yet (canary_book.h); empty: it takes requests
  std::optional<TimePoint> canary_at{};  ///< of one that is unproven: its next canary
  std::shared_ptr<const FlipView> flip;  ///< the latest change of its role; null: none
  bool duplicate = false;                ///< the process is reached at another address already

  /// A session that ends now is no loss, and another incarnation no restart: this router has asked for both.
  bool changes_its_role() const {
    return flip && (flip->stage == FlipStage::kChanges || flip->stage == FlipStage::kReturns);
  }
  bool takes_requests() const { return state == LinkState::kReady && held.empty() && unproven.empty(); }
  /// The same as people see it: one that takes no new requests drains, or is not proven yet.
  LinkState shown_state() const {
    if (state != LinkState::kReady || takes_requests()) return state;
    return held.empty() ? LinkState::kUnproven : LinkState::kDraining;
  }
  const std::string& shown_detail() const {
    if (!held.empty()) return held;
    return state == LinkState::kReady && !unproven.empty() ? unproven : detail;
  }
  /// What people call the worker: its own name, or its address before the first handshake.
  const std::string& name() const { return facts && !facts->worker_id.empty() ? facts->worker_id : address; }
};

class WorkerLink : public std::enable_shared_from_this<WorkerLink> {
 public:
  /// A worker that drains ends its streams when nothing runs there any more. What it said last on another stream may be
  /// read later than their end; it is waited for so long.
  static constexpr Duration kLastWordsWithin = std::chrono::milliseconds(500);

  /// What a link is made of; the references must outlive it.
  struct Parts {
    const RouterConfig& config;
    EventLoop& home;
    LinkHost& host;
    WorkerPrefixes& index;
    const Clock& clock;
  };
  WorkerLink(int32_t slot, const std::string& address, const Parts& parts, std::unique_ptr<WorkerWire> wire);

  void Start();
  /// Tells everybody who waits that the worker is lost, and waits for the streams to end. Not on the home loop.
  void Stop();
  /// The two halves of Stop, for a fleet that goes on: on the home loop, then on a thread that may wait.
  void Leave(const absl::Status& why);
  void Shutdown() { wire_->Shutdown(); }
  /// Not after a pause: the reason for it may be gone. Home loop.
  void DialNow();
  /// No new requests for this reason; empty: they come again. Home loop.
  void Hold(std::string why);
  /// No requests yet for this reason; empty: it takes them from now on. Home loop.
  void Prove(std::string unproven, std::optional<TimePoint> next);
  /// Changes its role; `done` on the home loop. Home loop.
  void Flip(WorkerRole to, Duration patience, std::function<void(const FlipAnswer&)> done);
  void ShowFlip(const FlipView& view);
  /// Nothing runs there, as far as this router knows.
  bool idle() const;

  LinkView View() const;
  /// View without a copy; `look` must be short and call no link.
  void Look(absl::FunctionRef<void(const LinkView&)> look) const;
  /// `events` hears of the leg from now on: answers, news, or that the worker is lost, also when `id` is not the
  /// connection of now.
  void Send(WorkerId id, const TokenizedRequest& generation, const LegOrder& order, std::shared_ptr<LegEvents> events);
  /// Nobody waits for this ticket or attached leg any more.
  void Forget(WorkerId id, const std::string& leg_id);
  /// A prefill worker connects to a decode worker. Home loop.
  void Meet(const std::string& landing_address);

 private:
  void Pump();
  void Do(DialWorker action);
  void Do(OpenSession action);
  void Do(OpenWatch action);
  void Do(StoreUnits action);
  void Do(RemoveUnits action);
  void Do(TakeLoad action);
  void Do(EndSession action);
  void Do(RenewLegs action);
  void Do(ShowLink action);
  void Do(NowServing action);
  void Do(ArmLink action);
  void OnHandshake(HandshakeAnswer answer);
  void OnWatch(uint64_t round, WatchEvent event);
  void OnClosed(std::function<void(TimePoint)> tell);
  void LookAtClosed();
  void OnRelay(uint64_t session, std::vector<LegNews>& news);
  void OnAnswer(WorkerId id, const LegKey& key, LegAnswer answer);
  absl::Status CheckProtocol(const HandshakeAnswer& answer) const;

  const int32_t slot_;
  const Parts parts_;
  const std::unique_ptr<WorkerWire> wire_;
  std::unique_ptr<EventLoopTimer> timer_;
  std::unique_ptr<EventLoopTimer> closed_timer_;

  // ---- home loop only
  LinkFlow flow_;
  bool pumping_ = false;
  const WatchEvent* event_ = nullptr;                   ///< being handled
  std::shared_ptr<const WorkerFacts> facts_;            ///< of the handshake being handled
  std::vector<std::function<void(TimePoint)>> closed_;  ///< streams whose end the flow does not know yet
  TimePoint closed_until_{};

  mutable std::mutex mutex_;  // guards what follows
  LinkView view_;
  LegBook book_;  // of view_.id
};

}  // namespace baton::router
