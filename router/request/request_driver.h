// RequestDriver: carries one request from its tokens to its end: drives RequestFlow, turns tokens into text, tells a
// sink. Lives on one loop; every method and every sink call happens on its thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "router/admission/admission.h"
#include "router/admission/key_account.h"
#include "router/api_error.h"
#include "router/events/event_stream.h"
#include "router/fleet/workers.h"
#include "router/metrics/router_metrics.h"
#include "router/request/choice_text.h"
#include "router/request/model_text.h"
#include "router/request/request_flow.h"
#include "router/request/retry_budget.h"
#include "router/request/stage_clock.h"
#include "router/request_types.h"
#include "router/telemetry/span_exporter.h"

namespace baton::router {

/// New tokens of a choice. `text` may be empty while a character or a stop string is incomplete.
struct ChoiceDelta {
  uint32_t index = 0;
  std::string text;
  std::string thoughts;  ///< before the text
  std::vector<int32_t> token_ids;
  std::vector<PositionLogprobs> logprobs;  ///< one per token, when asked for
  std::vector<size_t> text_ends;           ///< beside logprobs: how much of the text there is with each token
  int32_t thought_tokens = 0;              ///< so many of the choice's tokens so far, the first ones, are thoughts
  bool may_be_thoughts = false;            ///< the others so far are perhaps the beginning of some
};

struct ChoiceFinish {
  uint32_t index = 0;
  FinishReason reason = FinishReason::kNone;
  std::optional<int32_t> stop_token_id;  ///< when a token of the request's stop_token_ids ended it
  std::optional<std::string> stop_string;
  bool nothing_allowed = false;  ///< grammar, allowed_token_ids, bad_words and min_tokens together left no token
};

struct RequestSummary {
  RequestUsage usage;
  StageTimings timings;
  AnswerTimes times;
  bool mixed_numerics = false;  ///< workers of different numerics took part: a repetition may differ in its bits
};

/// The listener of a request: an HTTP or gRPC answer. OnDone or OnFailed is the last call.
class AnswerSink {
 public:
  virtual ~AnswerSink() = default;
  /// A worker took the request: `generation` stays valid until the last call.
  virtual void OnAdmitted(const TokenizedRequest& generation, int64_t cached_tokens) = 0;
  virtual void OnPromptLogprobs(std::vector<PositionLogprobs> positions) = 0;  ///< of prompt tokens 1…
  virtual void OnDelta(ChoiceDelta&& delta, const RequestUsage& so_far) = 0;
  virtual void OnChoiceEnd(const ChoiceFinish& finish) = 0;
  virtual void OnDone(const RequestSummary& summary) = 0;
  virtual void OnFailed(const ApiError& error) = 0;
  /// Answer bytes that the client has not taken yet.
  virtual size_t UnsentBytes() const = 0;
  /// Those that it has.
  virtual uint64_t TakenBytes() const = 0;
};

/// The services that all requests share; they outlive the requests.
struct CallServices {
  const RouterConfig& config;
  const ModelText& model;
  const Clock& clock;
  Workers& workers;
  Admission& admission;
  RetryBudget& budget;
  RouterMetrics& metrics;
  SpanExporter* traces = nullptr;  ///< null: none are sent
  EventStream* events{};           ///< null: nobody looks
};

class RequestDriver final : public LegEvents, public std::enable_shared_from_this<RequestDriver> {
 public:
  RequestDriver(const CallServices& services, EventLoop& loop, TokenizedRequest generation,
                std::vector<ChoiceText> texts, TimePoint arrived, std::vector<AdmissionHold> tickets,
                std::shared_ptr<AnswerSink> sink);

  /// Who pays for what is answered; null: nobody. Outlives the request. Before Start.
  void ChargeTo(KeyAccount* account) { account_ = account; }
  /// What is seen of the request by those who look; null: nothing. Before Start.
  void LeaveTrail(std::unique_ptr<RequestTrail> trail) { trail_ = std::move(trail); }
  void Start();
  void ClientGone();
  /// The client took all bytes that were written: credit that was withheld goes out.
  void OutputDrained();

  EventLoop& loop() override { return loop_; }
  void OnNews(RelayNews&& news) override;
  void OnWorkerLost(WorkerId worker, const absl::Status& why) override;
  void OnAnswer(const LegKey& key, LegAnswer answer) override;

 private:
  void Pump();
  void Take(const LegKey& key, ReserveResult result);
  void Take(const LegKey& key, PrefillPiece piece);
  void Take(const LegKey& key, PrefillResult result);
  void Do(PickWorker action);
  void ChooseWorker();
  void NotePlacement(const RoutedTo& place, const std::string& why) const;
  void Do(PickPrefill action);
  void ChoosePrefill();
  bool TakeShare();
  void WithShare(void (RequestDriver::*then)());
  void Do(SendTo action);
  void Prepare(WorkerId worker, const ReserveLeg& leg);
  void Prepare(WorkerId worker, const PrefillLeg& leg);
  void Prepare(WorkerId worker, const AttachLeg& leg);
  void TookPart(WorkerId worker);
  void Do(Admitted action);
  void Do(EmitTokens&& action);
  void Do(EmitPromptLogprobs action);
  void Do(EndChoice action);
  void Do(Complete action);
  void Do(Fail action);
  void Do(ArmTimer action);
  void StandStill();
  void GiveWay();
  void TokenTimes(size_t tokens, uint32_t index);
  void Finish(const char* reason, std::string_view error = {});
  void Trace(const char* reason, std::string_view error, Duration took) const;
  void Log(const char* reason, std::string_view error, double seconds) const;
  void EndTrail(const char* reason, std::string_view error);
  RequestUsage Usage() const;

  const CallServices& services_;
  EventLoop& loop_;
  const TokenizedRequest generation_;
  RequestFlow flow_;
  std::vector<FlowAction> actions_;    // being carried out; kept for its memory
  std::vector<ChoiceText> texts_;      // [n]
  std::vector<TimePoint> last_token_;  // [n]
  AnswerTimes times_;
  std::vector<uint32_t> withheld_;  // [n] tokens emitted whose credit waits for the client
  std::vector<AdmissionHold> tickets_;
  std::shared_ptr<AnswerSink> sink_;
  KeyAccount* account_ = nullptr;
  std::unique_ptr<RequestTrail> trail_;  ///< null: it leaves none
  std::unique_ptr<EventLoopTimer> timer_;
  LoadShare load_, prefill_load_;
  const TimePoint arrived_;
  StageClock stages_;
  std::string prompt_logprobs_;
  int64_t cached_tokens_ = 0, predicted_cached_tokens_ = 0;
  RetryBudget::Share share_;                       ///< while something is computed again
  void (RequestDriver::*with_share_)() = nullptr;  ///< the step that waits for a share
  bool waits_for_share_ = false;
  WorkerId decode_worker_;    ///< of the latest ticket
  WorkerId attached_worker_;  ///< the latest
  WorkerId prefill_worker_;   ///< of the latest prefill leg
  std::string numerics_;      ///< of the workers that took part
  bool mixed_numerics_ = false;
  bool placed_ = false;               ///< a worker was chosen: it is too late to be turned away
  std::optional<ApiError> too_late_;  ///< what it is turned away with: --max-predicted-ttft-ms
  const char* reason_ = "stop";       ///< "length" once a choice was cut off
  bool pumping_ = false, finished_ = false;
  bool withholds_ = false;  ///< some withheld_ is not 0
  StillHold still_;         ///< while it withholds
  TimePoint still_since_;
  uint64_t taken_then_ = 0;  ///< bytes, at still_since_
};

}  // namespace baton::router
