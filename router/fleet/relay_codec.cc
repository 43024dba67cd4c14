#include "router/fleet/relay_codec.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/kv_digest.h"
#include "common/str_cat.h"
#include "proto/order_limits.h"
#include "proto/protocol_codec.h"
#include "proto/sampling_codec.h"
#include "proto/stage_codec.h"

namespace baton::router {
namespace {

FinishReason DecodeFinish(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP: return FinishReason::kStop;
    case v1::FINISH_REASON_LENGTH: return FinishReason::kLength;
    case v1::FINISH_REASON_ABORT: return FinishReason::kAbort;
    case v1::FINISH_REASON_ERROR: return FinishReason::kError;
    default: return FinishReason::kNone;
  }
}

void AppendIds(const std::vector<int32_t>& ids, std::string* out) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
  out->append(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t));
}

WorkerRole DecodeRole(v1::WorkerRole role) {
  switch (role) {
    case v1::WORKER_ROLE_PREFILL: return WorkerRole::kPrefill;
    case v1::WORKER_ROLE_DECODE: return WorkerRole::kDecode;
    case v1::WORKER_ROLE_BOTH: return WorkerRole::kBoth;
    default: return WorkerRole::kUnknown;
  }
}

// Two layouts mean the same KV when these texts are equal. Block sizes and element types may differ: the handoff
// converts them, and the numerics id tells of it.
std::string LayoutText(const v1::KvLayout& layout) {
  std::string text;
  for (const v1::KvGroup& g : layout.groups()) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", g.layers_size(), " layers, kind ", static_cast<int>(g.kind()),
                    g.window_tokens() ? StrCat(", window ", g.window_tokens()) : "");
    for (const v1::KvPlane& p : g.planes()) {
      absl::StrAppend(&text, ", plane ", static_cast<int>(p.name()), " ", p.heads(), "x", p.dim());
    }
  }
  return text;
}

int64_t BytesPerToken(const v1::KvLayout& layout) {
  constexpr double kMost = int64_t{1} << 40;
  double bytes = 0;
  for (const v1::KvGroup& group : layout.groups()) {
    double of_layer = 0;
    for (const v1::KvPlane& plane : group.planes()) {
      const int element = plane.dtype() == "float32" ? 4 : plane.dtype().starts_with("fp8") ? 1 : 2;
      of_layer += double{1} * plane.heads() * plane.dim() * element;
    }
    bytes += of_layer * group.layers_size();
  }
  return static_cast<int64_t>(std::min(bytes, kMost));
}

/// Of a worker, which is measured and not negative; what is none is 0: not known.
double MeasuredFigure(double said) {
  constexpr double kMost = 1e12;
  return std::isfinite(said) && said > 0 ? std::min(said, kMost) : 0;
}

/// Until a client or router may ask again, at most an hour.
uint32_t BoundedWait(uint32_t ms) { return std::min(ms, kMostExpiryMs); }

void EncodeKey(const LegKey& key, v1::RequestKey* out) {
  out->set_request_id(key.leg_id);
  out->set_attempt(key.attempt);
  out->set_epoch(key.epoch);
}

void EncodeCandidates(const PositionLogprobs& from, v1::PositionLogprobs& to) {
  for (const TokenLogprob& t : from.top) {
    v1::TokenLogprob& one = *to.add_top();
    one.set_token_id(t.token_id);
    one.set_logprob(t.logprob);
    one.set_rank(t.rank);
  }
}

// A prefill worker finds a beam search's first candidates: one answer, and no room for beams.
void HalveSearch(v1::SamplingParams& sampling) {
  if (!sampling.has_best_of()) sampling.set_best_of(sampling.n());
  sampling.set_n(1);
  sampling.set_max_tokens(std::max(1, sampling.min_tokens()));
}

}  // namespace

void EncodeSampling(const SamplingOptions& in, v1::SamplingParams* out) { EncodeSamplingFields(in, *out); }

