#include "kernels/runtime/emulated_nccl.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/runtime/runtime.h"

namespace baton::gpu {
namespace {

constexpr int kMostRanks = 16;
constexpr size_t kRingBytes = 64 << 10;

/// Bytes from one rank to another.
struct Ring {
  std::atomic<uint64_t> written, read;
  char bytes[kRingBytes];
};
/// What the ranks of a group share: a file without a name, found through the process that made the id.
struct Shared {
  std::atomic<int> joined;
  Ring rings[kMostRanks][kMostRanks];  ///< [from][to]
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

std::atomic<int> hang_rank = -1;
std::atomic<int64_t> hang_call = 0;
std::atomic<int> hanging = 0;
std::atomic<uint64_t> seed = 1;

void ReadHang() {
  static std::once_flag once;
  std::call_once(once, [] {
    const char* text = std::getenv("BATON_EMULATED_NCCL_HANG");
    int rank = -1;
    long call = 0;
    if (text != nullptr && std::sscanf(text, "%d:%ld", &rank, &call) == 2) HangInEmulatedNccl(rank, call);
  });
}

/// One transfer of a call, with its progress: a header of 8 bytes, which is the length, goes first.
struct Transfer {
  int peer = 0;
  char* data = nullptr;
  uint64_t bytes = 0, moved = 0, header = 0;
  bool done() const { return moved == sizeof(header) + bytes; }
};

}  // namespace

struct NcclComm {
  int rank = 0, ranks = 0, id_descriptor = -1;
  Shared* shared = nullptr;
  std::atomic<bool> aborted = false;
  std::atomic<int> error = kNcclSuccess;
  int64_t calls = 0;  ///< that have begun to run
  std::mt19937_64 random;

  ~NcclComm() {
    if (shared != nullptr) munmap(shared, sizeof(Shared));
    if (id_descriptor >= 0) close(id_descriptor);
  }

  /// Runs one call, on the thread of the stream: everything moves at once, whatever the order in which peers come.
  void Exchange(std::vector<Transfer> outs, std::vector<Transfer> ins) {
    CopyToSelf(outs, ins);
    for (const Transfer& in : ins) {
      if (!in.done()) std::memset(in.data, 0xFF, in.bytes);
    }
    const bool hangs = hang_rank == rank && calls == hang_call;
    ++calls;
    hanging += hangs ? 1 : 0;
    if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
    for (int idle = 0; !aborted && error == kNcclSuccess;) {
      bool moved = false, done = true;
      for (size_t i = 0; i < outs.size(); ++i)
        moved |= !hangs && Next(outs, i) && Push(outs[i]), done &= outs[i].done();
      for (size_t i = 0; i < ins.size(); ++i) moved |= !hangs && Next(ins, i) && Pull(ins[i]), done &= ins[i].done();
      if (done && !hangs) return;
      idle = moved ? 0 : idle + 1;
      if (idle > 64) std::this_thread::sleep_for(std::chrono::microseconds(std::min(idle, 500)));
    }
    hanging -= hangs ? 1 : 0;
  }

