// One rank's KV memory as a whole worker's pool.
#pragma once

#include "worker/transfer/kv_pool_view.h"

namespace baton::worker {

/// `mover`: null where the host reads and writes it itself.
inline KvPoolView PoolOf(const engine::KvMemory& memory, KvMover* mover = nullptr) {
  const engine::KvMemory* const rank = &memory;
  return mover == nullptr ? PoolViewOf({&rank, 1}) : PoolViewOf({&rank, 1}, {&mover, 1});
}

}  // namespace baton::worker
