// What CpuOps computes with on this machine: the kernels for its instruction set, and the traits that say so.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/isa/bf16_table.h"
#include "kernels/cpu/isa/kernel_table.h"

namespace baton::kernels::cpu {

struct CpuChoice {
  const KernelTable* kernels = nullptr;
  const Bf16Table* bf16 = nullptr;  ///< null: no own product in bf16 (f32, or oneDNN emulates bf16)
  OpsTraits traits;                 ///< all but `threads`
};

/// The widest that the machine, the config and BATON_MAX_ISA allow. FailedPrecondition: the machine lacks what the
/// config asks for; InvalidArgument: BATON_MAX_ISA names nothing known.
absl::StatusOr<CpuChoice> ChooseCpu(const CpuOpsConfig& config);

}  // namespace baton::kernels::cpu
