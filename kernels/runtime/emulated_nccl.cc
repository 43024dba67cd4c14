#include "kernels/runtime/emulated_nccl.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "common/check.h"
#include "kernels/runtime/emulated_device.h"
#include "kernels/runtime/emulated_nccl_faults.h"
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
  std::atomic<bool> gone[kMostRanks];  ///< ranks that failed or were aborted
  Ring rings[kMostRanks][kMostRanks];  ///< [from][to]
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

/// One transfer of a call, with its progress: a header of 8 bytes, which is the length, goes first.
struct Transfer {
  int peer = 0;
  char* data = nullptr;
  uint64_t bytes = 0, moved = 0, header = 0;
  uint64_t end = 0;                ///< of the last byte in the ring
  std::vector<char> arrived = {};  ///< what is to stand at `data` when the call is complete
  bool done() const { return moved == sizeof(header) + bytes; }
};

}  // namespace

struct NcclComm {
  int rank = 0, ranks = 0, id_descriptor = -1;
  Shared* shared = nullptr;
  std::atomic<bool> aborted = false;
  std::atomic<int> error = kNcclSuccess;
  bool rendezvous = false;       ///< a send is complete when its peer has taken all of it
  bool hears_of_others = false;  ///< of ranks that fail: else it waits for them for ever
  std::atomic<int64_t> issued = 0, complete = 0;
  std::atomic<int> recorded = 0;  ///< calls that graphs have
  std::mt19937_64 random;         ///< of the thread that makes the calls
  // A call that does not block yet, the thread that made it, and the calls that were made outside of captures: by
  // their peers and lengths, what is sent first. Guarded by mutex.
  std::mutex mutex;
  std::set<std::vector<std::pair<int, uint64_t>>> connected;
  std::function<void()> under_way;
  int asks = 0;  ///< until it is on the stream
  std::thread::id caller;

  ~NcclComm() {
    if (shared != nullptr) munmap(shared, sizeof(Shared));
    if (id_descriptor >= 0) close(id_descriptor);
  }
  void Break(int with) {
    if (error == kNcclSuccess) error = with;
    shared->gone[rank] = true;
  }
};

namespace {

/// A call on its way. Its peers come in any order; whatever the order, everything moves at once. Where it is to write
/// changes until it is complete, and has what arrived only then; what it sends is read until then.
class Exchange {
 public:
  Exchange(std::shared_ptr<NcclComm> comm, std::vector<Transfer> outs, std::vector<Transfer> ins)
      : comm_(std::move(comm)), number_(comm_->issued++), outs_(std::move(outs)), ins_(std::move(ins)) {
    random_.seed(comm_->random());
  }

  /// Goes on. True: it has ended.
  bool Step() {
    if (comm_->complete < number_) return false;  // calls of a communicator run in their order, on any streams
    if (!begun_) Begin();
    if (!Over()) {
      if (pauses_ > 0) return --pauses_, false;
      const bool left_alone = WaitsForTheGone();  // what they had sent is still there
      while (!hangs_ && Move()) {
      }
      if (fails_) comm_->Break(kNcclInternalError);
      if (left_alone && comm_->hears_of_others && WaitsForTheGone()) comm_->Break(kNcclRemoteError);
      if (Random(8) == 0) Soil();
      if (!Over() && (hangs_ || !Complete())) return false;
      if (!Over() && late_ > 0) return --late_, false;
    }
    if (!Over()) {
      for (const Transfer& in : ins_) std::copy(in.arrived.begin(), in.arrived.end(), in.data);
    }
    nccl_faults.hanging -= hangs_ ? 1 : 0;
    ++comm_->complete;
    return true;
  }

