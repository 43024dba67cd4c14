// The entry of libbaton_cuda.so, and of its twin on the emulator.
#include "common/str_cat.h"
#include "kernels/cuda/host/cuda_ops.h"
#include "kernels/plugin/device_plugin.h"
#if !defined(__CUDACC__)
#include "kernels/runtime/emulated_cublas_lt.h"
#endif

namespace baton::kernels {
namespace {

OpsOrError Make(int version, const DeviceConfig& config) {
  if (version != kPluginVersion) {
    return absl::FailedPreconditionError(StrCat("the device plugin is of version ", kPluginVersion,
                                                ", this program wants ", version, ": take both from one build"));
  }
  gpu::HoldKernelsToDeviceMemory();
  CudaOpsConfig ops;
  ops.device = config.number;
  ops.kv_dtype = config.kv_dtype.value_or(DType::kBF16);
  ops.deterministic = config.deterministic;
  ops.one_shot_bytes = config.one_shot_bytes;
#if !defined(__CUDACC__)
  ops.cublas_lt = gpu::EmulatedCublasLtByEnvironment();
#endif
  return MakeCudaOps(ops);
}

}  // namespace
}  // namespace baton::kernels

extern "C" __attribute__((visibility("default"))) void baton_make_device_ops(int version,
                                                                             const baton::kernels::DeviceConfig& config,
                                                                             baton::kernels::OpsOrError* out) {
  static_cast<void>(*out = baton::kernels::Make(version, config));
}
