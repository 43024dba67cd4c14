// Between the router's plain values and the worker protocol's messages.
#pragma once

#include "proto/worker.pb.h"
#include "router/fleet/leg_order.h"
#include "router/fleet/worker_facts.h"
#include "router/request_types.h"

namespace baton::router {

/// EncodeAttach without the token ids.
v1::Attach EncodeAttachHead(const TokenizedRequest& generation, const AttachLeg& leg);
v1::Attach EncodeAttach(const TokenizedRequest& generation, const AttachLeg& leg);
RelayNews DecodeNews(v1::RelayEntry&& entry);
v1::ReserveRequest EncodeReserve(const TokenizedRequest& generation, const ReserveLeg& leg);
ReserveResult DecodeReserve(const v1::ReserveReply& reply);
v1::PrefillRequest EncodePrefill(const TokenizedRequest& generation, const PrefillLeg& leg);
v1::CancelRequest EncodeCancel(const CancelLeg& leg);
v1::RelayCancel EncodeCancel(const CancelAttached& order);
v1::Credit EncodeCredit(const GiveCredit& order);
v1::Renewal EncodeRenewal(const LegRenewal& leg);
PrefillResult DecodePrefill(const v1::PrefillReply& reply);
WorkerFacts DecodeFacts(const v1::HandshakeReply& reply);
WorkerLoad DecodeLoad(const v1::Load& load);
PositionLogprobs DecodeLogprobs(const v1::PositionLogprobs& in);
void EncodeSampling(const SamplingOptions& in, v1::SamplingParams* out);

}  // namespace baton::router
