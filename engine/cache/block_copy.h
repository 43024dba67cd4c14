// A copy-on-write of one KV block.
#pragma once

#include <cstdint>

namespace baton::engine {

/// Block `src` of KV group `group` is copied to `dst` before anything else in a step.
struct BlockCopy {
  int32_t group = 0, src = 0, dst = 0;
  bool operator==(const BlockCopy&) const = default;
};

}  // namespace baton::engine
