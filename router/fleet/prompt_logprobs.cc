#include "router/fleet/prompt_logprobs.h"

#include "router/fleet/relay_codec.h"

namespace baton::router {

std::vector<PositionLogprobs> DecodePromptLogprobs(const std::string& pieces) {
  v1::PromptLogprobs in;
  std::vector<PositionLogprobs> out;
  if (!in.ParseFromString(pieces)) return out;
  for (const v1::PositionLogprobs& p : in.positions()) out.push_back(DecodeLogprobs(p));
  return out;
}

}  // namespace baton::router