 private:
  bool Over() const { return comm_->aborted || comm_->error != kNcclSuccess; }
  bool Sent(const Transfer& out) const {
    const Ring& ring = comm_->shared->rings[comm_->rank][out.peer];
    return out.done() && (!comm_->rendezvous || out.peer == comm_->rank || ring.read >= out.end);
  }
  bool Complete() const {
    return std::ranges::all_of(ins_, &Transfer::done) &&
           std::ranges::all_of(outs_, [&](const Transfer& out) { return Sent(out); });
  }
  bool WaitsForTheGone() const {
    const auto gone = [&](const Transfer& t) { return comm_->shared->gone[t.peer].load(); };
    return std::ranges::any_of(ins_, [&](const Transfer& in) { return gone(in) && !in.done(); }) ||
           std::ranges::any_of(outs_, [&](const Transfer& out) { return gone(out) && !Sent(out); });
  }
  void Begin() {
    begun_ = true;
    hangs_ = nccl_faults.hang.Hits(comm_->rank, number_);
    fails_ = nccl_faults.failure.Hits(comm_->rank, number_);
    nccl_faults.hanging += hangs_ ? 1 : 0;
    pauses_ = Random(8) == 0 ? static_cast<int>(Random(4)) : 0;
    late_ = Random(4) == 0 ? static_cast<int>(Random(4)) : 0;
    for (Transfer& in : ins_) in.arrived.resize(in.bytes);
    MoveToSelf();
    Soil();
  }
  uint64_t Random(uint64_t below) { return random_() % below; }
  /// Where it is to write has nothing of use; a part that is there already (a rank's own, gathered in place) stays.
  void Soil() {
    for (const Transfer& in : ins_) {
      if (!in.arrived.empty()) std::memset(in.data, static_cast<int>(0xFF - Random(2)), in.bytes);
    }
  }
  /// What a rank sends itself, in order.
  void MoveToSelf() {
    const auto next = [&](std::vector<Transfer>& all) {
      return std::ranges::find_if(all, [&](const Transfer& t) { return t.peer == comm_->rank && !t.done(); });
    };
    for (auto out = next(outs_), in = next(ins_); out != outs_.end() && in != ins_.end();
         out = next(outs_), in = next(ins_)) {
      if (in->data == out->data) in->arrived.clear();
      std::copy_n(out->data, std::min(in->arrived.size(), out->bytes), in->arrived.begin());
      for (Transfer* t : {&*out, &*in}) t->moved = sizeof(t->header) + t->bytes;
    }
  }
  bool Move() {
    bool moved = false;
    for (size_t i = 0; i < outs_.size(); ++i) moved |= Next(outs_, i) && Push(outs_[i]);
    for (size_t i = 0; i < ins_.size(); ++i) moved |= Next(ins_, i) && Pull(ins_[i]);
    return moved;
  }
  /// Whether it is the one that moves: those before it from or to the same rank are done, and it is not.
  static bool Next(const std::vector<Transfer>& all, size_t i) {
    return !all[i].done() && std::none_of(all.begin(), all.begin() + static_cast<ptrdiff_t>(i),
                                          [&](const Transfer& t) { return t.peer == all[i].peer && !t.done(); });
  }
  bool Push(Transfer& out) {
    Ring& ring = comm_->shared->rings[comm_->rank][out.peer];
    const uint64_t written = ring.written.load(std::memory_order_relaxed), room = kRingBytes - (written - ring.read);
    out.header = out.bytes;
    const uint64_t n = fails_ && out.moved >= sizeof(out.header) ? 0 : Some(out, room);  // none gets all of it
    const uint64_t at = written % kRingBytes, straight = std::min(n, kRingBytes - at);
    const char* from = At(out, out.data);
    std::memcpy(ring.bytes + at, from, straight);
    std::memcpy(ring.bytes, from + straight, n - straight);
    out.moved += n;
    out.end = written + n;
    ring.written.store(out.end, std::memory_order_release);
    return n > 0;
  }
  bool Pull(Transfer& in) {
    Ring& ring = comm_->shared->rings[in.peer][comm_->rank];
    const uint64_t read = ring.read.load(std::memory_order_relaxed), there = ring.written - read;
    const uint64_t n = Some(in, there);
    const uint64_t at = read % kRingBytes, straight = std::min(n, kRingBytes - at);
    char* to = At(in, in.arrived.data());
    std::memcpy(to, ring.bytes + at, straight);
    std::memcpy(to + straight, ring.bytes, n - straight);
    in.moved += n;
    ring.read.store(read + n, std::memory_order_release);
    if (in.moved >= sizeof(in.header) && in.header != in.bytes) comm_->error = kNcclInvalidUsage;
    return n > 0 && comm_->error == kNcclSuccess;
  }
  /// How much of it moves now: never across the header's end, and not always all that could.
  uint64_t Some(const Transfer& t, uint64_t most) {
    const uint64_t left =
        t.moved < sizeof(t.header) ? sizeof(t.header) - t.moved : sizeof(t.header) + t.bytes - t.moved;
    const uint64_t n = std::min(left, most);
    return n > 1 && Random(4) == 0 ? 1 + Random(n) : n;
  }
  /// Where it goes on.
  static char* At(Transfer& t, char* data) {
    return t.moved < sizeof(t.header) ? reinterpret_cast<char*>(&t.header) + t.moved
                                      : data + (t.moved - sizeof(t.header));
  }

