// SimWire: a router's connection to one worker in the simulation. It makes the bytes that the product's wire makes, and
// answers what gRPC answers: calls of a broken connection end with UNAVAILABLE, calls that the router cancelled with
// CANCELLED, later; a worker that is not there refuses, one that is stopped lets everybody wait.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "proto/worker.pb.h"
#include "router/fleet/report_terms.h"
#include "router/fleet/worker_wire.h"
#include "sim/connection.h"

namespace baton::sim {

/// What the wires of a cluster have carried, so that tests can see that it was.
struct WireCounters {
  int migrations = 0, prefills = 0, sessions = 0;
  int again = 0;  ///< legs of a second or later attempt or epoch
  int canaries = 0, failed_canaries = 0;
  int meddled = 0;  ///< words about legs of another router
};

class SimWire final : public router::WorkerWire {
 public:
  /// `router_id` names the router's life. The references must outlive it.
  SimWire(Cable& cable, std::string router_id, const router::ReportTerms& reports, WireCounters& counters)
      : cable_(cable), router_id_(std::move(router_id)), reports_(reports), counters_(counters) {}
  ~SimWire() override { Shutdown(); }

  void Handshake(const std::string& hash_key, Duration timeout,
                 std::function<void(router::HandshakeAnswer)> done) override;
  void OpenRelay(uint64_t session, RelayHandlers handlers) override;
  void OpenWatch(WatchHandlers handlers) override;
  void CloseSession() override;
  absl::Status Send(uint64_t session, const router::TokenizedRequest& generation, const router::LegOrder& order,
                    std::function<void(router::LegAnswer)> on_answer) override;
  void Renew(uint64_t session, const std::vector<router::LegRenewal>& legs) override;
  void Meet(uint64_t session, const std::string& landing_address) override;
  void Flip(router::WorkerRole to, Duration patience, std::function<void(router::FlipAnswer)> done) override;
  bool HasUnread() const override { return false; }  // what arrives here is read
  void Shutdown() override;

  WorkerNode& worker() const { return cable_.worker; }
  /// Says one thing about a leg of another router, as if it were its own.
  void Meddle();

 private:
  using Answered = std::function<void(router::LegAnswer)>;
  using Serve = void (*)(WorkerNode&, const std::shared_ptr<Call>&, const std::string& request);
  struct Outbox;
  struct WatchQueue;

  /// A call in the connection of now, or in a new one; when nobody is there it ends with UNAVAILABLE. Null: this wire
  /// is shut down.
  std::shared_ptr<Call> Begin();
  /// Sends the only message of a call; `done` gets the last answer, if one came, and how the call ended.
  std::shared_ptr<Call> Ask(Serve serve, std::string request,
                            std::function<void(const absl::Status&, const std::string& reply)> done);
  std::string SessionName(uint64_t session) const;
  absl::Status Do(const router::TokenizedRequest& generation, const router::ReserveLeg& leg, Answered on_answer);
  absl::Status Do(const router::TokenizedRequest& generation, const router::PrefillLeg& leg, Answered on_answer);
  absl::Status Do(const router::TokenizedRequest& generation, const router::AttachLeg& leg, Answered on_answer);
  absl::Status Do(const router::TokenizedRequest& generation, const router::CancelLeg& leg, Answered on_answer);
  absl::Status Do(const router::TokenizedRequest& generation, const router::CancelAttached& leg, Answered on_answer);
  absl::Status Do(const router::TokenizedRequest& generation, const router::GiveCredit& credit, Answered on_answer);
  /// Of this session; null: it is over.
  Outbox* OutboxOf(uint64_t session);

  Cable& cable_;
  const std::string router_id_;
  const router::ReportTerms reports_;
  WireCounters& counters_;
  bool down_ = false;
  std::string incarnation_;  ///< of the last handshake
  uint64_t session_ = 0;
  std::shared_ptr<Outbox> outbox_;
  std::shared_ptr<Call> relay_, watch_;
  std::vector<std::shared_ptr<Call>> calls_;  ///< all that may still call back
  std::vector<std::shared_ptr<Call>> legs_;   ///< of those, unary calls and answer streams of the session
};

}  // namespace baton::sim
