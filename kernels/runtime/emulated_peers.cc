// The emulated half of peer_memory.h: memory of kind kPeer is a file in memory, which other processes map.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "kernels/runtime/emulated_device.h"
#include "kernels/runtime/peer_memory.h"
#include "kernels/runtime/this_process.h"
#include "kernels/simt/device_memory.h"

namespace baton::gpu {
namespace {

std::atomic<EmulatedPeers> peers = EmulatedPeers::kReachable;

EmulatedPeers Peers() {
  const char* value = std::getenv("BATON_EMULATED_PEERS");
  const std::string named = value == nullptr ? "" : value;
  if (named == "no-access") return EmulatedPeers::kNoAccess;
  if (named == "no-ipc") return EmulatedPeers::kNoIpc;
  if (named == "lost") return EmulatedPeers::kLost;
  return peers;
}

std::mutex open_mutex;
std::set<std::pair<int, std::string>> open_handles;  ///< by device; guarded by open_mutex

}  // namespace

void SetEmulatedPeers(EmulatedPeers value) { peers = value; }

MemoryCard CardOf(const Memory& memory) {
  MemoryCard card = CardWithoutHandle(memory, EmulatedDevice());
  if (Peers() == EmulatedPeers::kNoIpc)
    std::string("CUDA IPC is not supported (emulated)").copy(card.refused, sizeof(card.refused) - 1);
  else
    std::snprintf(card.handle, sizeof(card.handle), "%d %d %zu %zu", getpid(), memory.descriptor(), memory.pages(),
                  static_cast<size_t>(card.address - reinterpret_cast<uint64_t>(memory.mapping())));
  return card;
}

std::string PeerMemory::Open(const MemoryCard& card) {
  if (card.machine != ThisMachine()) return "it is on another machine";
  device_ = EmulatedDevice();
  const bool own = card.process == ThisProcess();
  if (own && card.device == device_) {
    data_ = reinterpret_cast<void*>(card.address);
    return {};
  }
  if (Peers() == EmulatedPeers::kNoAccess)
    return "no peer access from GPU " + std::to_string(device_) + " to " + std::to_string(card.device) + " (emulated)";
  if (Peers() == EmulatedPeers::kLost) {
    data_ = lost_.emplace(card.bytes, MemoryKind::kPeer).data();
    return {};
  }
  if (own) {
    simt::OpenToPeer(device_, card.device);
    data_ = reinterpret_cast<void*>(card.address);
    return {};
  }
  if (card.refused[0] != 0) return card.refused;
  return OpenHandle(card);
}

// Files of other users' processes cannot be opened here, nor those of a process that has ended.
std::string PeerMemory::OpenHandle(const MemoryCard& card) {
  int pid = 0, descriptor = 0;
  size_t pages = 0, offset = 0;
  if (std::sscanf(card.handle, "%d %d %zu %zu", &pid, &descriptor, &pages, &offset) != 4)
    return "an invalid handle of CUDA IPC (emulated)";
  std::lock_guard lock(open_mutex);
  if (!open_handles.emplace(device_, card.handle).second) return "the handle is open already (emulated)";
  handle_ = card.handle;
  const int file = open(("/proc/" + std::to_string(pid) + "/fd/" + std::to_string(descriptor)).c_str(), O_RDWR);
  struct stat facts{};
  const bool is_there = file >= 0 && fstat(file, &facts) == 0;
  const size_t there = std::min(pages, static_cast<size_t>(facts.st_size));
  if (is_there && (offset > there || there - offset < card.bytes)) {
    close(file);
    return "its handle opens " + std::to_string(there - std::min(there, offset)) + " bytes, its card says " +
           std::to_string(card.bytes);
  }
  void* at = is_there ? mmap(nullptr, mapped_ = pages, PROT_READ | PROT_WRITE, MAP_SHARED, file, off_t{0}) : MAP_FAILED;
  if (file >= 0) close(file);
  if (at == MAP_FAILED) return "the handle's process has ended (emulated)";
  opened_ = at;
  data_ = static_cast<char*>(at) + offset;
  simt::AddDevicePages({opened_, mapped_, data_, static_cast<size_t>(card.bytes + 15) / 16 * 16, false,
                        simt::kOfAnotherProcess, device_});
  return {};
}

PeerMemory::~PeerMemory() {
  std::lock_guard lock(open_mutex);
  if (!handle_.empty()) open_handles.erase({device_, handle_});
  if (opened_ == nullptr) return;
  simt::RemoveDevicePages(opened_);
  munmap(opened_, mapped_);
}

}  // namespace baton::gpu
