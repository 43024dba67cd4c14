#include "router/http/finish_reason.h"

namespace baton::router {

bool EndedByModel(const ChoiceFinish& finish) {
  return finish.reason == FinishReason::kStop && !finish.stop_string && !finish.nothing_allowed;
}

bool EndedInCalls(const ChoiceFinish& finish) {
  return finish.reason == FinishReason::kStop && !finish.nothing_allowed;
}

const char* OpenAiFinishReason(const ChoiceFinish& finish, bool calls) {
  if (calls) return "tool_calls";
  switch (finish.reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kAbort: return "abort";
    default: return "error";
  }
}

const char* MessagesStopReason(const ChoiceFinish& finish, bool calls) {
  if (calls) return "tool_use";
  if (finish.reason == FinishReason::kLength) return "max_tokens";
  return finish.stop_string ? "stop_sequence" : "end_turn";
}

const char* OllamaDoneReason(const ChoiceFinish& finish) {
  if (finish.reason == FinishReason::kLength) return "length";
  return finish.nothing_allowed ? kNothingAllowed : "stop";
}

const char* ResponsesCutReason(const ChoiceFinish& finish) {
  if (finish.nothing_allowed) return kNothingAllowed;
  return finish.reason == FinishReason::kLength ? "max_output_tokens" : nullptr;
}

}  // namespace baton::router
