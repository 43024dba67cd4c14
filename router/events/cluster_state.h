// ClusterState: one event of the cluster's state: workers, links and what runs, with rates since the state before. No
// clock, no lock: facts in, JSON out. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "router/events/request_trail.h"
#include "router/fleet/worker_link.h"
#include "router/json_writer.h"
#include "router/server.h"

namespace baton::router {

/// What the router knows at one moment.
struct ClusterFacts {
  std::vector<LinkView> workers;
  std::vector<int64_t> cached_tokens;  ///< [workers] whose KV the prefix index knows there
  Readiness readiness;
  int64_t running_requests = 0, max_running_requests = 0, recomputing_requests = 0, texts_queued = 0;
};

/// What trails say.
struct Traffic {
  std::vector<LiveRequest> live;                                   ///< oldest first
  std::map<std::pair<std::string, std::string>, int64_t> moved{};  ///< (prefill, decode) → bytes since the last state
};

class ClusterState {
 public:
  static constexpr size_t kMostRequests = 64;  ///< that one state lists

  /// Rates are null in the first state, and for a worker whose process is another than before.
  std::string Build(const ClusterFacts& facts, const Traffic& traffic, TimePoint now, double unix_ms);

 private:
  struct Counters {
    std::string incarnation;
    double steps = 0, prompt_tokens = 0, generation_tokens = 0, preemptions = 0, bytes = 0, seconds = 0;
  };
  /// `computes_prompts`: what it counts as prompts it has computed, not taken over from another.
  void WriteWorker(const LinkView& view, int64_t cached_tokens, bool computes_prompts, double passed_s, JsonWriter& w);

  std::map<int32_t, Counters> before_;  // [worker's index]
  TimePoint built_{};
  double prompt_tokens_ = 0, generation_tokens_ = 0;  // of the state that is built: a second
  bool known_ = false;                                // whether those are
};

}  // namespace baton::router
