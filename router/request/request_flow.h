// RequestFlow: the router's side of one request's life, from the first choice of a worker to the last token. Sans-IO:
// events in, actions out; no clock, no thread, no socket. The driver (request_driver.h) carries the actions out in
// order.
//
//   kPicking ──WorkerChosen──► kAttached ──first token──► kStreaming ──all choices ended──► kDone
//      ▲  └──NoWorker──► kWaiting or kDone      │                │
//      └──────── worker lost, refused, out of step ◄─────────────┘  (Fail when nothing is left to try)
//
// With a pair (prefill, decode): kPicking ──PairChosen──► kReserving ──Reserved──► kPrefilling ──PrefillEnded──► the
// first tokens are the client's, kStreaming. A prefill leg that fails goes to another prefill worker at the next epoch;
// when there is none the decode worker computes the prompt itself. Short prompts it computes at once (kAttached). A
// decode worker without room for the KV is a queue: another is asked, else the same again until a deadline. After the
// first token a lost decode worker is a migration as above: another one continues without a prefill leg.
//
// A leg is one Attach. A request starts with one leg for all its choices. When its worker is lost after tokens were
// sent, choices have different texts, so each unfinished one is attached by itself: prompt + its own tokens, at its
// next position. attach_gen counts up over all legs; news of any other attach_gen is dropped. The next position is the
// only one accepted: what came already is dropped, and where something is missing the choice is attached once more to
// the same worker, with the same ticket, from there on.
//
// A beam search (FlowLimits::whole) has no leg for one choice: until all choices have ended their tokens are held here,
// and a prefill leg draws one set of candidates for all of them.
//
// A worker answers ABORTED when it ended a leg that this router did not renew: the router stood still. The request
// starts its next leg as after a loss, but nobody is to blame: it costs no attempt.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "router/fleet/leg_order.h"
#include "router/request_types.h"

namespace baton::router {

struct FlowLimits {
  int32_t max_attempts =
      3;  ///< of the whole request, the first included; one that ends though no worker failed is none
  uint32_t credit_tokens = 512;     ///< per choice
  Duration first_token_timeout{0};  ///< 0 = none, here and below
  Duration idle_token_timeout{0};   ///< between two tokens of a leg
  Duration total_timeout{0};
  Duration failover_wait{0};  ///< how long to wait for a worker that was lost to come back
  /// A beam search: nothing of the answer is the client's before all of it is there. What a lost worker sent is
  /// dropped, and the search begins again elsewhere.
  bool whole = false;
};

/// Choose a worker and answer with WorkerChosen, PairChosen or NoWorker. `again`: what was computed before is computed
/// once more, which takes a share of the retry budget (retry_budget.h).
struct PickWorker {
  bool again = false;
};
/// Choose another prefill worker, and answer with PrefillChosen. It takes a share of the retry budget.
struct PickPrefill {};
/// Send an order. A ReserveLeg is answered with Reserved, a PrefillLeg with PrefillPiece and PrefillEnded, an AttachLeg
/// with News; each of them with WorkerLost when the worker is lost.
struct SendTo {
  WorkerId worker;
  LegOrder order;
};
/// A worker took the request.
struct Admitted {
  uint32_t cached_tokens = 0;
};
struct EmitTokens {
  uint32_t index = 0;
  std::vector<int32_t> token_ids;
  std::vector<PositionLogprobs> logprobs;
  bool last_is_stop_token = false;  ///< the last one ended the choice: it counts, but is not text
  WorkerId drawn_by{};
};
struct EmitPromptLogprobs {
  std::string piece;
  bool last = false;
};
struct EndChoice {
  uint32_t index = 0;
  FinishReason reason = FinishReason::kNone;
  std::optional<int32_t> stop_token_id;
  bool nothing_allowed = false;  ///< with kStop: no token could be drawn
};
/// Every choice has ended.
struct Complete {};
/// The request failed; nothing follows.
struct Fail {
  absl::Status status;
  uint32_t retry_after_ms = 0;
  uint32_t queue_ms = 0;
  bool worker_lost = false;  ///< a worker took the request and did not bring it to its end
};
/// Call Timer(now) at this time; replaces the one before.
struct ArmTimer {
  TimePoint at;
};
using FlowAction = std::variant<PickWorker, PickPrefill, SendTo, Admitted, EmitTokens, EmitPromptLogprobs, EndChoice,
                                Complete, Fail, ArmTimer>;

/// One per request; belongs to one thread. Events append to `actions()`, which the driver takes.
class RequestFlow {
 public:
  enum class State : uint8_t { kPicking, kAttached, kStreaming, kWaiting, kDone, kReserving, kPrefilling };

  RequestFlow(std::string request_id, uint32_t prompt_len, uint32_t choices, const FlowLimits& limits, TimePoint now);

  // ---- events
  void Start();
  void WorkerChosen(WorkerId worker, TimePoint now);
  /// `local_prefill_tokens`: uncached prompt tokens that the decode worker computes itself.
  void PairChosen(WorkerId prefill, WorkerId decode, uint32_t local_prefill_tokens, TimePoint now);
  void Reserved(const LegKey& key, const ReserveResult& result, TimePoint now);
  void PrefillPiece(const LegKey& key, std::string prompt_logprobs, TimePoint now);
  /// `scores_wanted`: the pieces that came are all of the prompt's logprobs.
  void PrefillEnded(const LegKey& key, PrefillResult result, bool scores_wanted, TimePoint now);
  /// nullopt: there is none.
  void PrefillChosen(std::optional<WorkerId> prefill, TimePoint now);
  /// `status`: why none can take it. `soon`: that may change: it is asked again for as long as FlowLimits says. So it
  /// is when the last worker said that it is unavailable; if that one is all there is, it may be chosen again after 1
  /// s.
  void NoWorker(const absl::Status& status, uint32_t retry_after_ms, bool soon, TimePoint now);
  void News(RelayNews news, TimePoint now);
  /// CANCELLED: not the worker was lost, this router stops.
  void WorkerLost(WorkerId worker, const absl::Status& why, TimePoint now);
  void Timer(TimePoint now);
  void ClientGone();
  /// The router itself ended a choice (a stop string).
  void ChoiceStopped(uint32_t index);
  /// The client took `tokens` of this choice; makes room for more.
  void Consumed(uint32_t index, uint32_t tokens);

