#include "plan/proposals.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_format.h"
#include "common/status.h"

namespace baton::plan {
namespace {

using worker::WorkerConfig;

std::string WhyMissed(const Proposal& p, const Load& load) {
  if (p.ttft_ms > load.ttft_ms)
    return absl::StrFormat("TTFT %.2f ms is above the goal of %.2f ms", p.ttft_ms, load.ttft_ms);
  if (p.tpot_ms > load.tpot_ms)
    return absl::StrFormat("TPOT %.2f ms is above the goal of %.2f ms", p.tpot_ms, load.tpot_ms);
  return "";
}

// "1 worker", "2 workers".
std::string Count(int n, const char* what) { return StrCat(n, " ", what, n == 1 ? "" : "s"); }

// The division of `workers` whose slower side is fastest.
Proposal Disaggregated(const Proposal& cut, int workers, const Roofline& r, const Load& load) {
  Proposal best;
  for (int prefill = 1; prefill < workers; ++prefill) {
    Proposal p = cut;
    p.prefill = prefill;
    p.decode = workers - prefill;
    p = Rated(std::move(p), r, load);
    if (prefill == 1 || p.requests_per_s > best.requests_per_s) best = std::move(p);
  }
  return best;
}

Proposal Aggregated(Proposal p, int workers, const Roofline& r, const Load& load) {
  p.both = workers;
  return Rated(std::move(p), r, load);
}

// With what becomes of its figures at the machine's corners.
Proposal Ranged(Proposal p, const std::vector<Roofline>& corners, const Load& load) {
  p.rate_range = RangeOf(corners, [&](const Roofline& r) { return Rated(p, r, load).requests_per_s; });
  p.ttft_range = RangeOf(corners, [&](const Roofline& r) { return Rated(p, r, load).ttft_ms; });
  p.tpot_range = RangeOf(corners, [&](const Roofline& r) { return Rated(p, r, load).tpot_ms; });
  for (const Roofline& r : corners) p.corner_rates.push_back(Rated(p, r, load).requests_per_s);
  return p;
}

// The aggregated and the best P:D layout of one cut of the model; or one that says why there is none.
absl::Status AddLayouts(const WorkerConfig& config, int devices, int64_t device_bytes, const Machine& machine,
                        const Load& load, std::vector<Proposal>& out) {
  const int workers = devices / config.ranks();
  Proposal p{.tensor_size = config.tensor_parallel_size, .stages = config.pipeline_parallel_size};
  absl::Status status = config.Validate();
  absl::StatusOr<MemoryPlan> memory =
      status.ok() ? PlanMemory(config, device_bytes * config.ranks()) : absl::StatusOr<MemoryPlan>(status);
  if (!memory.ok()) {
    if (absl::IsNotFound(memory.status())) return memory.status();
    p.both = workers;
    p.why_not = std::string(memory.status().message());
    out.push_back(std::move(p));
    return absl::OkStatus();
  }
  BATON_ASSIGN_OR_RETURN(const std::vector<Roofline> corners, PlanCorners(config, *memory, machine, load));
  const Roofline& r = corners[0];
  out.push_back(Ranged(Aggregated(p, workers, r, load), corners, load));
  if (workers > 1) {
    Proposal split = Ranged(Disaggregated(p, workers, r, load), corners, load);
    if (machine.link_bytes_per_s <= 0) split.why_not = "what a handoff takes is not known: give --link";
    out.push_back(std::move(split));
  }
  return absl::OkStatus();
}

}  // namespace

Proposal Rated(Proposal p, const Roofline& r, const Load& load) {
  if (p.prefill > 0) {
    const double a = p.prefill * r.PrefillRequestsPerS(), b = p.decode * r.DecodeRequestsPerS(load);
    p.requests_per_s = std::min(a, b);
    p.prefill_busy = p.requests_per_s / a;
    p.decode_busy = p.requests_per_s / b;
    p.ttft_ms = r.prefill_ms + r.transfer_ms.value_or(0);
    p.tpot_ms = r.decode_ms;
  } else {
    p.requests_per_s = p.both * r.both_requests_per_s;
    p.ttft_ms = r.prefill_ms;
    p.tpot_ms = r.both_tpot_ms;
  }
  p.why_not = WhyMissed(p, load);
  return p;
}

std::string Proposal::Name() const {
  std::string name = prefill > 0 ? StrCat(prefill, " prefill and ", Count(decode, "decode worker"))
                                 : StrCat(Count(both, "worker"), " for both");
  if (tensor_size > 1) name += StrCat(", tensor size ", tensor_size);
  if (stages > 1) name += StrCat(", ", stages, " stages");
  return name;
}

std::string OrderText(const std::vector<Proposal>& proposals) {
  std::map<size_t, int> wins;  // by place
  const size_t corners = proposals.empty() ? 0 : proposals[0].corner_rates.size();
  for (size_t corner = 1; corner < corners; ++corner) {
    size_t first = 0;
    for (size_t i = 1; i < proposals.size() && proposals[i].why_not.empty(); ++i) {
      if (proposals[i].corner_rates[corner] > proposals[first].corner_rates[corner]) first = i;
    }
    ++wins[first];
  }
  if (corners < 2 || proposals.size() < 2 || !proposals[1].why_not.empty()) return "";
  std::string out = absl::StrFormat("order: the first is the fastest at %d of %d ends of these ranges", wins[0],
                                    static_cast<int>(corners) - 1);
  for (const auto& [place, count] : wins) {
    if (place > 0) absl::StrAppendFormat(&out, ", number %d at %d", place + 1, count);
  }
  return out + "\n";
}

absl::StatusOr<std::vector<Proposal>> Propose(const WorkerConfig& config, int devices, int64_t device_bytes,
                                              const Machine& machine, const Load& load) {
  std::vector<Proposal> out;
  for (int tensor_size = 1; tensor_size <= devices; tensor_size *= 2) {
    for (int stages = 1; tensor_size * stages <= devices; stages *= 2) {
      WorkerConfig layout = config;
      layout.tensor_parallel_size = tensor_size;
      layout.pipeline_parallel_size = stages;
      BATON_RETURN_IF_ERROR(AddLayouts(layout, devices, device_bytes, machine, load, out));
    }
  }
  // At equal rates the simpler layout, which comes first, wins.
  std::ranges::stable_sort(out, [](const Proposal& a, const Proposal& b) {
    if (a.why_not.empty() != b.why_not.empty()) return a.why_not.empty();
    return a.why_not.empty() && a.requests_per_s > b.requests_per_s;
  });
  return out;
}

}  // namespace baton::plan
