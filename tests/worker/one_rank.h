// One rank's KV memory as a whole worker's pool.
#pragma once

#include "worker/transfer/kv_pool_view.h"

namespace baton::worker {

inline KvPoolView PoolOf(const engine::KvMemory& memory) {
  const engine::KvMemory* const rank = &memory;
  return PoolViewOf({&rank, 1});
}

}  // namespace baton::worker
