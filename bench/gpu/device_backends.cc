// The contract of kernels/ops.h on a device: what tests/kernels/contract/backends.cc is for the CPU and the emulator.
#include "kernels/cuda/host/cuda_ops.h"
#include "tests/kernels/contract/backends.h"

namespace baton::kernels {

std::vector<Backend> Backends() {
  return {{"cuda",
           [](DType kv) -> std::unique_ptr<Ops> {
             auto ops = MakeCudaOps({.kv_dtype = kv});
             return ops.ok() ? *std::move(ops) : nullptr;
           },
           DType::kBF16, true}};
}

}  // namespace baton::kernels
