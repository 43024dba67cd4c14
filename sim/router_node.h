// The router: a real RequestFlow for every request and the router's own codecs; here are only the connections to the
// workers (what gRPC is in the product) and a choice of workers by chance. Requests and answers travel as bytes and are
// harmed on the way. Damage that a protocol under gRPC would notice ends the connection, as there.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "router/flow/request_flow.h"
#include "router/generation.h"
#include "sim/decode_node.h"
#include "sim/live_legs.h"
#include "sim/prefill_node.h"
#include "sim/router_port.h"
#include "sim/unkind_transport.h"

namespace baton::sim {

/// What a client got.
struct ClientView {
  enum class End : uint8_t { kNone, kComplete, kFailed, kLeft };
  std::map<uint32_t, std::string> text;  ///< by choice: tokens and logprob bits, and how it ended
  End end = End::kNone;
  absl::Status failure;
  TimePoint asked{}, ended{};
};

class RouterNode final : public RouterPort {
 public:
  explicit RouterNode(const Plant& plant);
  ~RouterNode() override;
  /// Prefill workers first, in the order of their numbers. They must outlive it, but for its destructor.
  void Add(PrefillNode* node);
  void Add(DecodeNode* node);

  void Ask(router::Generation generation);
  /// The client of the latest request leaves in a while.
  void Leave(Duration after);
  /// The connection to a worker breaks.
  void Break(int worker);
  /// Its host is gone, and with it every client: no connection says so to the workers. From now on it is a new router.
  void Vanish();
  /// Looks after the connections; every now and then.
  void Tick();
  bool AllEnded() const;
  const std::vector<ClientView>& clients() const { return clients_; }
  const std::string& request_id(size_t client) const { return calls_[client]->generation.request_id; }
  int migrations() const { return migrations_; }
  int second_attaches() const { return second_attaches_; }

  void ReserveReply(int worker, const std::string& session, const router::LegKey& key, std::string bytes) override;
  void PrefillReply(int worker, const std::string& session, const router::LegKey& key, std::string bytes) override;
  void PrefillEnd(int worker, const std::string& session, const router::LegKey& key,
                  const absl::Status& status) override;
  void RelayDown(int worker, const std::string& session, std::string bytes) override;

 private:
  struct Link {
    WorkerNode* node = nullptr;
    uint64_t session = 0;                ///< 0: not connected
    uint64_t life = 0;                   ///< of the worker it is connected to
    TimePoint up_order{}, down_order{};  ///< of its streams
    TimePoint silent_since{};            ///< the worker is stopped
    router::LiveLegs live;               ///< of this session
    TimePoint renewed{};
  };
  struct Call {
    router::Generation generation;
    std::unique_ptr<router::RequestFlow> flow;
    std::vector<std::pair<router::WorkerId, router::LegKey>> prefills;  ///< under way
    uint64_t timer = 0;
    bool pumping = false;
  };
  static std::string SessionName(uint64_t session) { return StrCat("s", session); }
  bool Current(int worker, const std::string& session) const;
  std::vector<int> Ready(bool prefill, const std::vector<router::WorkerId>& excluded) const;
  router::WorkerId IdOf(int worker) const { return {worker, links_[static_cast<size_t>(worker)].session}; }

  /// Carries `bytes` and delivers them at the other end, or does not. `order`: of the stream they are part of.
  void Carry(int worker, std::string bytes, TimePoint* order, std::function<void(std::string)> deliver);
  void ToWorker(router::WorkerId worker, std::string bytes, bool stream,
                std::function<void(WorkerNode&, const std::string& session, std::string)> deliver);
  void ToRouter(int worker, const std::string& session, std::string bytes, bool stream,
                std::function<void(std::string)> deliver);
  void Lost(router::WorkerId worker, const std::string& why);
  void EndPrefill(Call& call, const router::LegKey& key);
  void Connect(int worker);
  /// What the worker's link of the product keeps of what a request waits for; null: that connection is over.
  router::LiveLegs* LiveAt(router::WorkerId worker);
  void Renew(router::WorkerId worker);

  Call* CallOf(const std::string& leg_id, size_t* index = nullptr);
  void Pump(size_t index);
  void Do(size_t i, const router::PickWorker& action);
  void Do(size_t i, const router::SendTo& action);
  void Send(size_t i, router::WorkerId worker, const router::ReserveLeg& leg);
  void Send(size_t i, router::WorkerId worker, const router::PrefillLeg& leg);
  void Send(size_t i, router::WorkerId worker, const router::AttachLeg& leg);
  void Send(size_t i, router::WorkerId worker, const router::CancelLeg& order);
  void Send(size_t i, router::WorkerId worker, const router::CancelAttached& order);
  void Send(size_t i, router::WorkerId worker, const router::GiveCredit& order);
  void Do(size_t i, const router::PickPrefill& action);
  void Do(size_t, const router::Admitted&) {}
  void Do(size_t i, const router::EmitTokens& action);
  void Do(size_t, const router::EmitPromptLogprobs&) {}
  void Do(size_t i, const router::EndChoice& action);
  void Do(size_t i, const router::Complete& action);
  void Do(size_t i, const router::Fail& action);
  void Do(size_t i, const router::ArmTimer& action);
  void End(size_t i, ClientView::End how);

  const Plant plant_;
  Timeline& time_;
  std::vector<Link> links_;  ///< prefill workers, then decode workers
  size_t prefills_ = 0;
  std::vector<std::unique_ptr<Call>> calls_;
  std::vector<ClientView> clients_;
  uint64_t last_session_ = 0;
  int migrations_ = 0, second_attaches_ = 0;
};

/// A token and its logprobs' bits, as ClientView has them.
std::string TokenText(int32_t token, const std::vector<router::PositionLogprobs>& logprobs, size_t at);

}  // namespace baton::sim
