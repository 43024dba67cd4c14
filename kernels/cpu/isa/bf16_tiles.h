// The layout of bf16 products' operands: left tiles of 16 rows × 32 k, right tiles of 16 pairs of k × 16 columns. For
// files that are compiled for AVX512_BF16.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/isa/simd_avx512.h"

namespace {

constexpr int kTileSide = 16;   // rows of a left tile, columns of a right tile
constexpr int kTileDepth = 32;  // k of both
constexpr int kTileBytes = 1024;

/// Both rounded to nearest even, `low` in the lower half.
inline __m512i ToBf16(Vec low, Vec high) { return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high.v, low.v)); }

}  // namespace