 private:
  /// What a rank sends itself, in order.
  void CopyToSelf(std::vector<Transfer>& outs, std::vector<Transfer>& ins) const {
    const auto next = [&](std::vector<Transfer>& all) {
      return std::ranges::find_if(all, [&](const Transfer& t) { return t.peer == rank && !t.done(); });
    };
    for (auto out = next(outs), in = next(ins); out != outs.end() && in != ins.end();
         out = next(outs), in = next(ins)) {
      std::memmove(in->data, out->data, std::min(in->bytes, out->bytes));
      for (Transfer* t : {&*out, &*in}) t->moved = sizeof(t->header) + t->bytes;
    }
  }
  /// Whether it is the one that moves: those before it from or to the same rank are done, and it is not.
  static bool Next(const std::vector<Transfer>& all, size_t i) {
    return !all[i].done() && std::none_of(all.begin(), all.begin() + static_cast<ptrdiff_t>(i),
                                          [&](const Transfer& t) { return t.peer == all[i].peer && !t.done(); });
  }
  bool Push(Transfer& out) {
    Ring& ring = shared->rings[rank][out.peer];
    const uint64_t written = ring.written.load(std::memory_order_relaxed), room = kRingBytes - (written - ring.read);
    out.header = out.bytes;
    const uint64_t n = Some(out, room);
    const uint64_t at = written % kRingBytes, straight = std::min(n, kRingBytes - at);
    std::memcpy(ring.bytes + at, At(out), straight);
    std::memcpy(ring.bytes, At(out) + straight, n - straight);
    out.moved += n;
    ring.written.store(written + n, std::memory_order_release);
    return n > 0;
  }
  bool Pull(Transfer& in) {
    Ring& ring = shared->rings[in.peer][rank];
    const uint64_t read = ring.read.load(std::memory_order_relaxed), there = ring.written - read;
    const uint64_t n = Some(in, there);
    const uint64_t at = read % kRingBytes, straight = std::min(n, kRingBytes - at);
    std::memcpy(At(in), ring.bytes + at, straight);
    std::memcpy(At(in) + straight, ring.bytes, n - straight);
    in.moved += n;
    ring.read.store(read + n, std::memory_order_release);
    if (in.moved >= sizeof(in.header) && in.header != in.bytes) error = kNcclInvalidUsage;
    return n > 0;
  }
  /// How much of it moves now: never across the header's end, and not always all that could.
  uint64_t Some(const Transfer& t, uint64_t most) {
    const uint64_t left =
        t.moved < sizeof(t.header) ? sizeof(t.header) - t.moved : sizeof(t.header) + t.bytes - t.moved;
    const uint64_t n = std::min(left, most);
    return n > 1 && random() % 4 == 0 ? 1 + random() % n : n;
  }
  /// Where it goes on.
  static char* At(Transfer& t) {
    return t.moved < sizeof(t.header) ? reinterpret_cast<char*>(&t.header) + t.moved
                                      : t.data + (t.moved - sizeof(t.header));
  }
};

namespace {

/// The communicators of this process; aborted ones stay for calls that a stream still has.
std::shared_ptr<NcclComm> Owned(NcclComm* comm, std::shared_ptr<NcclComm> add = nullptr) {
  static std::mutex mutex;
  static auto* all = new std::vector<std::shared_ptr<NcclComm>>;
  std::lock_guard lock(mutex);
  if (add != nullptr) return all->emplace_back(std::move(add));
  const auto found = std::ranges::find_if(*all, [&](const auto& one) { return one.get() == comm; });
  return found == all->end() ? nullptr : *found;
}

/// Calls between group_start and group_end are one.
struct Group {
  int depth = 0;
  std::shared_ptr<NcclComm> comm;
  Stream* stream = nullptr;
  std::vector<Transfer> outs, ins;
};
thread_local Group group;

int Add(NcclComm* comm, void* stream, std::vector<Transfer> outs, std::vector<Transfer> ins) {
  if (comm->error != kNcclSuccess) return comm->error;
  if (group.comm != nullptr && (group.comm.get() != comm || group.stream != stream)) return kNcclInvalidUsage;
  if (group.comm == nullptr) group.comm = Owned(comm);
  group.stream = static_cast<Stream*>(stream);
  group.outs.insert(group.outs.end(), outs.begin(), outs.end());
  group.ins.insert(group.ins.end(), ins.begin(), ins.end());
  if (group.depth > 0) return kNcclSuccess;
  Group whole = std::exchange(group, {});
  whole.stream->EnqueueAction(
      [comm = whole.comm, outs = std::move(whole.outs), ins = std::move(whole.ins)] { comm->Exchange(outs, ins); });
  return kNcclSuccess;
}

Transfer TransferOf(int peer, const void* data, size_t bytes) {
  return {peer, static_cast<char*>(const_cast<void*>(data)), bytes};
}

int GetVersion(int* version) {
  *version = 22900;
  return kNcclSuccess;
}
const char* ErrorText(int result) {
  if (result == kNcclInvalidUsage) return "ranks have other lengths or other calls (emulated NCCL)";
  return result == kNcclSuccess ? "no error" : "internal error (emulated NCCL)";
}

int GetUniqueId(NcclId* id) {
  const int descriptor = memfd_create("emulated-nccl", MFD_CLOEXEC);
  if (descriptor < 0 || ftruncate(descriptor, sizeof(Shared)) != 0) return kNcclInvalidUsage;
  std::snprintf(id->bytes, sizeof(id->bytes), "/proc/%d/fd/%d", getpid(), descriptor);
  return kNcclSuccess;
}

int InitRank(NcclComm** out, int ranks, NcclId id, int rank, NcclConfig*) {
  ReadHang();
  if (ranks > kMostRanks) return kNcclInvalidUsage;
  const int descriptor = open(id.bytes, O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return kNcclInvalidUsage;
  void* at = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  close(descriptor);
  if (at == MAP_FAILED) return kNcclInvalidUsage;
  auto comm = std::make_shared<NcclComm>();
  comm->rank = rank;
  comm->ranks = ranks;
  comm->shared = static_cast<Shared*>(at);
  comm->random.seed(seed + static_cast<uint64_t>(rank) * 1000003);
  if (int pid = 0, own = -1; std::sscanf(id.bytes, "/proc/%d/fd/%d", &pid, &own) == 2 && pid == getpid() && rank == 0)
    comm->id_descriptor = own;
  ++comm->shared->joined;
  *out = Owned(nullptr, std::move(comm)).get();
  return kNcclInProgress;
}

int Abort(NcclComm* comm) {
  comm->aborted = true;
  return kNcclSuccess;
}
int AsyncError(NcclComm* comm, int* result) {
  *result = comm->shared->joined < comm->ranks ? kNcclInProgress : comm->error.load();
  return kNcclSuccess;
}

int GroupStart() {
  ++group.depth;
  return kNcclSuccess;
}
int GroupEnd() {
  if (--group.depth > 0 || group.comm == nullptr) return kNcclSuccess;
  return Add(group.comm.get(), group.stream, {}, {});
}

int AllGather(const void* mine, void* all, size_t bytes, int, NcclComm* comm, void* stream) {
  std::vector<Transfer> outs, ins;
  for (int r = 0; r < comm->ranks; ++r) {
    outs.push_back(TransferOf(r, mine, bytes));
    ins.push_back(TransferOf(r, static_cast<char*>(all) + static_cast<size_t>(r) * bytes, bytes));
  }
  return Add(comm, stream, std::move(outs), std::move(ins));
}
int Broadcast(const void* from, void* to, size_t bytes, int, int root, NcclComm* comm, void* stream) {
  if (comm->rank != root) return Add(comm, stream, {}, {TransferOf(root, to, bytes)});
  std::vector<Transfer> outs;
  for (int r = 0; r < comm->ranks; ++r) {
    if (r != root) outs.push_back(TransferOf(r, from, bytes));
  }
  return Add(comm, stream, std::move(outs), {});
}
int Send(const void* data, size_t bytes, int, int peer, NcclComm* comm, void* stream) {
  return Add(comm, stream, {TransferOf(peer, data, bytes)}, {});
}
int Recv(void* data, size_t bytes, int, int peer, NcclComm* comm, void* stream) {
  return Add(comm, stream, {}, {TransferOf(peer, data, bytes)});
}

}  // namespace

const NcclApi& EmulatedNccl() {
  static const NcclApi api = {GetVersion, ErrorText, GetUniqueId, InitRank,  Abort, AsyncError,
                              GroupStart, GroupEnd,  AllGather,   Broadcast, Send,  Recv};
  return api;
}

void HangInEmulatedNccl(int rank, int64_t call) {
  hang_call = call;
  hang_rank = rank;
}
int HangingInEmulatedNccl() { return hanging; }
void SeedEmulatedNccl(uint64_t value) { seed = value; }

}  // namespace baton::gpu
