#include <algorithm>
#include <array>
#include <memory>
#include <type_traits>

#include "kernels/cpu/isa/bf16_table.h"
#include "kernels/cpu/isa/element.h"
#include "kernels/cpu/isa/simd_avx512.h"

using baton::kernels::cpu::Bf16;
using baton::kernels::cpu::Bf16LinearItem;
using baton::kernels::cpu::E4m3;
using baton::kernels::cpu::F16;

// Each builds on those before it.
// clang-format off
#include "kernels/cpu/isa/simd_math.h"
#include "kernels/cpu/isa/typed_rows.h"
#include "kernels/cpu/isa/amx_tiles.h"
#include "kernels/cpu/isa/bf16_packing.inl"
#include "kernels/cpu/isa/linear_amx.inl"
#include "kernels/cpu/isa/attention_tokens.inl"
#include "kernels/cpu/isa/attention_amx.inl"
// clang-format on

namespace baton::kernels::cpu {

const Bf16Table& CompiledAmxTable() {
  static const Bf16Table table = [] {
    Bf16Table made{Avx512Table(), PackRowTile, PackColumnTile, LinearAmx};
    made.kernels.attention = AttendAmx;
    made.kernels.attention_rows = kAmxAttentionRows;
    return made;
  }();
  return table;
}

}  // namespace baton::kernels::cpu
