// The CUDA half of network_writes.h.
#include <cuda_runtime.h>

#include "kernels/runtime/network_writes.h"
#include "kernels/runtime/runtime.h"

namespace baton::gpu {
namespace {

int AttributeOf(int device, cudaDeviceAttr attribute) {
  int value = 0;
  CheckCuda(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute", __LINE__);
  return value;
}

}  // namespace

// Without an order that the device keeps by itself, a write that the host was told of may be overtaken by a launch.
std::string SeeNetworkWrites() {
  int device = 0;
  CheckCuda(cudaGetDevice(&device), "cudaGetDevice", __LINE__);
  if (AttributeOf(device, cudaDevAttrGPUDirectRDMASupported) == 0)
    return "its driver lets no network's device write it";
  const int order = AttributeOf(device, cudaDevAttrGPUDirectRDMAWritesOrdering);
  if (order >= cudaGPUDirectRDMAWritesOrderingOwner) return {};
  const int ways = AttributeOf(device, cudaDevAttrGPUDirectRDMAFlushWritesOptions);
  if ((ways & cudaFlushGPUDirectRDMAWritesOptionHost) == 0)
    return "what a network's device has written cannot be flushed by the host";
  CheckCuda(cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTargetCurrentDevice,
                                               cudaFlushGPUDirectRDMAWritesToOwner),
            "cudaDeviceFlushGPUDirectRDMAWrites", __LINE__);
  return {};
}

}  // namespace baton::gpu
