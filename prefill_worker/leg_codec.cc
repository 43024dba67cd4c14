#include "prefill_worker/leg_codec.h"

#include <algorithm>
#include <utility>

#include "common/planted_bug.h"
#include "common/status.h"
#include "kvtransfer/layout_codec.h"
#include "proto/order_limits.h"
#include "worker/relay/codec.h"

namespace baton::prefill_worker {
namespace {

constexpr size_t kPieceBytes = 64 << 10;

/// A leg's answer: the desk's results as messages.
class LegAnswer final : public JobEvents {
 public:
  explicit LegAnswer(std::shared_ptr<worker::PrefillSink> sink) : sink_(std::move(sink)) {}

  void OnPromptScores(const std::vector<kernels::SampleResult>& scores) override {
    for (std::string& piece : worker::EncodePromptLogprobs(scores, kPieceBytes)) {
      v1::PrefillReply reply;
      reply.set_prompt_logprobs(std::move(piece));
      sink_->Send(std::move(reply));
    }
  }

  void OnEnd(const absl::Status& status, bool no_room, const std::vector<engine::SequenceOutput>& outputs) override {
    if (!status.ok() && !no_room) return sink_->Finish(status);
    v1::PrefillReply reply;
    reply.set_last(true);
    if (no_room) *reply.mutable_no_room() = worker::EncodeError(status, 0, 0);
    for (const engine::SequenceOutput& output : outputs) {
      const v1::RelayEntry entry = worker::EncodeOutput(output);
      v1::FirstToken& first = *reply.add_first();
      first.set_index(entry.index());
      first.set_nothing_allowed(entry.nothing_allowed());
      if (entry.token_ids_size() > 0) first.set_token_id(entry.token_ids(0));
      if (entry.logprobs_size() > 0) *first.mutable_logprobs() = entry.logprobs(0);
      first.set_finish_reason(entry.finish_reason());
      if (entry.has_stop_token_id()) first.set_stop_token_id(entry.stop_token_id());
      reply.mutable_usage()->set_cached_tokens(output.cached_tokens);
      reply.mutable_timings()->set_queue_prefill_ms(Milliseconds(output.timings.queued));
      reply.mutable_timings()->set_prefill_ms(Milliseconds(output.timings.prefill));
    }
    sink_->Send(std::move(reply));
    sink_->Finish(absl::OkStatus());
  }

 private:
  const std::shared_ptr<worker::PrefillSink> sink_;
};

v1::Attach AsAttach(const v1::PrefillRequest& in) {
  v1::Attach out;
  *out.mutable_key() = in.key();
  out.set_prompt_token_ids(in.prompt_token_ids());
  out.set_prompt_len(in.prompt_len());
  out.set_output_len_so_far(in.output_len_so_far());
  *out.mutable_sampling() = in.sampling();
  *out.mutable_eos_token_ids() = in.eos_token_ids();
  out.set_deadline_ms(in.deadline_ms());
  out.set_lease_ms(in.lease_ms());
  out.set_priority(in.priority());
  out.set_cache_salt(in.cache_salt());
  out.set_canary(in.canary());
  return out;
}

}  // namespace

std::shared_ptr<JobEvents> MakeLegAnswer(std::shared_ptr<worker::PrefillSink> sink) {
  return std::make_shared<LegAnswer>(std::move(sink));
}

prefill::JobKey KeyOf(const v1::RequestKey& in, const std::string& router) {
  const bool apart = !PlantedBug("prefill legs are not told apart by their routers");
  return {in.request_id(), in.attempt(), in.epoch(), apart ? router : ""};
}

absl::StatusOr<JobOrder> DecodeOrder(const v1::PrefillRequest& in, const worker::AttachLimits& limits, TimePoint now,
                                     const std::string& router) {
  JobOrder order{.key = KeyOf(in.key(), router)};
  BATON_ASSIGN_OR_RETURN(order.request, worker::DecodeAttach(AsAttach(in), limits, 0, now));
  const v1::ReserveReply& reserved = in.ticket();
  v1::Ticket ticket;
  if (!ticket.ParseFromString(reserved.ticket()) || ticket.id() == 0 || in.key().epoch() == 0) {
    return absl::InvalidArgumentError(
        StrCat("a ticket of ", reserved.ticket().size(), " bytes that is none, epoch ", in.key().epoch()));
  }
  BATON_RETURN_IF_ERROR(CheckAtMost("expiry_ms of the ticket", reserved.expiry_ms(), kMostExpiryMs));
  order.ticket = ticket.id();
  order.secret = {ticket.secret_high(), ticket.secret_low()};
  order.landing_address = reserved.landing_address();
  BATON_ASSIGN_OR_RETURN(order.target.layout, DecodeLayout(reserved.kv_layout()));
  order.target.tensor_parallel_size = static_cast<int>(reserved.tensor_parallel_size());
  order.target.stage_layers.assign(reserved.stage_layers().begin(), reserved.stage_layers().end());
  BATON_RETURN_IF_ERROR(CheckSide(order.target));
  order.cached_tokens = static_cast<int32_t>(reserved.cached_tokens());
  order.piece_tokens = static_cast<int>(reserved.piece_tokens());
  order.slot_bytes = reserved.slot_bytes();
  // The reservation's figure is of its own time, however late this leg is; the request's deadline is of now.
  order.expiry = std::chrono::milliseconds(in.deadline_ms() > 0 ? std::min(in.deadline_ms(), reserved.expiry_ms())
                                                                : reserved.expiry_ms());
  order.lease = std::chrono::milliseconds(in.lease_ms());
  return order;
}

void FillLegLoad(const prefill::PushStats& stats, int32_t computing, v1::HandoffLoad& load) {
  load.set_jobs(std::max(computing, stats.jobs));
  load.set_source_digest_mismatches(stats.source_mismatches);
  load.set_no_room(stats.no_room);
  load.set_resent_segments(stats.resent_segments);
  load.set_unclean_closes(stats.unclean_closes);
}

}  // namespace baton::prefill_worker
