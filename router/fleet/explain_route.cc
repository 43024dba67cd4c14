// The cost table of a routing decision, and what was no option in it, with the reason.
#include <algorithm>
#include <utility>

#include "common/status.h"
#include "common/str_cat.h"
#include "router/fleet/fleet.h"

namespace baton::router {
namespace {

/// Every worker and pair that `options` does not have.
void AddWhatIsOut(const std::vector<LinkView>& views, const std::vector<Candidate>& candidates,
                  const std::vector<RouteOption>& options, uint32_t prompt_tokens, ExplainedRoute& route) {
  for (const LinkView& view : views) {
    if (view.state == LinkState::kReady && view.held.empty()) continue;
    if (view.state == LinkState::kReady) {
      route.out.push_back({view.id, {}, StrCat("it takes no new requests: ", view.held)});
      continue;
    }
    route.out.push_back(
        {view.id, {}, StrCat("it is ", LinkStateName(view.state), view.detail.empty() ? "" : ": ", view.detail)});
  }
  const auto has = [&](const RouteOption& wanted) {
    return std::ranges::any_of(
        options, [&](const RouteOption& o) { return o.worker == wanted.worker && o.prefill == wanted.prefill; });
  };
  for (size_t d = 0; d < candidates.size(); ++d) {
    const Candidate& decode = candidates[d];
    if (decode.role != WorkerRole::kDecode) continue;
    uint32_t local = 0;
    for (const RouteOption& o : options) {
      if (o.worker == d && o.prefill) local = std::max(local, o.local_prefill_tokens);
    }
    if (!has({d})) {
      route.out.push_back({decode.id,
                           {},
                           StrCat("it lacks ", int64_t{prompt_tokens} - decode.cached_tokens,
                                  " tokens of the prompt and computes at most ", local,
                                  " itself while a prefill worker is ready (--local-prefill-max-tokens)")});
    }
    for (size_t p = 0; p < candidates.size(); ++p) {
      if (candidates[p].role != WorkerRole::kPrefill || has({d, p})) continue;
      route.out.push_back({decode.id, candidates[p].id,
                           StrCat("their numerics differ (", candidates[p].numerics, " and ", decode.numerics,
                                  "), and there is a pair whose numerics are equal")});
    }
  }
}

}  // namespace

absl::StatusOr<ExplainedRoute> Fleet::Explain(const TokenizedRequest& generation) const {
  if (generation.prompt.empty()) return absl::InvalidArgumentError("the prompt is empty: it has 0 tokens");
  BATON_ASSIGN_OR_RETURN(const Ready ready, ReadyFor(generation, {}));
  const auto tokens = static_cast<uint32_t>(generation.prompt.size());
  const HandoffTerms handoff = HandoffTermsOf(ready);
  const NumericsRule numerics{"", config_.require_identical_failover};
  const RouteQuestion question{ready.candidates, tokens, &handoff, numerics, generation.session};
  const std::vector<RouteOption> options = OptionsOf(question);
  if (options.empty()) return absl::UnavailableError(WhyNoOption(numerics));
  ExplainedRoute route{generation.prompt.size(), config_.route_policy, {}, {}};
  size_t chosen = 0;
  const std::vector<Cost> table = scorer_->Table(question, options, &chosen);
  for (size_t i = 0; i < table.size(); ++i) {
    const RouteOption& option = options[i];
    ExplainedCost& row = route.costs.emplace_back(ExplainedCost{ready.candidates[option.worker].id, {}, table[i]});
    if (option.prefill) row.prefill = ready.candidates[*option.prefill].id;
    row.cached_tokens = ready.candidates[option.prefill.value_or(option.worker)].cached_tokens;
    row.chosen = i == chosen;
  }
  AddWhatIsOut(Views(), ready.candidates, options, tokens, route);
  return route;
}

}  // namespace baton::router
