// What a network's device (RDMA) writes into a GPU's memory by itself, and when the GPU sees it.
#pragma once

#include <cstddef>
#include <string>

namespace baton::gpu {

/// All that the host was told of is seen by what is enqueued from now on, on the calling thread's device. The reason
/// why that cannot be said of this device; empty: it can.
std::string SeeNetworkWrites();

#if !defined(__CUDACC__)
/// As a network's device: copies from memory of a device to another's, of this process. Nothing on the device sees it
/// before SeeNetworkWrites.
void WriteAsNetwork(void* to, const void* from, size_t bytes);
/// SeeNetworkWrites gives this reason from now on; empty: none.
void RefuseNetworkWrites(const std::string& why);
#endif

}  // namespace baton::gpu
