// Changes of the prefix cache, for the router's index: plain values, no wire format.
#pragma once

#include <cstdint>
#include <vector>

#include "common/prefix_hash.h"

namespace baton::engine {

/// One 16-token unit became readable in this worker's cache, or stopped being so.
struct KvEvent {
  enum class Kind : uint8_t { kStored, kRemoved };
  Kind kind = Kind::kStored;
  PrefixHash hash;         ///< of the prefix that ends with this unit
  PrefixHash parent;       ///< of the prefix before it; a root hash for the first unit
  int32_t unit_index = 0;  ///< 0 for tokens [0, 16)
  bool operator==(const KvEvent&) const = default;
};

/// Events in order. `gap`: some were dropped because nobody took them in time; take a snapshot.
struct KvEvents {
  std::vector<KvEvent> events;
  bool gap = false;
};

}  // namespace baton::engine
