#include "common/trust/hash_key.h"

namespace baton::trust {

HashKey HashKeyOf(const ClusterSecret& secret) { return {secret.Prove("hash key of prefixes", {})}; }

}  // namespace baton::trust
