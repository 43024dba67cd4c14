// What the ranks of a worker have moved of KV, as one load, and rank by rank.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "kvtransfer/rank_figures.h"
#include "worker/process/role_service.h"

namespace baton::worker {

/// `ranks`: of each rank that carries KV, rank 0 first.
void FillRankLoad(const std::vector<RankFigures>& ranks, v1::HandoffLoad& load);

/// Where ranks carry their own KV: waits until all have opened their transports. The first rank's error.
absl::Status BeginLines(const RoleContext& context);

}  // namespace baton::worker
