// The contract of kernels/ops.h on a device: what tests/kernels/contract/backends.cc is for the CPU and the emulator.
#include "tests/kernels/contract/backends.h"
#include "tests/kernels/contract/host_tensor_ops.h"

namespace baton::kernels {

std::vector<Backend> Backends() {
  return {{"cuda",
           [](DType kv) -> std::unique_ptr<Ops> {
             auto ops = MakeHostTensorOps({.kv_dtype = kv});
             return ops.ok() ? *std::move(ops) : nullptr;
           },
           DType::kBF16, true}};
}

}  // namespace baton::kernels
