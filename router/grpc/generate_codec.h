// Between the TokenizedRequest service's messages and the router's plain values.
#pragma once

#include <variant>

#include "proto/generation.pb.h"
#include "router/request/request_driver.h"
#include "router/request/request_input.h"

namespace baton::router {

/// Everything but model facts and deadline. Every failure is the client's.
std::variant<RequestInput, ApiError> DecodeGenerate(const v1::GenerateRequest& request);
SamplingOptions DecodeSampling(const v1::SamplingParams& in);

void EncodeLogprobs(const PositionLogprobs& in, v1::PositionLogprobs* out);
void EncodeFinish(const ChoiceFinish& finish, v1::GenerateChunk* out);
void EncodeUsage(const RequestUsage& in, v1::Usage* out);
void EncodeTimings(const StageTimings& in, v1::StageTimings* out);

}  // namespace baton::router
