// What clients must get: what one worker alone answers, to the bit, and its prefix where the request fails.
#pragma once

#include <map>
#include <string>

#include "router/request_types.h"
#include "sim/client.h"
#include "sim/scenario.h"

namespace baton::sim {

/// What one worker that nothing disturbs answers. `odd`: of other numerics.
struct AloneAnswer {
  std::map<uint32_t, ChoiceView> choices;
  std::string prompt_scores;
};
AloneAnswer AnswerAlone(const ClusterScenario& scenario, const router::TokenizedRequest& generation, bool odd);

/// Its answer was ended for those of other API keys.
bool GaveWay(const ClientView& client);

/// What is wrong with what a client got; empty: nothing. `deaths`: of processes, in all.
std::string CheckClient(const ClusterScenario& scenario, const router::TokenizedRequest& generation,
                        const ClientView& client, int deaths);

}  // namespace baton::sim
