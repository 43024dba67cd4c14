// What a test decides about the emulated devices. Thread: any; eight devices per process, of one size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace baton::gpu {

/// How many there are, at most 16; eight at first.
void SetEmulatedDevices(int count);
/// The product's name of device `number`, by BATON_EMULATED_NAMES=A,B,… too.
void SetEmulatedName(int number, const std::string& name);
std::string EmulatedName(int number);
/// Memory of each device, 8 GiB at first. What lives keeps its own.
void SetEmulatedBytes(size_t bytes);
/// What each graph that is recorded from now on takes of its device's memory; nothing at first.
void SetEmulatedGraphBytes(size_t bytes);
/// Restarts the count of allocations; the n-th from now, n ≥ 1, fails. 0: none does.
void FailAllocation(int64_t n);
/// Allocations since then, failed ones included.
int64_t AllocationCount();
/// Restarts the count of contexts, streams and events that are made; the n-th from now, n ≥ 1, is refused; by
/// BATON_EMULATED_UNMADE=n too, of the process. 0: none is.
void RefuseMaking(int64_t n);
/// Those since then, refused ones included.
int64_t MakingCount();
/// Counts one, of the calling thread's device: the reason when it is refused, else empty.
std::string EmulatedMaking(const std::string& what);

/// Number of the calling thread's.
int EmulatedDevice();

/// By BATON_EMULATED_BYTES: memory of each device; 0: it says nothing.
size_t EmulatedBytesByEnvironment();
/// Why device `number` of `count` cannot be used (device_refusal.h). Kernels were built with CUDA 13.0; so is the
/// driver, but by BATON_EMULATED_DRIVER=12040, or =0 for none.
std::string EmulatedRefusal(int number, int count);
/// The error that all of this process's streams have from their next wait on, as after an uncorrectable ECC error.
void SetEmulatedFault(const std::string& error);
/// It, with the number of the device; by BATON_EMULATED_FAULTS=FOLDER too: the first line of the file there that is
/// named by the process's id. Empty: there is none yet.
std::string EmulatedFault(int device);

/// What devices reach of each other's memory (peer_memory.h), kReachable at first; by BATON_EMULATED_PEERS=no-access,
/// no-ipc or lost too. A handle that is open is opened by no second PeerMemory of a device.
enum class EmulatedPeers : uint8_t {
  kReachable,
  kNoAccess,  ///< none of another device's
  kNoIpc,     ///< none of another process's
  kLost,      ///< they say that they do, and nothing that is written arrives
};
void SetEmulatedPeers(EmulatedPeers value);

/// While it lives, streams that this thread makes, and that no other uses, run ahead of what is waited for, as on
/// hardware: at every call each may do some of its work, up to what it must wait for. Without it work runs as late as
/// it can. The same for a seed, but for what other threads do.
class StreamsDrift {
 public:
  explicit StreamsDrift(uint64_t seed);
  ~StreamsDrift();
  StreamsDrift(const StreamsDrift&) = delete;
  StreamsDrift& operator=(const StreamsDrift&) = delete;
};

}  // namespace baton::gpu
