// From flags to a simulated cluster: what `baton sim` and `baton plan --trace` share.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "cli/tools/planned_machine.h"
#include "load/bench_options.h"
#include "plan/memory_plan.h"
#include "router/router_config.h"
#include "sim/planned_cluster.h"

namespace baton::cli {

/// A trace's name into the options, and its form by its first line; nothing with an empty `path`. InvalidArgument: a
/// data set is named as well. NotFound: no such file.
absl::Status UseTrace(const std::string& path, load::BenchOptions& bench);

/// Workers as `memory` plans them for `config`, joined by the machine's links.
sim::PlannedTerms TermsOf(const worker::WorkerConfig& config, const plan::MemoryPlan& memory,
                          const PlannedMachine& machine, const router::RouterConfig& router, uint64_t seed);

}  // namespace baton::cli
