// The sums of a tensor core's product, as mma.sync and wgmma are emulated.
// Thread: any.
#pragma once

namespace baton::px {

/// product[m][n] = Σ a[m][k] · b[k][n], each row-major, from 0 on in the order of k, every product and every sum
/// rounded. `rows` is a multiple of 4, `columns` of 8; b and product are 32-byte aligned.
void TileProduct(const float* a, const float* b, float* product, int rows, int depth, int columns);

/// Both operands with their last product first.
void ReverseDepth(float* a, float* b, int rows, int depth, int columns);

}  // namespace baton::px
