#include "cli/tools/planned_machine.h"

#include <algorithm>
#include <utility>

#include "common/str_cat.h"

namespace baton::cli {
namespace {

constexpr std::string_view kSizes[] = {"model",
                                       "load-format",
                                       "tokenizer",
                                       "skip-tokenizer-init",
                                       "hf-config-path",
                                       "hf-overrides",
                                       "rope-scaling",
                                       "rope-theta",
                                       "dtype",
                                       "device",
                                       "deterministic",
                                       "gpu-memory-utilization",
                                       "max-model-len",
                                       "tensor-parallel-size",
                                       "pipeline-parallel-size",
                                       "reduction-width",
                                       "kv-cache-dtype",
                                       "kv-cache-memory",
                                       "local-workers",
                                       "block-size",
                                       "landing-slots",
                                       "landing-slot-bytes",
                                       "max-num-seqs",
                                       "max-num-batched-tokens"};

}  // namespace

std::vector<std::string> FlagsThatDoNotSize(worker::WorkerConfig& config, const std::vector<std::string_view>& more) {
  std::vector<std::string> names;
  VisitFields(config, [&](std::string_view name, auto&&...) {
    if (std::ranges::find(kSizes, name) == std::end(kSizes) && std::ranges::find(more, name) == more.end())
      names.emplace_back(name);
  });
  return names;
}

absl::Status CheckMachine(const PlannedMachine& m) {
  for (const auto& [flag, value] :
       {std::pair{"--memory-bandwidth", m.memory_bandwidth}, {"--compute", m.compute}, {"--link", m.link}}) {
    if (value > 0 && value < 1e-6)
      return absl::InvalidArgumentError(StrCat(flag, " ", value, ": at least 1e-06, or 0 for none"));
  }
  if ((m.memory_bandwidth > 0) == (m.compute > 0)) return absl::OkStatus();
  return absl::InvalidArgumentError(m.compute > 0 ? "--compute needs --memory-bandwidth as well"
                                                  : "--memory-bandwidth needs --compute as well");
}

}  // namespace baton::cli
