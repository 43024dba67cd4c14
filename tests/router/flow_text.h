// RequestFlow's actions as text, for tests.
#pragma once

#include <string>
#include <variant>

#include "common/str_cat.h"
#include "router/request/request_flow.h"

namespace baton::router {

inline constexpr TimePoint kStart{std::chrono::seconds(100)};

inline std::string DescribeOrder(WorkerId worker, const LegOrder& order) {
  struct Text {
    const std::string at;
    std::string operator()(const ReserveLeg& a) const {
      return StrCat("reserve", at, " ", a.key.leg_id, "/", a.key.attempt);
    }
    std::string operator()(const PrefillLeg& a) const {
      return StrCat("prefill", at, " ", a.key.attempt, " e", a.key.epoch);
    }
    std::string operator()(const AttachLeg& a) const {
      std::string first;
      for (const FirstToken& f : a.first)
        absl::StrAppend(&first, f.finish == FinishReason::kNone ? " +" : " -", f.token_id);
      return StrCat("attach", at, " g", a.attach_gen, " @", a.position,
                    a.choices.empty() ? "" : StrCat(" c", a.choices[0]),
                    a.grant != nullptr ? StrCat(" ticket e", a.epoch, first) : "");
    }
    std::string operator()(const CancelLeg& a) const {
      return StrCat("cancel leg", at, " ", a.key.attempt, " e", a.key.epoch, a.asks_again ? " for now" : "");
    }
    std::string operator()(const CancelAttached& a) const {
      return StrCat("cancel", at, " ", a.leg_id, " g", a.attach_gen, a.index ? StrCat(" c", *a.index) : "");
    }
    std::string operator()(const GiveCredit& a) const {
      return StrCat("credit ", a.leg_id, " c", a.index, " +", a.tokens);
    }
  };
  return std::visit(Text{StrCat(" w", worker.index)}, order);
}

inline std::string Describe(const FlowAction& action) {
  struct Text {
    std::string operator()(const PickWorker& a) const { return a.again ? "pick again" : "pick"; }
    std::string operator()(const PickPrefill&) const { return "pick prefill"; }
    std::string operator()(const SendTo& a) const { return DescribeOrder(a.worker, a.order); }
    std::string operator()(const Admitted& a) const { return StrCat("admitted ", a.cached_tokens); }
    std::string operator()(const EmitTokens& a) const {
      std::string out = StrCat("emit c", a.index);
      for (int32_t id : a.token_ids) absl::StrAppend(&out, " ", id);
      return out + (a.last_is_stop_token ? " stop" : "");
    }
    std::string operator()(const EmitPromptLogprobs& a) const {
      return StrCat("prompt logprobs ", a.piece, a.last ? " last" : "");
    }
    std::string operator()(const EndChoice& a) const {
      return StrCat("end c", a.index, " ", static_cast<int>(a.reason), a.nothing_allowed ? " nothing allowed" : "");
    }
    std::string operator()(const Complete&) const { return "complete"; }
    std::string operator()(const Fail& a) const {
      return StrCat("fail ", absl::StatusCodeToString(a.status.code()), a.worker_lost ? " lost" : "");
    }
    std::string operator()(const ArmTimer& a) const { return StrCat("arm +", Milliseconds(a.at - kStart)); }
  };
  return std::visit(Text{}, action);
}

/// The actions as text, timers left out unless asked for.
inline std::string Taken(RequestFlow& flow, bool timers = false) {
  std::string out;
  for (const FlowAction& a : flow.TakeActions()) {
    if (!timers && std::holds_alternative<ArmTimer>(a)) continue;
    absl::StrAppend(&out, out.empty() ? "" : ", ", Describe(a));
  }
  return out;
}

}  // namespace baton::router
