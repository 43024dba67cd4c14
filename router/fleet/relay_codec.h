// Between the router's plain values and the worker protocol's messages.
#pragma once

#include "proto/worker.pb.h"
#include "router/fleet/live_legs.h"
#include "router/fleet/worker_facts.h"
#include "router/generation.h"

namespace baton::router {

/// EncodeAttach without the token ids.
v1::Attach EncodeAttachHead(const Generation& generation, const AttachOrder& order);
v1::Attach EncodeAttach(const Generation& generation, const AttachOrder& order);
RelayNews DecodeNews(v1::RelayEntry&& entry);
v1::ReserveRequest EncodeReserve(const Generation& generation, const LegKey& key, uint32_t expiry_ms);
ReserveResult DecodeReserve(const v1::ReserveReply& reply);
v1::PrefillRequest EncodePrefill(const Generation& generation, const LegKey& key, const TicketGrant& grant,
                                 uint32_t deadline_ms);
v1::Renewal EncodeRenewal(const LegRenewal& leg);
PrefillResult DecodePrefill(const v1::PrefillReply& reply);
WorkerFacts DecodeFacts(const v1::HandshakeReply& reply);
WorkerLoad DecodeLoad(const v1::Load& load);
PositionLogprobs DecodeLogprobs(const v1::PositionLogprobs& in);
void EncodeSampling(const SamplingOptions& in, v1::SamplingParams* out);

}  // namespace baton::router