v1::Attach EncodeAttachHead(const TokenizedRequest& generation, const AttachLeg& leg) {
  v1::Attach out;
  out.mutable_key()->set_request_id(leg.leg_id);
  out.mutable_key()->set_attempt(leg.attempt);
  out.set_attach_gen(leg.attach_gen);
  out.set_prompt_len(static_cast<uint32_t>(generation.prompt.size()));
  if (leg.output) out.set_output_len_so_far(static_cast<uint32_t>(leg.output->size()));
  EncodeSampling(generation.sampling, out.mutable_sampling());
  if (leg.output) out.mutable_sampling()->clear_prompt_logprobs();  // sent by the first leg already
  out.mutable_eos_token_ids()->Add(generation.eos_token_ids.begin(), generation.eos_token_ids.end());
  out.set_credit_tokens(leg.credit_tokens);
  out.set_deadline_ms(leg.deadline_ms);
  out.set_lease_ms(kLegLeaseMs);
  out.set_priority(generation.priority);
  out.set_cache_salt(generation.cache_salt);
  out.set_canary(generation.canary);
  out.mutable_choices()->Add(leg.choices.begin(), leg.choices.end());
  out.set_position(leg.position);
  if (leg.grant) {
    out.set_ticket(leg.grant->ticket);
    out.mutable_key()->set_epoch(leg.epoch);
  }
  for (const FirstToken& first : leg.first) {
    v1::FirstToken& f = *out.add_first();
    f.set_index(first.index);
    f.set_token_id(first.token_id);
    if (first.finish != FinishReason::kNone)
      f.set_finish_reason(v1::FINISH_REASON_STOP);  // which one is the router's alone
    if (IsBeamSearch(generation.sampling) && first.logprobs) EncodeCandidates(*first.logprobs, *f.mutable_logprobs());
  }
  return out;
}

v1::Attach EncodeAttach(const TokenizedRequest& generation, const AttachLeg& leg) {
  v1::Attach out = EncodeAttachHead(generation, leg);
  AppendIds(generation.prompt, out.mutable_prompt_token_ids());
  if (leg.output) AppendIds(*leg.output, out.mutable_prompt_token_ids());
  return out;
}

v1::ReserveRequest EncodeReserve(const TokenizedRequest& generation, const ReserveLeg& leg) {
  v1::ReserveRequest out;
  EncodeKey(leg.key, out.mutable_key());
  out.set_prompt_len(static_cast<uint32_t>(generation.prompt.size()));
  const SamplingOptions& s = generation.sampling;
  out.set_choices(static_cast<uint32_t>(IsBeamSearch(s) ? s.best_of.value_or(s.n) : s.n));
  out.set_expiry_ms(leg.expiry_ms);
  out.set_lease_ms(kLegLeaseMs);
  out.set_cache_salt(generation.cache_salt);
  if (!generation.sampling.prompt_logprobs) AppendIds(generation.prompt, out.mutable_prompt_token_ids());
  if (s.grammar) {
    out.mutable_grammar()->set_kind(static_cast<v1::Grammar::Kind>(s.grammar->kind));
    out.mutable_grammar()->set_text(s.grammar->text);
  }
  return out;
}

ReserveResult DecodeReserve(const v1::ReserveReply& reply) {
  ReserveResult out;
  if (reply.has_nack()) {
    out.status = absl::Status(static_cast<absl::StatusCode>(reply.nack().code()), reply.nack().message());
    if (out.status.ok()) out.status = absl::InternalError("a refusal without a code");
    out.retry_after_ms = BoundedWait(reply.nack().retry_after_ms());
    out.queue_ms = BoundedWait(reply.nack().queue_ms());
    return out;
  }
  out.grant = {reply.SerializeAsString(), reply.ticket(), reply.cached_tokens()};
  return out;
}

v1::PrefillRequest EncodePrefill(const TokenizedRequest& generation, const PrefillLeg& leg) {
  v1::PrefillRequest out;
  EncodeKey(leg.key, out.mutable_key());
  out.mutable_ticket()->ParseFromString(leg.grant->wire);
  AppendIds(generation.prompt, out.mutable_prompt_token_ids());
  out.set_prompt_len(static_cast<uint32_t>(generation.prompt.size()));
  EncodeSampling(generation.sampling, out.mutable_sampling());
  if (IsBeamSearch(generation.sampling)) HalveSearch(*out.mutable_sampling());
  out.mutable_eos_token_ids()->Add(generation.eos_token_ids.begin(), generation.eos_token_ids.end());
  out.set_deadline_ms(leg.deadline_ms);
  out.set_lease_ms(kLegLeaseMs);
  out.set_priority(generation.priority);
  out.set_cache_salt(generation.cache_salt);
  out.set_canary(generation.canary);
  return out;
}

v1::CancelRequest EncodeCancel(const CancelLeg& leg) {
  v1::CancelRequest out;
  EncodeKey(leg.key, out.mutable_key());
  out.set_asks_again(leg.asks_again);
  return out;
}

v1::RelayCancel EncodeCancel(const CancelAttached& order) {
  v1::RelayCancel out;
  out.set_request_id(order.leg_id);
  out.set_attach_gen(order.attach_gen);
  if (order.index) out.set_index(*order.index);
  return out;
}

