// Every policy that --route-policy names. A new one is a declaration and a row here, and its own file.
#pragma once

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "router/policy/scorer.h"

namespace baton::router {

/// argmin of queue + (1 + lambda) · prefill of what is not cached + transfer of what the decode worker lacks + decode
/// slowdown + KV pressure. Ties go in turn.
std::unique_ptr<Scorer> MakePredictedTime(double lambda);
/// Each worker that decodes in turn, alone where that is an option; else each prefill worker in turn with it.
std::unique_ptr<Scorer> MakeRoundRobin(double lambda = 0);

/// The worker with the least before it (WorkAhead); caches do not count.
std::unique_ptr<Scorer> MakeLeastLoaded(double lambda = 0);
/// Of two drawn workers the one with less before it.
std::unique_ptr<Scorer> MakePowerOfTwo(double lambda = 0);
/// The worker that holds most of the prompt, where that is more than half; else the one with the least before it, which
/// also decides where loads are far apart.
std::unique_ptr<Scorer> MakeLongestPrefix(double lambda = 0);
/// The same worker for a session as long as it takes requests; requests without a session by predicted time.
std::unique_ptr<Scorer> MakeBySession(double lambda);

struct Policy {
  std::string_view name;                           ///< of --route-policy
  std::unique_ptr<Scorer> (*make)(double lambda);  ///< with --route-lambda
  std::string_view help;
};
inline constexpr Policy kPolicies[] = {
    {"predicted-time", MakePredictedTime, "the least predicted cost of time, with what is cached"},
    {"longest-prefix", MakeLongestPrefix, "who holds most of the prompt, then the least loaded"},
    {"session", MakeBySession, "the same worker for a session (prompt_cache_key, X-Session-Id)"},
    {"least-loaded", MakeLeastLoaded, "the least requests and prompts ahead"},
    {"power-of-two", MakePowerOfTwo, "the less loaded of two drawn ones"},
    {"round-robin", MakeRoundRobin, "each in turn"},
};

/// InvalidArgument names what exists.
absl::StatusOr<std::unique_ptr<Scorer>> MakeScorer(std::string_view policy, double lambda);

}  // namespace baton::router
