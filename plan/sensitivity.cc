#include "plan/sensitivity.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "common/status.h"

namespace baton::plan {
namespace {

struct OtherLoad {
  const char* what;
  Load load;
};

std::vector<OtherLoad> LoadsLike(const Load& load) {
  const auto with = [&](auto change) {
    Load other = load;
    change(other);
    other.prefix = std::min(other.prefix, other.isl - 1);
    return other;
  };
  const auto hits = [&](int64_t percent) { return with([&](Load& l) { l.prefix = l.isl * percent / 100; }); };
  return {{"as planned", load},
          {"prompts half as long", with([](Load& l) { l.isl = std::max<int64_t>(1, l.isl / 2), l.prefix /= 2; })},
          {"prompts twice as long", with([](Load& l) { l.isl *= 2, l.prefix *= 2; })},
          {"answers half as long", with([](Load& l) { l.osl = std::max<int64_t>(1, l.osl / 2); })},
          {"answers twice as long", with([](Load& l) { l.osl *= 2; })},
          {"nothing of a prompt cached", hits(0)},
          {"50 % of a prompt cached", hits(50)},
          {"90 % of a prompt cached", hits(90)}};
}

// One worker less of a kind, where that leaves a cluster.
std::vector<Variation> WithOneLess(const Proposal& layout, const Roofline& roofline, const Load& load) {
  std::vector<Variation> out;
  for (const auto& [member, what] : {std::pair{&Proposal::both, "one worker less"},
                                     {&Proposal::prefill, "one prefill worker less"},
                                     {&Proposal::decode, "one decode worker less"}}) {
    if (layout.*member == 0) continue;
    Proposal less = layout;
    --(less.*member);
    Variation variation{what, Rated(less, roofline, load)};
    if (less.*member == 0) {
      variation.outcome = less;
      variation.outcome.requests_per_s = 0;
      variation.outcome.why_not = "nobody is left for its work";
    }
    out.push_back(std::move(variation));
  }
  return out;
}

}  // namespace

absl::StatusOr<std::vector<Variation>> Vary(const worker::WorkerConfig& config, const MemoryPlan& memory,
                                            const Machine& machine, const Load& load, const Proposal& layout) {
  std::vector<Variation> out;
  for (const OtherLoad& other : LoadsLike(load)) {
    const absl::StatusOr<Roofline> roofline = PlanRoofline(config, memory, machine, other.load);
    if (!roofline.ok() && out.empty()) return roofline.status();
    Variation variation{other.what, layout};
    if (roofline.ok()) {
      variation.outcome = Rated(layout, *roofline, other.load);
    } else {
      variation.outcome.requests_per_s = 0;
      variation.outcome.why_not = std::string(roofline.status().message());
    }
    out.push_back(std::move(variation));
  }
  BATON_ASSIGN_OR_RETURN(const Roofline roofline, PlanRoofline(config, memory, machine, load));
  for (Variation& one : WithOneLess(layout, roofline, load)) out.push_back(std::move(one));
  return out;
}

std::string VariationsText(const std::vector<Variation>& variations, double rate) {
  std::string out = "sensitivity of the first layout:\n";
  for (const Variation& v : variations) {
    absl::StrAppendFormat(&out, "  %-28s %10.3f requests/s  TTFT %9.2f  TPOT %8.2f", v.what, v.outcome.requests_per_s,
                          v.outcome.ttft_ms, v.outcome.tpot_ms);
    if (rate > 0)
      absl::StrAppendFormat(&out, "  serves %3.0f %% of %g/s", 100 * std::min(1.0, v.outcome.requests_per_s / rate),
                            rate);
    out += v.outcome.why_not.empty() ? "\n" : StrCat("  MISSED: ", v.outcome.why_not, "\n");
  }
  if (rate <= 0 || variations.empty()) return out;
  for (const double times : {0.5, 1.5}) {
    absl::StrAppendFormat(&out, "  %-28s serves %3.0f %%\n", absl::StrFormat("a rate of %g/s", rate * times),
                          100 * std::min(1.0, variations[0].outcome.requests_per_s / (rate * times)));
  }
  return out;
}

}  // namespace baton::plan
