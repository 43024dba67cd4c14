// The CUDA half of peer_memory.h.
#include <cuda.h>

#include <cstring>

#include "kernels/runtime/peer_memory.h"
#include "kernels/runtime/this_process.h"

namespace baton::gpu {
namespace {

static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(MemoryCard::handle));

// Forgets the error: the next launch asks for the last error too.
std::string TextOf(cudaError_t error) {
  cudaGetLastError();
  return cudaGetErrorString(error);
}
int BoundDevice() {
  BindThread();
  int device = 0;
  CheckCuda(cudaGetDevice(&device), "cudaGetDevice", __LINE__);
  return device;
}

/// Bytes that the driver has mapped from `at` on; nothing links libcuda, so it is asked for at run time. 0: not known.
size_t MappedBytes(void* at) {
  static const auto range = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    CheckCuda(cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &entry, 12000, cudaEnableDefault, &found),
              "cudaGetDriverEntryPoint", __LINE__);
    return found == cudaDriverEntryPointSuccess ? reinterpret_cast<decltype(&cuMemGetAddressRange_v2)>(entry) : nullptr;
  }();
  CUdeviceptr begin = 0;
  size_t bytes = 0;
  const auto address = reinterpret_cast<CUdeviceptr>(at);
  if (range == nullptr || range(&begin, &bytes, address) != CUDA_SUCCESS) return 0;
  return bytes - static_cast<size_t>(address - begin);
}

}  // namespace

MemoryCard CardOf(const Memory& memory) {
  MemoryCard card = CardWithoutHandle(memory, BoundDevice());
  cudaIpcMemHandle_t handle;
  const cudaError_t error = cudaIpcGetMemHandle(&handle, memory.data());
  if (error == cudaSuccess)
    std::memcpy(card.handle, &handle, sizeof(handle));
  else
    ("cudaIpcGetMemHandle: " + TextOf(error)).copy(card.refused, sizeof(card.refused) - 1);
  return card;
}

// A process cannot open a handle of its own.
std::string PeerMemory::Open(const MemoryCard& card) {
  if (card.machine != ThisMachine()) return "it is on another machine";
  device_ = BoundDevice();
  if (card.process == ThisProcess()) {
    data_ = reinterpret_cast<void*>(card.address);
    if (card.device == device_) return {};
    int can = 0;
    CheckCuda(cudaDeviceCanAccessPeer(&can, device_, card.device), "cudaDeviceCanAccessPeer", __LINE__);
    if (can == 0) return "no peer access from GPU " + std::to_string(device_) + " to " + std::to_string(card.device);
    const cudaError_t error = cudaDeviceEnablePeerAccess(card.device, 0);
    if (error == cudaSuccess) return {};
    const std::string text = TextOf(error);
    return error == cudaErrorPeerAccessAlreadyEnabled ? "" : "cudaDeviceEnablePeerAccess: " + text;
  }
  if (card.refused[0] != 0) return card.refused;
  return OpenHandle(card);
}

std::string PeerMemory::OpenHandle(const MemoryCard& card) {
  cudaIpcMemHandle_t handle;
  std::memcpy(&handle, card.handle, sizeof(handle));
  const cudaError_t error = cudaIpcOpenMemHandle(&opened_, handle, cudaIpcMemLazyEnablePeerAccess);
  if (error != cudaSuccess) {
    opened_ = nullptr;
    return "cudaIpcOpenMemHandle: " + TextOf(error);
  }
  if (const size_t there = MappedBytes(opened_); there != 0 && there < card.bytes)
    return "its handle opens " + std::to_string(there) + " bytes, its card says " + std::to_string(card.bytes);
  data_ = opened_;
  return {};
}

PeerMemory::~PeerMemory() {
  if (opened_ == nullptr) return;
  BindTo(device_);
  cudaIpcCloseMemHandle(opened_);
}

}  // namespace baton::gpu
