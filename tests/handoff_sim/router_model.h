// A small router for the simulated world: reserve, prefill, attach, retries, migration, cancels until they are
// answered. It is the other half of the protocol's promises, so it can be broken on purpose as well.
#pragma once

#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "decode_worker/handoff/events.h"
#include "prefill_worker/handoff/events.h"
#include "world.h"

namespace baton::sim {

class RouterModel {
 public:
  explicit RouterModel(World& world);
  void Begin();
  bool AllEnded() const;
  // From workers; `life` is the incarnation that spoke.
  void OnTicket(int decode, uint64_t life, const decode::ReserveAnswer& answer);
  void OnPrefillReply(int prefill, uint64_t life, const prefill::Reply& reply);
  void OnAttachRefused(int decode, uint64_t life, const decode::AttachRefused& refusal);
  void OnToken(int decode, uint64_t life, TicketId ticket, int request, uint64_t gen, uint64_t position);
  void OnDecodeCancelled(int decode, uint64_t life, const decode::TicketKey& key);
  void OnPrefillCancelled(int prefill, uint64_t life, const prefill::JobKey& key);
  /// Whether the sequence of `ticket` may end: the client has all, or it is somebody else's by now.
  bool Acknowledged(int request, TicketId ticket) const;

  /// Whether the router has no use for this prefill leg any more.
  bool GaveUp(const prefill::JobKey& key) const;

 private:
  enum class Phase { kReserve, kPrefill, kAttach, kOk, kFailed };
  struct Request {
    Phase phase = Phase::kReserve;
    uint32_t attempt = 0, epoch = 0;
    uint64_t gen = 1;
    int decode = 0, prefill = 0;
    uint64_t decode_life = 0, prefill_life = 0;
    TicketId ticket = 0;
    TicketSecret secret{};
    uint32_t memory = 0;  ///< that the ticket names
    uint64_t text = 0;    ///< tokens the client has
    uint64_t base = 0;    ///< first position of this attempt
    TimePoint started{}, progress{}, expires{};
  };
  bool Over(const Request& r) const { return r.phase == Phase::kOk || r.phase == Phase::kFailed; }
  void Poke(int index);
  void Disturb(int index);
  void RenewCredit(int index);
  void SendLeg(int index);
  void SendReserve(int index);
  void SendPrefill(int index);
  void SendAttach(int index);
  void ChooseDecode(int index);
  void Reissue(int index);
  void Migrate(int index);
  void End(int index, Phase how, bool cancel);
  void OweDecode(const Request& r, int index);
  void OwePrefill(const Request& r, int index);
  void SendCancels();
  void Accept(int index, TicketId ticket, uint64_t gen, uint64_t position);
  uint32_t WireEpoch(const Request& r) const;
  int IndexOf(const std::string& id) const { return std::stoi(id.substr(1)); }

  World& world_;
  std::vector<Request> requests_;
  std::set<std::tuple<int, uint64_t, decode::TicketKey>> owed_decode_;
  std::set<std::tuple<int, uint64_t, prefill::JobKey>> owed_prefill_;
  std::map<std::pair<int, TicketId>, TimePoint> token_order_;  ///< relay streams keep their order
};

}  // namespace baton::sim
