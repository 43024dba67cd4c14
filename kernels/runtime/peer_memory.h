// Memory of one GPU that kernels of another write (px::StorePeer) or that another copies from: of this process by peer
// access, of another process of the machine by a CUDA IPC handle.
//
// The memory is of kind MemoryKind::kPeer, made by the one that owns it; its card goes to the others as bytes.
// Thread: the one that uses the device. The owner's memory outlives what others do with it: what one reads whose owner
// has ended is undefined.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/runtime/runtime.h"
#include "kernels/runtime/this_process.h"

namespace baton::gpu {

/// Where memory is, and what another process opens it with.
struct MemoryCard {
  char machine[40] = {};   ///< the same on all processes of a machine that is up
  uint64_t process = 0;    ///< no other process has it
  int32_t device = 0;      ///< its number in that process
  uint64_t address = 0;    ///< in that process
  uint64_t bytes = 0;      ///< of the memory
  char handle[64] = {};    ///< of CUDA IPC
  char refused[128] = {};  ///< why there is no handle; empty: there is one
};
/// On the thread's device.
MemoryCard CardOf(const Memory& memory);
/// The part that needs no driver: all but the handle.
inline MemoryCard CardWithoutHandle(const Memory& memory, int device) {
  MemoryCard card;
  ThisMachine().copy(card.machine, sizeof(card.machine) - 1);
  card.process = ThisProcess();
  card.device = device;
  card.address = reinterpret_cast<uint64_t>(memory.data());
  card.bytes = memory.bytes();
  return card;
}

/// Another rank's memory, as the kernels of the thread's device reach it. Destroying it closes the handle.
class PeerMemory {
 public:
  PeerMemory() = default;
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  /// Once. The reason why the thread's device cannot reach it; empty when it can.
  std::string Open(const MemoryCard& card);
  void* data() const { return data_; }

 private:
  std::string OpenHandle(const MemoryCard& card);

  void* data_ = nullptr;
  void* opened_ = nullptr;  ///< by a handle
  int device_ = 0;          ///< that opened it
  size_t mapped_ = 0;       ///< emulation: bytes of `opened_`
  std::string handle_;      ///< emulation: that is open
#if !defined(__CUDACC__)
  std::optional<Memory> lost_;  ///< where writes go that do not arrive
#endif
};

}  // namespace baton::gpu