v1::Credit EncodeCredit(const GiveCredit& order) {
  v1::Credit out;
  out.set_request_id(order.leg_id);
  out.set_attach_gen(order.attach_gen);
  out.set_index(order.index);
  out.set_tokens(order.tokens);
  return out;
}

v1::Renewal EncodeRenewal(const LegRenewal& leg) {
  v1::Renewal out;
  EncodeKey(leg.key, out.mutable_key());
  out.set_attach_gen(leg.attach_gen);
  return out;
}

PrefillResult DecodePrefill(const v1::PrefillReply& reply) {
  PrefillResult out;
  if (reply.has_no_room()) {
    out.no_room = true;
    out.status = absl::ResourceExhaustedError(reply.no_room().message());
  }
  for (const v1::FirstToken& f : reply.first()) {
    FirstToken& first = out.first.emplace_back(FirstToken{f.index(), f.token_id()});
    if (f.has_logprobs()) first.logprobs = DecodeLogprobs(f.logprobs());
    first.finish = DecodeFinish(f.finish_reason());
    if (f.has_stop_token_id()) first.stop_token_id = f.stop_token_id();
    first.nothing_allowed = f.nothing_allowed();
  }
  out.cached_tokens = static_cast<uint32_t>(std::max(0, reply.usage().cached_tokens()));
  out.timings.queue_prefill_ms = MeasuredFigure(reply.timings().queue_prefill_ms());
  out.timings.prefill_ms = MeasuredFigure(reply.timings().prefill_ms());
  return out;
}

PositionLogprobs DecodeLogprobs(const v1::PositionLogprobs& in) {
  auto one = [](const v1::TokenLogprob& t) { return TokenLogprob{t.token_id(), t.logprob(), t.rank()}; };
  PositionLogprobs out{one(in.chosen()), {}};
  out.top.reserve(in.top_size());
  for (const v1::TokenLogprob& t : in.top()) out.top.push_back(one(t));
  return out;
}

RelayNews DecodeNews(v1::RelayEntry&& entry) {
  RelayNews out;
  out.attach_gen = entry.attach_gen();
  out.index = entry.index();
  out.position = entry.position();
  out.token_ids.assign(entry.token_ids().begin(), entry.token_ids().end());
  out.logprobs.reserve(entry.logprobs_size());
  for (const v1::PositionLogprobs& p : entry.logprobs()) out.logprobs.push_back(DecodeLogprobs(p));
  out.finish = DecodeFinish(entry.finish_reason());
  if (entry.has_stop_token_id()) out.stop_token_id = entry.stop_token_id();
  out.nothing_allowed = entry.nothing_allowed();
  if (entry.has_error()) {
    out.error = absl::Status(static_cast<absl::StatusCode>(entry.error().code()), entry.error().message());
    out.retry_after_ms = BoundedWait(entry.error().retry_after_ms());
    out.queue_ms = BoundedWait(entry.error().queue_ms());
    if (out.finish == FinishReason::kNone) out.finish = FinishReason::kError;
  }
  if (entry.has_accepted()) {
    out.accepted = true;
    out.cached_tokens = entry.accepted().cached_tokens();
  }
  if (!entry.prompt_logprobs().empty()) out.prompt_logprobs = std::move(*entry.mutable_prompt_logprobs());
  out.prompt_logprobs_last = entry.prompt_logprobs_last();
  if (entry.has_timings()) {
    out.timings = DecodeStages<StageTimings>(entry.timings());
    out.timings->router_ms = out.timings->lost_ms = out.timings->reserve_ms = out.timings->network_ms =
        0;  // ours to say
  }
  return out;
}

WorkerFacts DecodeFacts(const v1::HandshakeReply& r) {
  WorkerFacts f;
  f.worker_id = r.worker_id();
  f.incarnation = r.incarnation();
  f.version = r.worker_version();
  f.role = DecodeRole(r.role());
  f.model_digest = r.model_digest();
  f.kv_layout = LayoutText(r.kv_layout());
  f.kv_digest = r.kv_digest().empty() ? kKvDigestUnnamed : r.kv_digest();
  f.tokenizer_digest = r.tokenizer_digest();
  f.numerics_id = r.numerics().id();
  f.kv_protocol = r.has_kv_protocol() ? DecodeVersions<ProtocolVersions>(r.kv_protocol()) : kKvProtocolUnnamed;
  f.model_name = r.model_name();
  f.max_model_len = r.max_model_len();
  f.vocab_size = r.vocab_size();
  f.eos_token_ids.assign(r.eos_token_ids().begin(), r.eos_token_ids().end());
  f.kv_blocks = r.kv_blocks();
  if (r.kv_layout().groups_size() > 0)
    f.tokens_per_block = static_cast<int32_t>(r.kv_layout().groups(0).tokens_per_block());
  f.kv_bytes_per_token = BytesPerToken(r.kv_layout());
  f.max_num_seqs = r.max_num_seqs();
  f.prefill_tokens_per_s = MeasuredFigure(r.prefill_tokens_per_s());
  f.decode_step_ms = MeasuredFigure(r.decode_step_ms());
  f.hash_key = r.hash_key();
  f.landing_address = r.landing_address();
  return f;
}

