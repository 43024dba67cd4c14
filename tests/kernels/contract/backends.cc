#include "tests/kernels/contract/backends.h"

#include "common/check.h"
#include "kernels/cpu/cpu_ops.h"
#include "tests/kernels/contract/host_tensor_ops.h"

namespace baton::kernels {
namespace {

Backend Cpu(std::string name, CpuIsa isa, int threads, DType compute = DType::kF32) {
  return {std::move(name),
          [=](DType kv) {
            auto ops = MakeCpuOps({.threads = threads, .dtype = compute, .kv_dtype = kv, .isa = isa});
            BATON_CHECK(ops.ok(), ops.status().ToString());
            return *std::move(ops);
          },
          compute};
}

// The CUDA backend on the emulator, one schedule policy each.
Backend Emulated(const simt::Policy& policy) {
  const std::string name =
      std::string("cuda_") + (policy.shuffled() ? "shuffled_" : "in_order_") + (policy.lazy() ? "lazy" : "eager");
  return {name,
          [=](DType kv) -> std::unique_ptr<Ops> {
            auto ops = MakeHostTensorOps({.kv_dtype = kv, .policy = policy});
            return ops.ok() ? *std::move(ops) : nullptr;
          },
          DType::kBF16, true};
}

}  // namespace

std::vector<Backend> Backends() {
  std::vector<Backend> all{Cpu("avx2_1", CpuIsa::kAvx2, 1), Cpu("avx2_3", CpuIsa::kAvx2, 3)};
  if (MakeCpuOps({.isa = CpuIsa::kAvx512}).ok()) {
    all.push_back(Cpu("avx512_1", CpuIsa::kAvx512, 1));
    all.push_back(Cpu("avx512_2", CpuIsa::kAvx512, 2));
  }
  // What the machine multiplies in bf16: tiles on AMX, else vectors.
  if (MakeCpuOps({.dtype = DType::kBF16}).ok()) {
    all.push_back(Cpu("bf16_1", CpuIsa::kBest, 1, DType::kBF16));
    all.push_back(Cpu("bf16_3", CpuIsa::kBest, 3, DType::kBF16));
  }
  for (const simt::Policy& policy : simt::AllPolicies()) all.push_back(Emulated(policy));
  return all;
}

}  // namespace baton::kernels
