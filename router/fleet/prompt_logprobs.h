// The prompt's logprobs, gathered from the pieces that workers send.
#pragma once

#include <string>
#include <vector>

#include "router/request_types.h"

namespace baton::router {

/// `pieces`: the concatenated pieces, a serialized PromptLogprobs. Empty when it does not parse.
std::vector<PositionLogprobs> DecodePromptLogprobs(const std::string& pieces);

}  // namespace baton::router
