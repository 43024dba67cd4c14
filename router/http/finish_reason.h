// How an answer's end is called in each API: one decision, four vocabularies. Pure.
#pragma once

#include "router/request/request_driver.h"

namespace baton::router {

/// What every API says of an answer that ended since no token is allowed any more (ChoiceFinish::nothing_allowed).
inline constexpr char kNothingAllowed[] = "nothing_allowed";

/// Whether the model said that it is done: neither its length nor a stop string nor a lack of tokens cut the answer.
bool EndedByModel(const ChoiceFinish& finish);

/// Whether an answer in which a call of a tool is whole ended with its calls: the model or a stop string did it. One
/// that was cut at its length may lack some.
bool EndedInCalls(const ChoiceFinish& finish);

// ---- `calls`: the answer ended with calls of tools, and one of them is whole.
/// OpenAI's "finish_reason".
const char* OpenAiFinishReason(const ChoiceFinish& finish, bool calls);
/// Anthropic's "stop_reason".
const char* MessagesStopReason(const ChoiceFinish& finish, bool calls);
/// Ollama's "done_reason".
const char* OllamaDoneReason(const ChoiceFinish& finish);
/// The "reason" of "incomplete_details" in /v1/responses; null: the answer is complete.
const char* ResponsesCutReason(const ChoiceFinish& finish);

}  // namespace baton::router
