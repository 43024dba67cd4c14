#include <algorithm>
#include <memory>
#include <type_traits>

#include "kernels/cpu/isa/element.h"
#include "kernels/cpu/isa/kernel_table.h"
#include "kernels/cpu/isa/simd_avx512.h"

using baton::kernels::cpu::Bf16;
using baton::kernels::cpu::E4m3;
using baton::kernels::cpu::F16;

// Each builds on those before it.
// clang-format off
#include "kernels/cpu/isa/simd_math.h"
#include "kernels/cpu/isa/typed_rows.h"
#include "kernels/cpu/isa/rows.inl"
#include "kernels/cpu/isa/linear.inl"
#include "kernels/cpu/isa/attention_tokens.inl"
#include "kernels/cpu/isa/attention.inl"
// clang-format on

namespace baton::kernels::cpu {

const KernelTable& Avx512Table() {
  static const KernelTable table{"avx512_core",  RmsNorm,     AddRow,     Gated, Convert, NormRope, Attend,
                                 kAttentionRows, LinearPanel, SoftCapRow, MaxOf, SumExp,  ArgMax};
  return table;
}

}  // namespace baton::kernels::cpu
