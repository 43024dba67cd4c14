// LegOrder: what a router tells a worker about one leg of a request, and what the worker answers. RequestFlow decides
// on orders, the fleet and its links pass them on as they are, and the wire (fleet/worker_wire.h) encodes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "router/request_types.h"

namespace baton::router {

/// Ask a decode worker for a ticket (proto ReserveRequest). Answered by one ReserveResult.
struct ReserveLeg {
  LegKey key;              ///< epoch 0
  uint32_t expiry_ms = 0;  ///< remaining time of the ticket until it is attached
};

/// Let a prefill worker compute the prompt for a ticket (proto PrefillRequest). Answered by PrefillPieces and one
/// PrefillResult.
struct PrefillLeg {
  LegKey key;
  const TicketGrant* grant = nullptr;  ///< must outlive the call that sends the order
  uint32_t deadline_ms = 0;            ///< remaining; 0 = none
};

/// One attach of one leg on a worker that decodes (proto Attach). Answered by RelayNews of its attach_gen.
struct AttachLeg {
  std::string leg_id;  ///< request id on the relay
  uint32_t attempt = 0;
  uint64_t attach_gen = 0;
  std::vector<uint32_t> choices;                 ///< empty: all of sampling.n
  uint64_t position = 0;                         ///< of the next token
  const std::vector<int32_t>* output = nullptr;  ///< generated so far, of the leg's only choice; null = none
  uint32_t credit_tokens = 0;
  uint32_t deadline_ms = 0;            ///< remaining; 0 = none
  const TicketGrant* grant = nullptr;  ///< null: no handoff
  uint32_t epoch = 0;                  ///< of the prefill leg that answered; 0: the worker computes the prompt
  std::vector<FirstToken> first{};     ///< what that leg drew
};

/// End a ticket (epoch 0) or a prefill leg (proto CancelRequest). Not answered.
struct CancelLeg {
  LegKey key;
  bool asks_again = false;  ///< another ticket may be asked for there: the request keeps its place in the line
};

/// End an attached leg, or one choice of it (proto RelayCancel). Not answered.
struct CancelAttached {
  std::string leg_id;
  uint64_t attach_gen = 0;  ///< this and every earlier one
  std::optional<uint32_t> index;
};

/// The client took tokens: the worker may send more (proto Credit). Not answered.
struct GiveCredit {
  std::string leg_id;
  uint64_t attach_gen = 0;
  uint32_t index = 0;
  uint32_t tokens = 0;
};

using LegOrder = std::variant<ReserveLeg, PrefillLeg, AttachLeg, CancelLeg, CancelAttached, GiveCredit>;

/// How often a router says what it still waits for at a worker, and how long the worker keeps what is not renewed:
/// memory is back within 5 s.
inline constexpr Duration kRenewEvery = std::chrono::milliseconds(500);
inline constexpr uint32_t kLegLeaseMs = 4000;

/// One leg that is still waited for (proto Renewal).
struct LegRenewal {
  LegKey key;
  uint64_t attach_gen = 0;  ///< 0: a ticket that is not attached, or a prefill leg
};

/// A piece of a prefill leg's prompt logprobs: a part of a serialized PromptLogprobs.
struct PrefillPiece {
  std::string prompt_logprobs;
};

/// What a ReserveLeg or PrefillLeg is answered with. A ReserveResult or PrefillResult is the last answer.
using LegAnswer = std::variant<ReserveResult, PrefillPiece, PrefillResult>;

}  // namespace baton::router
