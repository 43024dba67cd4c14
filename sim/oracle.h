// What clients must get: what one worker alone answers, to the bit, and its prefix where the request fails.
#pragma once

#include <map>
#include <string>

#include "router/generation.h"
#include "sim/client.h"
#include "sim/scenario.h"

namespace baton::sim {

/// What one worker that nothing disturbs answers. `odd`: of other numerics.
struct AloneAnswer {
  std::map<uint32_t, ChoiceView> choices;
  std::string prompt_scores;
};
AloneAnswer AnswerAlone(const ClusterScenario& scenario, const router::Generation& generation, bool odd);

/// What is wrong with what a client got; empty: nothing.
std::string CheckClient(const ClusterScenario& scenario, const router::Generation& generation,
                        const ClientView& client);

}  // namespace baton::sim
