// The CUDA half of host_pin.h.
#include <cuda_runtime.h>

#include "kernels/runtime/host_pin.h"

namespace baton::gpu {

HostPin::HostPin(void* memory, size_t bytes) : memory_(memory) {
  const cudaError_t error = cudaHostRegister(memory, bytes, cudaHostRegisterPortable);
  if (error == cudaSuccess) return;
  error_ = cudaGetErrorString(error);
  cudaGetLastError();  // forgets it
}
HostPin::~HostPin() {
  if (!error_.empty()) return;
  if (cudaHostUnregister(memory_) != cudaSuccess) cudaGetLastError();  // a device that has failed knows none
}

}  // namespace baton::gpu
