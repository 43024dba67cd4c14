#include "router/fleet/relay_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "router/fleet/attach_codec.h"
#include "router/fleet/prompt_logprobs.h"
#include "router/fleet/watch_codec.h"
#include "router/grpc/generate_codec.h"
#include "tests/sampling_wire.h"

namespace baton::router {
namespace {

TokenizedRequest Example() {
  TokenizedRequest g;
  g.request_id = "r";
  g.prompt = {5, 6, 1 << 20, 8};
  g.sampling.temperature = 0.0F;
  g.sampling.max_tokens = 30;
  g.sampling.seed = 0xfedcba9876543210ull;
  g.sampling.n = 3;
  g.sampling.prompt_logprobs = 2;
  g.sampling.logit_bias = {{7, -1.5F}};
  g.sampling.stop_token_ids = {9};
  g.eos_token_ids = {2, 3};
  g.priority = -4;
  g.cache_salt = "tenant";
  return g;
}

std::vector<int32_t> Ids(const std::string& bytes) {
  std::vector<int32_t> ids(bytes.size() / 4);
  if (!ids.empty()) std::memcpy(ids.data(), bytes.data(), bytes.size());
  return ids;
}

TEST(RelayCodec, AFirstAttachCarriesThePromptAndEverySetField) {
  AttachLeg order;
  order.leg_id = "r";
  order.attempt = 1;
  order.attach_gen = 1;
  order.position = 4;
  order.credit_tokens = 512;
  order.deadline_ms = 1500;
  const v1::Attach a = EncodeAttach(Example(), order);
  EXPECT_EQ(a.key().request_id(), "r");
  EXPECT_EQ(a.key().attempt(), 1u);
  EXPECT_EQ(Ids(a.prompt_token_ids()), (std::vector<int32_t>{5, 6, 1 << 20, 8}));
  EXPECT_EQ(a.prompt_len(), 4u);
  EXPECT_EQ(a.output_len_so_far(), 0u);
  EXPECT_EQ(a.position(), 4u);
  EXPECT_EQ(a.credit_tokens(), 512u);
  EXPECT_EQ(a.deadline_ms(), 1500u);
  EXPECT_EQ(a.priority(), -4);
  EXPECT_EQ(a.cache_salt(), "tenant");
  EXPECT_TRUE(a.choices().empty());
  EXPECT_TRUE(a.sampling().has_temperature()) << "0 is a value";
  EXPECT_FALSE(a.sampling().has_top_p()) << "absent stays absent";
  EXPECT_EQ(a.sampling().seed(), 0xfedcba9876543210ull);
  EXPECT_EQ(a.sampling().prompt_logprobs(), 2);
  EXPECT_EQ(a.eos_token_ids_size(), 2);
}

TEST(RelayCodec, ABeamSearchIsHalvedForAPrefillWorkerAndItsCandidatesGoOn) {
  TokenizedRequest g = Example();
  g.sampling.use_beam_search = true;
  g.sampling.n = 2;
  g.sampling.best_of = 4;
  g.sampling.min_tokens = 3;
  const TicketGrant grant{v1::ReserveReply().SerializeAsString(), "ticket", 0};
  const v1::PrefillRequest prefill = EncodePrefill(g, {.grant = &grant});
  EXPECT_EQ(prefill.sampling().n(), 1) << "one set of candidates";
  EXPECT_EQ(prefill.sampling().best_of(), 4);
  EXPECT_EQ(prefill.sampling().max_tokens(), 3) << "what it needs no room for";
  EXPECT_EQ(EncodeReserve(g, {}).choices(), 4u);
  AttachLeg order;
  order.grant = &grant;
  order.first.push_back(
      {0, 7, PositionLogprobs{{7, -0.5F, 1}, {{7, -0.5F, 1}, {9, -2.25F, 2}}}, FinishReason::kNone, {}});
  const v1::Attach attach = EncodeAttach(g, order);
  EXPECT_EQ(attach.sampling().n(), 2);
  ASSERT_EQ(attach.first(0).logprobs().top_size(), 2);
  EXPECT_EQ(attach.first(0).logprobs().top(1).token_id(), 9);
  EXPECT_EQ(attach.first(0).logprobs().top(1).logprob(), -2.25F);
  g.sampling.use_beam_search = false;
  EXPECT_FALSE(EncodeAttach(g, order).first(0).has_logprobs()) << "the client has those already";
}

TEST(RelayCodec, AMigrationCarriesTheOutputAndAsksForNoPromptLogprobsAgain) {
  const std::vector<int32_t> output = {40, 41};
  AttachLeg order;
  order.leg_id = "r#2";
  order.choices = {2};
  order.output = &output;
  order.position = 6;
  const v1::Attach a = EncodeAttach(Example(), order);
  EXPECT_EQ(Ids(a.prompt_token_ids()), (std::vector<int32_t>{5, 6, 1 << 20, 8, 40, 41}));
  EXPECT_EQ(a.prompt_len(), 4u);
  EXPECT_EQ(a.output_len_so_far(), 2u);
  EXPECT_EQ(a.choices(0), 2u);
  EXPECT_FALSE(a.sampling().has_prompt_logprobs());
}

TEST(RelayCodec, AnAttachEntrysBytesAreTheMessage) {
  TokenizedRequest large = Example(), empty = Example();
  large.prompt = std::vector<int32_t>(100'000, -7);
  empty.prompt = PromptIds();
  const std::vector<int32_t> output = {40, 41};
  const TicketGrant grant{"wire", "ticket", 0};
  const std::vector<FirstToken> first = {{.index = 1, .token_id = 7}};
  for (const TokenizedRequest& g : {Example(), large, empty}) {
    for (const bool migrates : {false, true}) {
      AttachLeg order;
      order.leg_id = "r", order.attempt = 3, order.position = 6, order.credit_tokens = 512;
      if (migrates) order.output = &output, order.choices = {2}, order.grant = &grant, order.first = first;
      const std::string bytes(AttachEntry(g, order, false));
      EXPECT_EQ(std::string(AttachEntry(g, order, true)), bytes) << "none of these has many ids of 16 bits";
      v1::RelayUp up, expected;
      ASSERT_TRUE(up.ParseFromString(bytes + bytes)) << "parts are joined by standing one behind the other";
      for (int i = 0; i < 2; ++i) *expected.add_attach() = EncodeAttach(g, order);
      EXPECT_EQ(up.SerializeAsString(), expected.SerializeAsString());
    }
  }
}

TEST(RelayCodec, EverySamplingFieldIsCarried) { ExpectEverySamplingFieldIsCarried<SamplingOptions>(); }

TEST(RelayCodec, SamplingSurvivesTheRoundTrip) {
  SamplingOptions in = Example().sampling;
  in.top_k = 0;
  in.top_p = 0.5F;
  in.min_p = 0.25F;
  in.repetition_penalty = 1.5F;
  in.presence_penalty = -1;
  in.frequency_penalty = 2;
  in.allowed_token_ids = {1, 2, 3};
  in.ignore_eos = false;
  in.min_tokens = 0;
  in.logprobs = 0;
  v1::SamplingParams wire;
  EncodeSampling(in, &wire);
  v1::SamplingParams parsed;
  ASSERT_TRUE(parsed.ParseFromString(wire.SerializeAsString()));
  const SamplingOptions out = DecodeSampling(parsed);
  EXPECT_EQ(out.temperature, in.temperature);
  EXPECT_EQ(out.top_k, in.top_k);
  EXPECT_EQ(out.top_p, in.top_p);
  EXPECT_EQ(out.min_p, in.min_p);
  EXPECT_EQ(out.repetition_penalty, in.repetition_penalty);
  EXPECT_EQ(out.presence_penalty, in.presence_penalty);
  EXPECT_EQ(out.frequency_penalty, in.frequency_penalty);
  EXPECT_EQ(out.allowed_token_ids, in.allowed_token_ids);
  EXPECT_EQ(out.stop_token_ids, in.stop_token_ids);
  EXPECT_EQ(out.logit_bias, in.logit_bias);
  EXPECT_EQ(out.ignore_eos, in.ignore_eos);
  EXPECT_EQ(out.min_tokens, in.min_tokens);
  EXPECT_EQ(out.max_tokens, in.max_tokens);
  EXPECT_EQ(out.seed, in.seed);
  EXPECT_EQ(out.n, in.n);
  EXPECT_EQ(out.logprobs, in.logprobs);
  EXPECT_EQ(out.prompt_logprobs, in.prompt_logprobs);
}

TEST(RelayCodec, NewsKeepsTokensLogprobsFinishAndTimings) {
  v1::RelayEntry e;
  e.set_request_id("r");
  e.set_attach_gen(3);
  e.set_index(1);
  e.set_position(10);
  e.add_token_ids(4);
  e.add_token_ids(2);
  for (int i = 0; i < 2; ++i) {
    e.add_logprobs()->mutable_chosen()->set_logprob(-0.25F);
    e.mutable_logprobs(i)->add_top()->set_token_id(77);
  }
  e.set_finish_reason(v1::FINISH_REASON_STOP);
  e.set_stop_token_id(2);
  e.mutable_timings()->set_decode_ms(7);
  const RelayNews n = DecodeNews(std::move(e));
  EXPECT_EQ(n.attach_gen, 3u);
  EXPECT_EQ(n.index, 1u);
  EXPECT_EQ(n.position, 10u);
  EXPECT_EQ(n.token_ids, (std::vector<int32_t>{4, 2}));
  ASSERT_EQ(n.logprobs.size(), 2u);
  EXPECT_EQ(n.logprobs[1].top[0].token_id, 77);
  EXPECT_EQ(n.finish, FinishReason::kStop);
  EXPECT_EQ(n.stop_token_id, 2);
  ASSERT_TRUE(n.timings);
  EXPECT_EQ(n.timings->decode_ms, 7);
  EXPECT_FALSE(n.accepted);
}

TEST(RelayCodec, AnErrorEndsTheChoiceEvenWithoutAReason) {
  v1::RelayEntry e;
  e.mutable_error()->set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
  e.mutable_error()->set_message("full");
  e.mutable_error()->set_retry_after_ms(9);
  const RelayNews n = DecodeNews(std::move(e));
  EXPECT_EQ(n.finish, FinishReason::kError);
  EXPECT_EQ(n.error.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(n.error.message(), "full");
  EXPECT_EQ(n.retry_after_ms, 9u);
}

TEST(RelayCodec, NamesOfAWorkerHaveALength) {
  v1::HandshakeReply reply;
  reply.set_worker_id(std::string(1024, 'n'));
  reply.set_incarnation(std::string(1024, 'i'));
  reply.set_landing_address(std::string(64 << 10, 'l'));
  EXPECT_TRUE(DecodeHandshake(absl::OkStatus(), reply).status.ok());
  EXPECT_EQ(DecodeHandshake(absl::OkStatus(), reply).facts.worker_id.size(), 1024u);
  const std::string longer(1025, 'n');
  v1::HandshakeReply id = reply, life = reply, version = reply, model = reply;
  id.set_worker_id(longer), life.set_incarnation(longer), version.set_worker_version(longer),
      model.set_model_name(longer);
  for (const v1::HandshakeReply* more : {&id, &life, &version, &model}) {
    const HandshakeAnswer answer = DecodeHandshake(absl::OkStatus(), *more);
    EXPECT_TRUE(absl::IsInvalidArgument(answer.status)) << answer.status;
    EXPECT_NE(answer.status.message().find("has 1025 bytes, at most 1024"), std::string::npos) << answer.status;
  }
  reply.mutable_loading()->set_phase(std::string(3 << 20, 'p'));
  EXPECT_EQ(DecodeHandshake(absl::OkStatus(), reply).phase, "");
}

TEST(RelayCodec, WhatAWorkerSaysOfItsStateHasALength) {
  v1::WorkerEvent event;
  event.mutable_state()->set_state(v1::WorkerState::STATE_DRAINING);
  event.mutable_state()->set_detail(std::string(1024, 'd'));
  EXPECT_EQ(DecodeEvent(event).detail, std::string(1024, 'd'));
  event.mutable_state()->set_detail(std::string(3 << 20, 'd'));
  const WatchEvent decoded = DecodeEvent(event);
  EXPECT_LT(decoded.detail.size(), 1100u);
  EXPECT_NE(decoded.detail.find("3145728"), std::string::npos) << decoded.detail.substr(1000);
  EXPECT_EQ(decoded.state, LinkState::kDraining) << "what it does counts all the same";
}

TEST(RelayCodec, EachFigureOfAHandoffHasItsPlace) {
  v1::Load l;
  v1::HandoffLoad& h = *l.mutable_handoff();
  h.set_tickets(1), h.set_jobs(2), h.set_granted_slots(3), h.set_quarantined_slots(4), h.set_free_slots(5),
      h.set_reserved_tokens(6), h.set_bytes(7), h.set_slots(8), h.set_wire_digest_mismatches(9),
      h.set_source_digest_mismatches(10), h.set_lanes_failed(11), h.set_recomputes(12), h.set_opens_refused(13),
      h.set_reserves_refused(14), h.set_no_room(15), h.set_resent_segments(16), h.set_unclean_closes(17),
      h.set_self_tests_failed(18), h.set_peers_lost(19), h.set_unreadable_slots(20), h.set_rings_written_off(21),
      h.set_slots_waiting(22), h.set_connections_refused(23);
  h.set_seconds(0.5);
  const HandoffLoad out = DecodeLoad(l).handoff;
  const std::vector<int64_t> told = {out.tickets,
                                     out.jobs,
                                     out.granted_slots,
                                     out.quarantined_slots,
                                     out.free_slots,
                                     out.reserved_tokens,
                                     out.bytes,
                                     out.slots,
                                     out.wire_digest_mismatches,
                                     out.source_digest_mismatches,
                                     out.lanes_failed,
                                     out.recomputes,
                                     out.opens_refused,
                                     out.reserves_refused,
                                     out.no_room,
                                     out.resent_segments,
                                     out.unclean_closes,
                                     out.self_tests_failed,
                                     out.peers_lost,
                                     out.unreadable_slots,
                                     out.rings_written_off,
                                     out.slots_waiting,
                                     out.connections_refused};
  for (size_t i = 0; i < told.size(); ++i) EXPECT_EQ(told[i], static_cast<int64_t>(i) + 1);
  EXPECT_EQ(out.seconds, 0.5);
}

TEST(RelayCodec, EachFigureOfALoadHasItsPlace) {
  v1::Load l;
  l.set_running(1), l.set_waiting(2), l.set_unread(3), l.set_queued_tokens(4), l.set_kv_blocks_used(5),
      l.set_kv_blocks_total(6), l.set_kv_blocks_shared(7), l.set_kv_empty_tokens(8), l.set_steps(9),
      l.set_last_step_ms(10), l.set_predicted_step_ms(11), l.set_prefill_tokens_per_s(12), l.set_decode_step_ms(13),
      l.set_prefix_queries_tokens(14), l.set_prefix_hits_tokens(15), l.set_preemptions(16), l.set_prompt_tokens(17),
      l.set_generation_tokens(18), l.set_leaked_kv_blocks(19), l.set_calls_refused(20), l.set_step_tokens(21),
      l.add_steps_by_tokens(22);
  const WorkerLoad out = DecodeLoad(l);
  const std::vector<double> told = {static_cast<double>(out.running),
                                    static_cast<double>(out.waiting),
                                    static_cast<double>(out.unread),
                                    static_cast<double>(out.queued_tokens),
                                    static_cast<double>(out.kv_blocks_used),
                                    static_cast<double>(out.kv_blocks_total),
                                    static_cast<double>(out.kv_blocks_shared),
                                    static_cast<double>(out.kv_empty_tokens),
                                    static_cast<double>(out.steps),
                                    out.last_step_ms,
                                    out.predicted_step_ms,
                                    out.prefill_tokens_per_s,
                                    out.decode_step_ms,
                                    static_cast<double>(out.prefix_queries_tokens),
                                    static_cast<double>(out.prefix_hits_tokens),
                                    static_cast<double>(out.preemptions),
                                    static_cast<double>(out.prompt_tokens),
                                    static_cast<double>(out.generation_tokens),
                                    static_cast<double>(out.leaked_kv_blocks),
                                    static_cast<double>(out.calls_refused),
                                    static_cast<double>(out.step_sizes.tokens),
                                    static_cast<double>(out.step_sizes.steps[0])};
  for (size_t i = 0; i < told.size(); ++i) EXPECT_EQ(told[i], static_cast<double>(i) + 1);
}

// Costs are made of them, and compared: one NaN is neither less nor more than any.
TEST(RelayCodec, FiguresOfAWorkerAreNumbers) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
  for (const double said : {kNaN, kInf, -kInf, -1.0}) {
    v1::Load l;
    l.set_prefill_tokens_per_s(said), l.set_decode_step_ms(said), l.set_predicted_step_ms(said),
        l.set_last_step_ms(said);
    l.mutable_handoff()->add_peers()->set_gigabytes_per_second(said);
    const WorkerLoad load = DecodeLoad(l);
    EXPECT_EQ(load.prefill_tokens_per_s, 0) << said;
    EXPECT_EQ(load.decode_step_ms, 0) << said;
    EXPECT_EQ(load.predicted_step_ms, 0) << said;
    EXPECT_EQ(load.last_step_ms, 0) << said;
    EXPECT_EQ(load.handoff.mean_peer_gigabytes_per_second, 0) << said;
    v1::RelayEntry entry;
    entry.mutable_timings()->set_decode_ms(said);
    EXPECT_TRUE(std::isfinite(DecodeNews(std::move(entry)).timings->decode_ms)) << said;
    v1::HandshakeReply r;
    r.set_prefill_tokens_per_s(said), r.set_decode_step_ms(said);
    EXPECT_EQ(DecodeFacts(r).prefill_tokens_per_s, 0) << said;
    EXPECT_EQ(DecodeFacts(r).decode_step_ms, 0) << said;
  }
  v1::Load l;
  l.set_running(-1), l.set_unread(-1), l.set_queued_tokens(-1), l.set_kv_blocks_used(-1),
      l.set_prefill_tokens_per_s(1e300);
  EXPECT_EQ(DecodeLoad(l).running, 0);
  EXPECT_EQ(DecodeLoad(l).unread, 0);
  EXPECT_EQ(DecodeLoad(l).queued_tokens, 0);
  EXPECT_EQ(DecodeLoad(l).kv_blocks_used, 0);
  EXPECT_EQ(DecodeLoad(l).prefill_tokens_per_s, 1e12);
}

TEST(RelayCodec, BytesOfATokenDoNotOverflow) {
  v1::HandshakeReply r;
  v1::KvGroup& group = *r.mutable_kv_layout()->add_groups();
  for (uint32_t layer = 0; layer < 100; ++layer) group.add_layers(layer);
  v1::KvPlane& plane = *group.add_planes();
  plane.set_heads(4294967295u), plane.set_dim(4294967295u), plane.set_dtype("float32");
  EXPECT_EQ(DecodeFacts(r).kv_bytes_per_token, int64_t{1} << 40);
  plane.set_heads(8), plane.set_dim(128);
  EXPECT_EQ(DecodeFacts(r).kv_bytes_per_token, 100 * 8 * 128 * 4);
}

TEST(RelayCodec, AWorkerAsksNobodyToWaitForWeeks) {
  v1::ReserveReply reply;
  reply.mutable_nack()->set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
  reply.mutable_nack()->set_retry_after_ms(4294967295u), reply.mutable_nack()->set_queue_ms(4294967295u);
  EXPECT_EQ(DecodeReserve(reply).retry_after_ms, 3600000u);
  EXPECT_EQ(DecodeReserve(reply).queue_ms, 3600000u);
  v1::RelayEntry entry;
  *entry.mutable_error() = reply.nack();
  EXPECT_EQ(DecodeNews(std::move(entry)).retry_after_ms, 3600000u);
}

TEST(RelayCodec, PromptLogprobsAreJoinedFromPieces) {
  v1::PromptLogprobs all;
  for (int i = 0; i < 50; ++i) all.add_positions()->mutable_chosen()->set_token_id(i);
  const std::string bytes = all.SerializeAsString();
  const std::string joined = bytes.substr(0, 33) + bytes.substr(33);
  const auto positions = DecodePromptLogprobs(joined);
  ASSERT_EQ(positions.size(), 50u);
  EXPECT_EQ(positions[49].chosen.token_id, 49);
  EXPECT_TRUE(DecodePromptLogprobs(bytes.substr(1, 20)).empty());
}

TEST(RelayCodec, LayoutsThatDifferHaveDifferentTexts) {
  v1::HandshakeReply reply;
  v1::KvGroup* group = reply.mutable_kv_layout()->add_groups();
  group->set_tokens_per_block(16);
  group->add_layers(0);
  v1::KvPlane* plane = group->add_planes();
  plane->set_dtype("bfloat16");
  plane->set_heads(8);
  plane->set_dim(64);
  const std::string before = DecodeFacts(reply).kv_layout;
  plane->set_heads(4);
  EXPECT_NE(DecodeFacts(reply).kv_layout, before);
  plane->set_heads(8);
  EXPECT_EQ(DecodeFacts(reply).kv_layout, before);
  plane->set_dtype("float32"), group->set_tokens_per_block(64);
  EXPECT_EQ(DecodeFacts(reply).kv_layout, before) << "the handoff converts those";
  group->set_window_tokens(512);
  EXPECT_NE(DecodeFacts(reply).kv_layout, before);
}

TEST(GenerateCodec, ARequestWithoutOrWithAnEmptyPromptIsRefused) {
  v1::GenerateRequest request;
  EXPECT_TRUE(std::holds_alternative<ApiError>(DecodeGenerate(request)));
  request.mutable_chat();
  EXPECT_TRUE(std::holds_alternative<ApiError>(DecodeGenerate(request)));
  request.mutable_chat()->add_messages()->set_content("x");
  EXPECT_TRUE(std::holds_alternative<ApiError>(DecodeGenerate(request))) << "no role";
  request.mutable_chat()->mutable_messages(0)->set_role("user");
  const auto decoded = DecodeGenerate(request);
  ASSERT_TRUE(std::holds_alternative<RequestInput>(decoded));
  EXPECT_EQ(std::get<ChatPrompt>(std::get<RequestInput>(decoded).prompt).messages_json,
            R"([{"role":"user","content":"x"}])");
  EXPECT_TRUE(std::get<RequestInput>(decoded).skip_special_tokens) << "the default is true";
  EXPECT_FALSE(std::get<RequestInput>(decoded).truncate_prompt_tokens) << "nothing is cut that nobody asked for";
}

}  // namespace
}  // namespace baton::router
