// A request that gives way to others. What is told of a request at its end: spans, the last event of its trail, a line
// of the log.
#include <chrono>
#include <optional>
#include <utility>

#include "common/str_cat.h"
#include "router/request/request_driver.h"
#include "router/request/request_input.h"
#include "router/request/request_log.h"

namespace baton::router {

void RequestDriver::StandStill() {
  still_since_ = services_.clock.Now();
  taken_then_ = sink_->TakenBytes();
  still_ = services_.admission.StandsStill(account_, still_since_, [weak = weak_from_this(), &loop = loop_] {
    loop.Post([weak] {
      if (auto self = weak.lock()) self->GiveWay();
    });
  });
}

// Another key's request needs its place. A client that has read meanwhile, if slowly, keeps it.
void RequestDriver::GiveWay() {
  if (finished_ || !withholds_) return;
  const double seconds = Seconds(services_.clock.Now() - still_since_);
  const auto taken = static_cast<double>(sink_->TakenBytes() - taken_then_);
  if (taken >= seconds * Admission::kReadBytesPerSecond) return StandStill();
  const StillHold until_all_has_ended = std::move(still_);  // of a list of prompts the others end with it
  if (account_ != nullptr) account_->EndedUnread();
  flow_.ClientGone();
  Pump();
  const ApiError error =
      Overloaded(StrCat("this answer was not read for ", static_cast<int64_t>(seconds),
                        " s, and its API key holds more than its share while others ask"),
                 {services_.admission.running(), services_.admission.PredictedWaitMs(), "--max-running-requests"});
  const auto sink = sink_;
  Finish("error", error.message);
  sink->OnFailed(error);
}

void RequestDriver::Trace(const char* reason, std::string_view error, Duration took) const {
  const RequestUsage usage = Usage();
  const SamplingOptions& sampling = generation_.sampling;
  const auto since_arrival = [this](std::optional<TimePoint> at) {
    return at ? std::optional(*at - arrived_) : std::nullopt;
  };
  RequestTrace trace;
  trace.request_id = generation_.request_id;
  trace.model = PublicModelName(services_.config, services_.model);
  trace.finish_reason = reason;
  trace.error = error;
  trace.traceparent = generation_.traceparent;
  if (prefill_worker_.index >= 0) trace.prefill_worker = services_.workers.NameOf(prefill_worker_);
  if (attached_worker_.index >= 0) trace.decode_worker = services_.workers.NameOf(attached_worker_);
  trace.prompt_tokens = usage.prompt_tokens;
  trace.completion_tokens = usage.completion_tokens;
  trace.cached_tokens = usage.cached_tokens;
  trace.thought_tokens = usage.thought_tokens.value_or(0);
  trace.max_tokens = sampling.max_tokens.value_or(0);
  trace.n = static_cast<int64_t>(texts_.size());
  trace.attempts = flow_.attempts();
  trace.temperature = sampling.temperature.value_or(1);
  trace.top_p = sampling.top_p.value_or(1);
  trace.mixed_numerics = mixed_numerics_;
  trace.stages = stages_.Stages();
  trace.ended_unix_ns = std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
  trace.took = took;
  trace.first_order = since_arrival(stages_.first_order());
  trace.first_token = since_arrival(stages_.first_token());
  trace.attached = since_arrival(stages_.attached());
  services_.traces->Add(std::move(trace));
}

void RequestDriver::EndTrail(const char* reason, std::string_view error) {
  const RequestUsage usage = Usage();
  trail_->End({reason, std::string(error), usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens,
               stages_.Stages(), times_, flow_.attempts(), flow_.migrations()});
  trail_.reset();
}

void RequestDriver::Log(const char* reason, std::string_view error, double seconds) const {
  const RequestUsage usage = Usage();
  RequestLine line{generation_.request_id, reason, std::string(error), usage};
  line.seconds = seconds;
  line.first_token_s = stages_.first_token() ? Seconds(*stages_.first_token() - arrived_) : 0;
  line.seed = generation_.sampling.seed.value_or(0);
  line.worker = services_.workers.NameOf(flow_.worker().index < 0 ? attached_worker_ : flow_.worker());
  if (prefill_worker_.index >= 0) line.prefill_worker = services_.workers.NameOf(prefill_worker_);
  line.attempts = static_cast<int64_t>(flow_.attempts());
  line.stages = stages_.Stages();
  LogRequest(line);
}

}  // namespace baton::router