  const std::shared_ptr<NcclComm> comm_;
  const int64_t number_;
  std::vector<Transfer> outs_, ins_;
  std::mt19937_64 random_;
  bool begun_ = false, hangs_ = false, fails_ = false;
  int pauses_ = 0, late_ = 0;
};

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

/// A communicator that was aborted is no more: hardware's NCCL would read freed memory.
void CheckAlive(const NcclComm* comm) { BATON_CHECK(!comm->aborted, "a call of NCCL with an aborted communicator"); }

/// On the stream at once, or when the caller has asked some times how it is.
int Enqueue(Group whole) {
  NcclComm& comm = *whole.comm;
  auto enqueue = [whole] {
    std::shared_ptr<void> held;  // by the graph
    if (whole.stream->capturing()) {
      ++whole.comm->recorded;
      held = {nullptr, [comm = whole.comm](void*) { --comm->recorded; }};
    }
    whole.stream->EnqueueSteps([whole, held] {
      return [call = std::make_shared<Exchange>(whole.comm, whole.outs, whole.ins)] { return call->Step(); };
    });
  };
  if (comm.random() % 4 != 0) {
    enqueue();
    return kNcclSuccess;
  }
  comm.under_way = enqueue;
  comm.asks = 1 + static_cast<int>(comm.random() % 3);
  comm.caller = std::this_thread::get_id();
  return kNcclInProgress;
}

/// A GPU that has failed, or what a test wants to go wrong.
void RefuseSome(NcclComm& comm, bool capturing) {
  int rank = comm.rank;
  if (!EmulatedFault(EmulatedDevice()).empty()) {
    nccl_faults.last_error = "Cuda failure 'the GPU has failed'";
  } else if (capturing == nccl_faults.refused_in_capture &&
             nccl_faults.refused_rank.compare_exchange_strong(rank, -1)) {
    nccl_faults.last_error = "Cuda failure 2 'out of memory'";
  } else {
    return;
  }
  comm.Break(kNcclUnhandledCudaError);
}

/// The group's calls may be made: for the first time they connect ranks, which they cannot in a capture.
bool Connects(NcclComm& comm) {
  std::vector<std::pair<int, uint64_t>> calls;
  for (const Transfer& out : group.outs) calls.emplace_back(out.peer, out.bytes);
  for (const Transfer& in : group.ins) calls.emplace_back(-1 - in.peer, in.bytes);
  if (!group.stream->capturing()) return comm.connected.insert(calls), true;
  if (comm.connected.contains(calls)) return true;
  nccl_faults.last_error = "Cuda failure 'operation not permitted when stream is capturing'";
  comm.Break(kNcclUnhandledCudaError);
  return false;
}

int Add(NcclComm* comm, void* stream, std::vector<Transfer> outs, std::vector<Transfer> ins) {
  CheckAlive(comm);
  std::lock_guard lock(comm->mutex);
  if (comm->under_way != nullptr) comm->error = kNcclInvalidUsage;  // its caller did not wait for it
  RefuseSome(*comm, static_cast<Stream*>(stream)->capturing());
  if (comm->error != kNcclSuccess) {
    static_cast<Stream*>(stream)->SpoilCapture();
    if (group.depth == 0) group = {};
    return comm->error;
  }
  if (group.comm != nullptr && (group.comm.get() != comm || group.stream != stream)) return kNcclInvalidUsage;
  if (group.comm == nullptr) group.comm = Owned(comm);
  group.stream = static_cast<Stream*>(stream);
  group.outs.insert(group.outs.end(), outs.begin(), outs.end());
  group.ins.insert(group.ins.end(), ins.begin(), ins.end());
  if (group.depth > 0) return kNcclSuccess;
  if (!Connects(*comm)) return std::exchange(group, {}).stream->SpoilCapture(), comm->error.load();
  return Enqueue(std::exchange(group, {}));
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
  if (result == kNcclUnhandledCudaError) return "unhandled cuda error (emulated NCCL)";
  if (result == kNcclRemoteError) return "another rank has failed (emulated NCCL)";
  return result == kNcclSuccess ? "no error" : "internal error (emulated NCCL)";
}

const char* LastError(NcclComm*) { return nccl_faults.last_error; }

int GetUniqueId(NcclId* id) {
  const int descriptor = memfd_create("emulated-nccl", MFD_CLOEXEC);
  if (descriptor < 0 || ftruncate(descriptor, sizeof(Shared)) != 0) return kNcclInvalidUsage;
  std::snprintf(id->bytes, sizeof(id->bytes), "/proc/%d/fd/%d", getpid(), descriptor);
  return kNcclSuccess;
}

int InitRank(NcclComm** out, int ranks, NcclId id, int rank, NcclConfig*) {
  nccl_faults.Read();
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
  comm->random.seed(nccl_faults.seed + static_cast<uint64_t>(rank) * 1000003);
  comm->rendezvous = nccl_faults.seed % 2 == 1;  // as the group's other ranks
  comm->hears_of_others = comm->random() % 2 == 0;
  if (int pid = 0, own = -1; std::sscanf(id.bytes, "/proc/%d/fd/%d", &pid, &own) == 2 && pid == getpid() && rank == 0)
    comm->id_descriptor = own;
  ++comm->shared->joined;
  *out = Owned(nullptr, std::move(comm)).get();
  return kNcclInProgress;
}

int Abort(NcclComm* comm) {
  CheckAlive(comm);
  comm->shared->gone[comm->rank] = true;
  comm->aborted = true;
  constexpr int kPatienceMs = 60'000;
  ++nccl_faults.aborting;
  for (int ms = 0; comm->recorded > 0; ++ms) {
    BATON_CHECK(ms < kPatienceMs, "an abort of NCCL waits for ever: ", comm->recorded.load(),
                " calls of the communicator are in graphs");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  --nccl_faults.aborting;
  return kNcclSuccess;
}
int AsyncError(NcclComm* comm, int* result) {
  CheckAlive(comm);
  std::lock_guard lock(comm->mutex);
  *result = comm->shared->joined < comm->ranks || comm->under_way != nullptr ? kNcclInProgress : comm->error.load();
  if (comm->under_way == nullptr || comm->caller != std::this_thread::get_id() || --comm->asks > 0) return kNcclSuccess;
  std::exchange(comm->under_way, nullptr)();
  *result = comm->error;
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
  static const NcclApi api = {GetVersion, ErrorText, LastError, GetUniqueId, InitRank, Abort, AsyncError,
                              GroupStart, GroupEnd,  AllGather, Broadcast,   Send,     Recv};
  return api;
}

}  // namespace baton::gpu
