// The cost table of a routing decision, and what was no option in it, with the reason.
#include <algorithm>
#include <utility>

#include "common/status.h"
#include "common/str_cat.h"
#include "router/fleet/fleet.h"
#include "router/json_writer.h"

namespace baton::router {
namespace {

/// Every worker and pair that `options` does not have.
void AddWhatIsOut(const std::vector<LinkView>& views, const std::vector<Candidate>& candidates,
                  const std::vector<RouteOption>& options, uint32_t prompt_tokens, ExplainedRoute& route) {
  for (const LinkView& view : views) {
    if (view.takes_requests()) continue;
    if (view.state == LinkState::kReady) {
      route.out.push_back({view.id, {}, StrCat("it takes no new requests: ", view.shown_detail())});
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
      if (!MakePair(candidates[p], decode)) {
        route.out.push_back({decode.id, candidates[p].id,
                             StrCat("they share no version of the KV protocol (", Text(candidates[p].kv_protocol),
                                    " and ", Text(decode.kv_protocol), ")")});
        continue;
      }
      route.out.push_back({decode.id, candidates[p].id,
                           StrCat("their numerics differ (", candidates[p].numerics, " and ", decode.numerics,
                                  "), and there is a pair whose numerics are equal")});
    }
  }
}

}  // namespace

std::string RouteJson(const std::vector<LinkView>& views, const ExplainedRoute& route, size_t most) {
  std::string out;
  JsonWriter w(out);
  w.BeginObject().Field("prompt_tokens", static_cast<int64_t>(route.prompt_tokens));
  w.Field("policy", route.policy).Key("options").BeginArray();
  const auto name = [&](const WorkerId& id) {
    const auto view = std::ranges::find(views, id.index, [](const LinkView& v) { return v.id.index; });
    return view == views.end() ? std::string("none") : view->name();
  };
  std::vector<const ExplainedCost*> costs;
  for (const ExplainedCost& e : route.costs) costs.push_back(&e);
  if (costs.size() > most) {
    std::ranges::stable_sort(costs, {}, [](const ExplainedCost* e) { return std::pair(!e->chosen, e->cost.total_ms); });
    costs.resize(most);
  }
  for (const ExplainedCost* e : costs) {
    const Cost& c = e->cost;
    w.BeginObject().Field("worker", name(e->worker));
    w.NullIfEmpty("prefill_worker", e->prefill ? name(*e->prefill) : "").Field("chosen", e->chosen);
    w.Field("cached_tokens", e->cached_tokens).Field("queue_ms", c.queue_ms).Field("prefill_ms", c.prefill_ms);
    w.Field("transfer_ms", c.transfer_ms).Field("handoff_ms", c.handoff_ms);
    w.Field("decode_slowdown_ms", c.decode_slowdown_ms)
        .Field("stall_ms", c.stall_ms)
        .Field("pressure_ms", c.pressure_ms)
        .Field("total_ms", c.total_ms);
    w.EndObject();
  }
  w.EndArray().Key("out").BeginArray();
  for (size_t i = 0; i < std::min(route.out.size(), most); ++i) {
    const ExplainedOut& o = route.out[i];
    w.BeginObject().Field("worker", name(o.worker));
    w.NullIfEmpty("prefill_worker", o.prefill ? name(*o.prefill) : "").Field("reason", o.reason).EndObject();
  }
  w.EndArray();
  if (const size_t left = route.costs.size() + route.out.size() - costs.size() - std::min(route.out.size(), most))
    w.Field("left_out", static_cast<int64_t>(left));
  w.EndObject();
  return out;
}

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
