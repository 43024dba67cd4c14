// CudaOps: the operations on one NVIDIA GPU (sm_80 and later), or on the emulator when built without CUDA.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device_rooms.h"
#include "kernels/ops.h"
#include "kernels/runtime/cublas_lt.h"
#include "kernels/runtime/runtime.h"

namespace baton::kernels {

struct CudaOpsConfig {
  int device = 0;                 ///< its number
  DType kv_dtype = DType::kBF16;  ///< bf16, or e4m3 with the scale of each plane
  /// A row's bits do not depend on the batch (Promise A). False: forms are chosen by speed alone (Promise B).
  bool deterministic = true;
  int64_t one_shot_bytes = 256 << 10;  ///< as DeviceConfig's
  /// Device memory for partial results of attention, and for sampling, each, and a quarter of it for the outputs of a
  /// weight in codes that are made bf16 for many rows; what needs more is done in several launches. One sequence's KV
  /// head, one row's vocabulary and 128 outputs always fit.
  size_t work_bytes = size_t{kDeviceWorkBytes};
#if !defined(__CUDACC__)
  simt::Policy policy;         ///< of the emulator
  bool wgmma_differs = false;  ///< the emulated GPU is one whose wgmma adds in another order than mma.sync
  bool gemv_differs = false;   ///< and one whose mma.sync adds in another order where its operands are exchanged
  int multiprocessors = 0;     ///< of the emulated GPU, where more than 0: what tiles are chosen by
  const gpu::CublasLtApi* cublas_lt = nullptr;  ///< the library that is installed; null: none
  /// Whether it is found to be faster for so many rows of a weight [n, k]; for all, when not set: time means nothing
  /// here.
  std::function<bool(int rows, int n, int k)> library_wins;
#endif
};

/// Computes in bf16. When deterministic, every operation keeps a row's bits whatever the batch.
/// Column counts must be multiples of 8, tokens per block of 16, head_dim 64, 80, 96, 128 or 256.
/// FailedPrecondition: a KV type that the kernels lack, or no such device.
absl::StatusOr<std::unique_ptr<Ops>> MakeCudaOps(const CudaOpsConfig& config);

}  // namespace baton::kernels
