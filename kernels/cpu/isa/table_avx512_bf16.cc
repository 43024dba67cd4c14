#include <algorithm>
#include <cstring>
#include <memory>
#include <type_traits>

#include "kernels/cpu/isa/bf16_table.h"
#include "kernels/cpu/isa/bf16_tiles.h"
#include "kernels/cpu/isa/element.h"

using baton::kernels::cpu::Bf16;
using baton::kernels::cpu::Bf16LinearItem;
using baton::kernels::cpu::E4m3;
using baton::kernels::cpu::F16;

// Each builds on those before it.
// clang-format off
#include "kernels/cpu/isa/simd_math.h"
#include "kernels/cpu/isa/typed_rows.h"
#include "kernels/cpu/isa/bf16_packing.inl"
#include "kernels/cpu/isa/linear_dot.inl"
// clang-format on

namespace baton::kernels::cpu {

const Bf16Table& CompiledDotTable() {
  static const Bf16Table table{Avx512Table(), PackRowTile, PackColumnTile, LinearDot};
  return table;
}

}  // namespace baton::kernels::cpu