GrammarLoad DecodeGrammarLoad(const v1::GrammarLoad& g) {
  return {.following = g.following(),
          .known = g.known(),
          .compiled = g.compiled(),
          .refused = g.refused(),
          .masks = g.masks(),
          .masks_late = g.masks_late(),
          .masks_slow = g.masks_slow(),
          .compile_seconds = g.compile_seconds(),
          .mask_seconds = g.mask_seconds(),
          .wait_seconds = g.wait_seconds()};
}

WorkerLoad DecodeLoad(const v1::Load& l) {
  WorkerLoad out;
  if (l.has_grammars()) out.grammars = DecodeGrammarLoad(l.grammars());
  out.running = std::max<decltype(out.running)>(0, l.running());
  out.waiting = std::max<decltype(out.waiting)>(0, l.waiting());
  out.queued_tokens = std::max<decltype(out.queued_tokens)>(0, l.queued_tokens());
  out.kv_blocks_used = std::max<decltype(out.kv_blocks_used)>(0, l.kv_blocks_used());
  out.kv_blocks_total = std::max<decltype(out.kv_blocks_total)>(0, l.kv_blocks_total());
  out.kv_blocks_shared = l.kv_blocks_shared();
  out.steps = l.steps();
  out.last_step_ms = MeasuredFigure(l.last_step_ms());
  out.predicted_step_ms = MeasuredFigure(l.predicted_step_ms());
  out.prefill_tokens_per_s = MeasuredFigure(l.prefill_tokens_per_s());
  out.decode_step_ms = MeasuredFigure(l.decode_step_ms());
  out.prefix_queries_tokens = l.prefix_queries_tokens();
  out.prefix_hits_tokens = l.prefix_hits_tokens();
  out.preemptions = l.preemptions();
  out.prompt_tokens = l.prompt_tokens();
  out.generation_tokens = l.generation_tokens();
  out.leaked_kv_blocks = l.leaked_kv_blocks();
  out.calls_refused = l.calls_refused();
  out.kv_empty_tokens = l.kv_empty_tokens();
  out.unread = std::max(0, l.unread());
  const auto buckets = std::min(out.step_sizes.steps.size(), static_cast<size_t>(l.steps_by_tokens_size()));
  std::copy_n(l.steps_by_tokens().begin(), buckets, out.step_sizes.steps.begin());
  out.step_sizes.tokens = l.step_tokens();
  const v1::HandoffLoad& h = l.handoff();
  out.handoff = {h.transport(),
                 h.tickets(),
                 h.jobs(),
                 h.granted_slots(),
                 h.quarantined_slots(),
                 h.free_slots(),
                 h.reserved_tokens(),
                 h.bytes(),
                 h.slots(),
                 h.seconds(),
                 h.wire_digest_mismatches(),
                 h.source_digest_mismatches(),
                 h.lanes_failed(),
                 h.recomputes(),
                 h.opens_refused(),
                 h.reserves_refused(),
                 h.no_room(),
                 h.resent_segments(),
                 h.unclean_closes(),
                 h.self_tests_failed(),
                 h.peers_lost(),
                 h.unreadable_slots(),
                 h.rings_written_off(),
                 h.slots_waiting()};
  out.handoff.connections_refused = h.connections_refused();
  out.handoff.rank_bytes.assign(h.rank_bytes().begin(), h.rank_bytes().end());
  std::vector<PeerPath> peers;
  double sum = 0;
  for (const v1::HandoffLoad::PeerPath& p : h.peers()) {
    peers.push_back({p.incarnation(), p.transport(), p.path(), MeasuredFigure(p.gigabytes_per_second())});
    sum += peers.back().gigabytes_per_second;
  }
  if (!peers.empty()) out.handoff.mean_peer_gigabytes_per_second = sum / static_cast<double>(peers.size());
  out.handoff.peers = std::make_shared<const std::vector<PeerPath>>(std::move(peers));
  return out;
}

}  // namespace baton::router
