// The engine's KV memory as kvtransfer's placer sees it: the two folders do not know each other.
#pragma once

#include <span>

#include "engine/cache/kv_cache.h"
#include "engine/cache/kv_memory.h"
#include "kvtransfer/slot_passes.h"

namespace baton::worker {

/// The memories of ranks that are threads as one pool: all layers, and each plane's heads in as many pieces as there
/// are ranks. They must outlive the view, as must `movers`: who moves each rank's KV, where it is on devices; empty: it
/// is the host's. A worker of any number of such ranks is one rank to the workers that it hands KV to or takes KV from.
KvPoolView PoolViewOf(std::span<const engine::KvMemory* const> ranks, std::span<KvMover* const> movers = {});

/// One rank alone: its layers and its heads, as a rank of its own to the others. `mover`: null where it is the host's.
KvPoolView RankPoolViewOf(const engine::KvMemory& rank, KvMover* mover = nullptr);

/// The block numbers of a sequence, by group and position.
KvBlockTables TablesOf(const engine::SequenceKv& kv);

/// One rank with the whole model.
KvSide SideOf(const KvLayout& layout);

}  // namespace baton::worker
