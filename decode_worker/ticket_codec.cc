#include "decode_worker/ticket_codec.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "common/planted_bug.h"
#include "common/status.h"
#include "kvtransfer/layout_codec.h"
#include "proto/order_limits.h"
#include "worker/relay/codec.h"

namespace baton::decode_worker {
namespace {

constexpr auto kDefaultExpiry = std::chrono::seconds(60);

}  // namespace

decode::TicketKey KeyOf(const v1::RequestKey& in, const std::string& router) {
  return {in.request_id(), in.attempt(), PlantedBug("tickets are not told apart by their routers") ? "" : router};
}

absl::StatusOr<decode::ReserveOrder> DecodeReserve(const v1::ReserveRequest& in, const std::string& router) {
  BATON_RETURN_IF_ERROR(worker::CheckTokenBytes(in.prompt_token_ids().size()));
  BATON_RETURN_IF_ERROR(worker::CheckNames(in.key(), in.cache_salt()));
  BATON_RETURN_IF_ERROR(CheckAtMost("the length of router_session", in.router_session().size(), kMostIdBytes));
  BATON_RETURN_IF_ERROR(CheckAtMost("prompt_len", in.prompt_len(), std::numeric_limits<int32_t>::max()));
  BATON_RETURN_IF_ERROR(CheckAtMost("expiry_ms", in.expiry_ms(), kMostExpiryMs));
  BATON_RETURN_IF_ERROR(CheckAtMost("lease_ms", in.lease_ms(), kMostLeaseMs));
  decode::ReserveOrder order;
  order.key = KeyOf(in.key(), router);
  order.salt = in.cache_salt();
  order.prompt.resize(in.prompt_token_ids().size() / 4);
  if (!order.prompt.empty()) std::memcpy(order.prompt.data(), in.prompt_token_ids().data(), order.prompt.size() * 4);
  order.session = in.router_session();
  order.lease = std::chrono::milliseconds(in.lease_ms());
  order.prompt_len = static_cast<int32_t>(in.prompt_len());
  order.expiry = in.expiry_ms() > 0 ? Duration(std::chrono::milliseconds(in.expiry_ms())) : Duration(kDefaultExpiry);
  return order;
}

absl::Status CheckReserve(const decode::ReserveOrder& order, int32_t max_model_len) {
  const bool sent = order.prompt.empty() || static_cast<int32_t>(order.prompt.size()) == order.prompt_len;
  if (order.prompt_len >= 1 && order.prompt_len < max_model_len && sent) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("a ticket for a prompt of ", order.prompt_len, " tokens (",
                                           order.prompt.size(), " sent), the context length is ", max_model_len));
}

std::shared_ptr<const Grammar> GrammarOf(const v1::ReserveRequest& in) {
  if (!in.has_grammar()) return nullptr;
  return std::make_shared<Grammar>(Grammar{static_cast<GrammarKind>(in.grammar().kind()), in.grammar().text()});
}

v1::ReserveReply EncodeReserved(const decode::ReserveAnswer& from, const DeskFacts& facts, const LandingWays& ways,
                                Duration wait) {
  v1::ReserveReply reply;
  if (!from.status.ok()) {
    const auto wait_ms = static_cast<uint32_t>(Milliseconds(wait));
    *reply.mutable_nack() =
        worker::EncodeError(from.status, absl::IsResourceExhausted(from.status) ? std::max(wait_ms, 100u) : 0, wait_ms);
    return reply;
  }
  v1::Ticket ticket;
  ticket.set_id(from.ticket);
  ticket.set_incarnation(facts.incarnation);
  ticket.set_secret_high(from.secret.high);
  ticket.set_secret_low(from.secret.low);
  reply.set_ticket(ticket.SerializeAsString());
  *reply.mutable_kv_layout() = EncodeLayout(facts.side.layout);
  reply.set_landing_address(ways.address);
  reply.set_transport(ways.kind);
  reply.set_cached_tokens(static_cast<uint32_t>(from.cached_tokens));
  reply.set_expiry_ms(static_cast<uint32_t>(Milliseconds(from.expiry)));
  reply.set_slot_bytes(ways.slot_bytes);
  reply.set_piece_tokens(static_cast<uint32_t>(facts.piece_tokens));
  reply.set_tensor_parallel_size(static_cast<uint32_t>(facts.side.tensor_parallel_size));
  for (int layer : facts.side.stage_layers) reply.add_stage_layers(static_cast<uint32_t>(layer));
  return reply;
}

void FillTicketLoad(const decode::HandoffStats& stats, int64_t reserves_refused, v1::HandoffLoad& load) {
  load.set_tickets(stats.tickets);
  load.set_reserved_tokens(stats.reserved_tokens);
  load.set_granted_slots(stats.granted_slots);
  load.set_quarantined_slots(stats.quarantined_slots);
  load.set_free_slots(stats.free_slots);
  load.set_lanes_failed(stats.lanes_failed);
  load.set_recomputes(stats.recomputes);
  load.set_opens_refused(stats.opens_refused);
  load.set_rings_written_off(stats.memories_written_off);
  load.set_reserves_refused(reserves_refused);
}

}  // namespace baton::decode_worker