  std::vector<FlowAction> TakeActions();
  /// The same into `out`, whose memory is used again. False: there is none.
  bool TakeActions(std::vector<FlowAction>& out);

  /// An answer with this key is of the attempt, and of the prefill leg, of now.
  bool IsCurrent(const LegKey& key) const;

  State state() const { return state_; }
  WorkerId worker() const { return worker_; }
  uint32_t attempts() const { return attempt_; }
  uint32_t migrations() const { return migrations_; }
  /// Legs before the first token that a request, or its prompt alone, was sent to after the one before them had failed.
  /// What waits for room has not failed.
  uint32_t retries() const { return retries_; }
  /// Workers that refused or lost this request.
  const std::vector<WorkerId>& excluded() const { return excluded_; }
  /// The last worker was lost or said that it cannot serve: it may be seen to leave any moment, and come back.
  bool last_was_unavailable() const;
  /// The last worker had no room for one more request, and said so at once.
  bool last_was_full() const;
  /// Prefill workers that failed this request.
  const std::vector<WorkerId>& excluded_prefill() const { return excluded_prefill_; }
  /// Choices have output: another worker continues it.
  bool started_output() const;
  /// Choices have had legs of their own.
  bool separate_legs() const;
  /// Tokens of a choice so far.
  const std::vector<int32_t>& output(uint32_t index) const { return choices_[index].output; }
  /// Tokens a new worker would have to compute.
  uint32_t tokens_to_prefill() const;
  std::string LegId(std::optional<uint32_t> only_choice) const;

 private:
  struct Choice {
    std::vector<int32_t> output;
    bool ended = false;
    uint32_t consumed = 0;  // since the last GiveCredit
    uint32_t credit = 0;    // tokens that the worker may still send
    uint64_t attach_gen = 0;
    bool own_leg = false;
  };

  void Send(WorkerId worker, LegOrder order);
  AttachLeg AttachLegOf(std::optional<uint32_t> only_choice, uint64_t attach_gen, TimePoint now) const;
  void SendAttach(AttachLeg leg);
  uint32_t RemainingMs(TimePoint now) const;
  bool IdleCounts() const;
  void NextAttempt();
  void Attach(TimePoint now);
  void AttachTicket(std::vector<FirstToken> first, TimePoint now);
  void SendPrefill(TimePoint now);
  bool OfPrefillLeg(const LegKey& key) const;
  void TakeFirst(FirstToken first);
  void AttachAgain(uint32_t index, const std::string& why, TimePoint now);
  void EndPrefillLeg();
  bool WaitsForClient() const;
  void Refused(const RelayNews& news, TimePoint now);
  /// Another worker may do better.
  static bool WorthRetrying(absl::StatusCode code);
  void TryElsewhere(const Fail& failure, TimePoint now);
  void TryWhereRoomIs(const Fail& failure, TimePoint now);
  void TryLapsed(const absl::Status& why, TimePoint now);
  void LeaveWorker(const Fail& failure, TimePoint now, bool asks_again = false);
  bool OthersOnSharedLeg(uint32_t index) const;
  void LeaveSharedLeg(uint32_t index);
  void CancelLegs(bool asks_again = false);
  void End(const EndChoice& end);
  void FailWith(Fail failure);
  void Arm(TimePoint now);

  const std::string request_id_;
  const uint32_t prompt_len_;
  const FlowLimits limits_;
  State state_ = State::kPicking;
  std::vector<Choice> choices_;
  std::vector<FlowAction> actions_;
  std::vector<FlowAction> held_;  // of limits_.whole: the answer so far
  std::vector<WorkerId> excluded_;
  std::vector<WorkerId> excluded_prefill_;
  std::vector<WorkerId> full_;  // of excluded_: without room for the KV when they were asked last
  bool awaits_room_ = false;    // the last worker was full
  int lapses_ = 0;              // legs that nobody has renewed, as workers say, since the last token
  uint32_t free_attempts_ = 0;  // of attempt_: nobody failed (no room, or this router stood still)
  WorkerId worker_;
  WorkerId prefill_;
  uint32_t local_prefill_tokens_ = 0;  // of the pair
  bool ticket_ = false;                // this attempt asked for one
  TicketGrant grant_;                  // the latest
  bool leg_has_tokens_ = false;        // the latest leg has sent some
  uint32_t epoch_ = 0;                 // of the latest prefill leg of this attempt
  uint32_t attempt_ = 0;
  uint32_t migrations_ = 0;
  uint32_t retries_ = 0;
  int32_t attached_again_ = 0;
  bool shared_leg_left_ = false;  // a choice of the shared leg was cancelled by itself
  uint64_t last_attach_gen_ = 0;
  Fail last_failure_;  // why the last worker did not do it
  bool failed_before_ = false;
  TimePoint failed_at_;
  bool admitted_ = false;
  bool prompt_logprobs_done_ = false;
  TimePoint last_news_;
  std::optional<TimePoint> first_deadline_, total_deadline_, wait_until_;
};

}  // namespace baton::router
