// The key of prefix hashes that follows from a cluster's secret. Pure.
#pragma once

#include "common/prefix_hash.h"
#include "common/trust/cluster_secret.h"

namespace baton::trust {

/// What all who know `secret` take where no --hash-key-file names a key; says nothing of the secret to who reads it.
HashKey HashKeyOf(const ClusterSecret& secret);

}  // namespace baton::trust
