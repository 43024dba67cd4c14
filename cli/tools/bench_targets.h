// The servers that `baton bench` measures, one or several side by side, with what each is asked.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/http_client.h"
#include "cli/tools/local_cluster.h"
#include "load/asker.h"
#include "load/bench_options.h"

namespace baton::cli {

/// Between two questions to a server that does not answer yet.
inline constexpr Duration kReadyPause = std::chrono::milliseconds(200);

struct BenchTarget {
  std::string name;  ///< of --compare; empty: the only one
  HttpUrl url;       ///< of its HTTP API, also where it is asked over gRPC
  std::string model;
  std::string address;  ///< as people are told it
  load::MakeAsker asker;
  std::chrono::steady_clock::time_point ready_by{};  ///< --ready-check-timeout-sec after it was first looked for
  std::shared_ptr<LocalCluster> cluster = nullptr;   ///< that was started for this run; null: the server was there
};

/// Waits for each server until its `ready_by`. Where --compare names layouts, starts their clusters. InvalidArgument
/// names flag and text; Unavailable: a server is not there, or names no model.
absl::StatusOr<std::vector<BenchTarget>> FindTargets(const load::BenchOptions& options);

}  // namespace baton::cli
