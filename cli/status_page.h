// What a machine of a worker says of itself over HTTP (--status-port): /live and /ready for probes, /metrics for
// scrapes. Pure; any thread.
#pragma once

#include <string>

#include "router/http/http_types.h"

namespace baton::cli {

/// One machine of a worker, which may have its ranks on several.
struct MachineStatus {
  std::string worker, role, version;
  int node = 0, nodes = 1;            ///< which machine, of how many
  int first_rank = 0, num_ranks = 1;  ///< that run on it
  bool ready = false;                 ///< they have loaded, and requests can reach them
  std::string phase;                  ///< until then: what it does
  double progress = 0;                ///< of the phase, 0…1
};

/// What the process has used.
struct ProcessUse {
  double cpu_seconds = 0;
  double start_time_seconds = 0;  ///< since the epoch
  int64_t resident_bytes = 0;
  int64_t log_lines_lost = 0;
};
/// Of this one.
ProcessUse UseOfThisProcess();

/// 200 or 503 as the router's own: /ready is 503 until requests can be served. 404 lists what there is, 405 says GET.
router::HttpResponse AnswerOf(const router::HttpRequest& request, const MachineStatus& machine, const ProcessUse& use);

}  // namespace baton::cli
