#include "tests/kernels/contract/backends.h"

#include "common/check.h"
#include "kernels/cpu/cpu_ops.h"

namespace baton::kernels {
namespace {

Backend Cpu(std::string name, CpuIsa isa, int threads) {
  return {std::move(name), [=](DType kv) {
            auto ops = MakeCpuOps({.threads = threads, .dtype = DType::kF32, .kv_dtype = kv, .isa = isa});
            BATON_CHECK(ops.ok(), ops.status().ToString());
            return *std::move(ops);
          }};
}

}  // namespace

std::vector<Backend> Backends() {
  std::vector<Backend> all{Cpu("avx2_1", CpuIsa::kAvx2, 1), Cpu("avx2_3", CpuIsa::kAvx2, 3)};
  if (MakeCpuOps({.isa = CpuIsa::kAvx512}).ok()) {
    all.push_back(Cpu("avx512_1", CpuIsa::kAvx512, 1));
    all.push_back(Cpu("avx512_2", CpuIsa::kAvx512, 2));
  }
  return all;
}

}  // namespace baton::kernels
