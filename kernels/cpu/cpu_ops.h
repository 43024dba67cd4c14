// CpuOps: the operations on this machine's cores. What runs where there is no GPU, and the oracle for the rest.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace baton::kernels {

/// The instruction sets the kernels are compiled for. `kBest` takes the widest that the machine and BATON_MAX_ISA
/// allow.
enum class CpuIsa { kBest, kAvx2, kAvx512 };

struct CpuOpsConfig {
  int threads = 1;                ///< compute threads, the caller's included
  std::optional<DType> dtype;     ///< compute: f32 or bf16; unset: bf16 where the machine multiplies it, else f32
  std::optional<DType> kv_dtype;  ///< KV planes: f32, bf16, f16, or e4m3; unset: as compute
  CpuIsa isa = CpuIsa::kBest;     ///< of the f32 kernels and of everything but linear layers
  bool emulate_bf16 = false;      ///< bf16 also where it is slower than f32: for tests
};

/// FailedPrecondition: the machine lacks what the config asks for (named in the message).
absl::StatusOr<std::unique_ptr<Ops>> MakeCpuOps(const CpuOpsConfig& config);

}  // namespace baton::kernels
