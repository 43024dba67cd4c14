// The engine's KV memory as kvtransfer's placer sees it: the two folders do not know each other.
#pragma once

#include "engine/cache/kv_cache.h"
#include "engine/cache/kv_memory.h"
#include "kvtransfer/placer.h"

namespace baton::worker {

/// `memory` must outlive the view. One rank: every layer and head of the layout.
KvPoolView PoolViewOf(const engine::KvMemory& memory);

/// The block numbers of a sequence, by group and position.
KvBlockTables TablesOf(const engine::SequenceKv& kv);

/// One rank with the whole model.
KvSide SideOf(const KvLayout& layout);

}  // namespace baton::worker
