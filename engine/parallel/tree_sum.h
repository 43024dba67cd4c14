// The sum of several vectors as one binary tree: the left child has the greatest power of two of leaves below their
// number. A tree over R = 2^k leaves is therefore the tree over its aligned subtrees, whichever rank adds those up:
// this is why 1, 2 and 4 ranks give the same bits at one --reduction-width.
#pragma once

#include <cstdint>
#include <span>

namespace baton::engine {

/// out[i] = tree sum of parts[p][i], i in [0, n). `out` may be one of the parts, or overlap none.
void TreeSum(std::span<const float* const> parts, int64_t n, float* out);

}  // namespace baton::engine
