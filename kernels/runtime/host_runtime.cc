// The emulated half of runtime.h: streams are queues; work runs when somebody waits for it.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "common/check.h"
#include "kernels/runtime/emulated_device.h"
#include "kernels/runtime/host_pin.h"
#include "kernels/runtime/runtime.h"
#include "kernels/simt/device_memory.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define BATON_ASAN
#include <sanitizer/asan_interface.h>
#endif
#endif

namespace baton::gpu {
namespace {

/// Around device memory an access is an error under AddressSanitizer, to the byte.
#if defined(BATON_ASAN)
void Poison(void* begin, void* end) {
  ASAN_POISON_MEMORY_REGION(begin, static_cast<char*>(end) - static_cast<char*>(begin));
}
void Unpoison(void* at, size_t bytes) { ASAN_UNPOISON_MEMORY_REGION(at, bytes); }
#else
void Poison(void*, void*) {}
void Unpoison(void*, size_t) {}
#endif

size_t PageBytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

/// One piece of a stream's work: a grid, a host action (copy, fill), or steps (an event's wait, a library's work).
struct Work {
  bool is_grid = false;
  LaunchConfig config;
  std::function<void()> body;
  std::function<Stream::Steps()> begin;
  Stream::Steps steps;
};

/// The devices, as emulated_device.h sets them up.
constexpr int kMostDevices = 16;
std::atomic<int> devices = 8;
std::atomic<size_t> total_bytes = size_t{8} << 30;
std::atomic<int64_t> allocations = 0, fail_at = 0;
std::atomic<size_t> bytes_of_a_graph = 0;
std::array<std::atomic<size_t>, kMostDevices> taken_by_graphs;
/// Streams of this thread that capture.
thread_local int captures = 0;
/// What runs on this thread runs ahead: nobody waits for it (StreamsDrift).
thread_local bool only_drifts = false;

std::atomic<int> first_used = -1;
thread_local int thread_device = -1;  ///< -1: the first used
int ThreadDevice() { return thread_device >= 0 ? thread_device : std::max(0, first_used.load()); }

size_t TotalBytes() {
  static const size_t by_environment = EmulatedBytesByEnvironment();
  return by_environment > 0 ? by_environment : total_bytes.load();
}
size_t FreeBytes() {
  const int device = ThreadDevice();
  const size_t total = TotalBytes(), taken = simt::DevicePageBytes(device) + taken_by_graphs[size_t(device)];
  return taken < total ? total - taken : 0;
}
/// Counts the call. Pinned memory of the host can be refused too, but takes nothing of the device.
bool Refused(size_t bytes, MemoryKind kind) {
  if (++allocations == fail_at) return true;
  return kind != MemoryKind::kShared && bytes > FreeBytes();
}

void CallBody(void* body) { (*static_cast<std::function<void()>*>(body))(); }

simt::GridShape Shape(Work& work) {
  const LaunchConfig& c = work.config;
  simt::GridShape s{.grid = {c.grid.x, c.grid.y, c.grid.z}, .block = {c.block.x, c.block.y, c.block.z}};
  s.shared_bytes = work.config.shared_bytes;
  s.kernel = &CallBody;
  s.arguments = &work.body;
  return s;
}

std::string CheckCluster(const LaunchConfig& c) {
  const unsigned size = c.cluster.x * c.cluster.y * c.cluster.z;
  if (size > 8) return "launch: clusters have at most 8 blocks";
  if (c.grid.x % c.cluster.x || c.grid.y % c.cluster.y || c.grid.z % c.cluster.z)
    return "launch: the grid is not a multiple of the cluster";
  return {};
}

}  // namespace

Memory::Memory(size_t bytes, MemoryKind kind) : bytes_(bytes) {
  BATON_CHECK(captures == 0, "memory is allocated while a stream of this thread captures");
  if (Refused(bytes, kind)) return;
  const size_t page = PageBytes(), usable = (bytes + 15) / 16 * 16;
  mapped_ = (usable + page - 1) / page * page + page;
  page_ = page;
  const bool peer = kind == MemoryKind::kPeer;
  if (peer) descriptor_ = memfd_create("emulated-gpu", MFD_CLOEXEC);
  if (!peer || ftruncate(descriptor_, static_cast<off_t>(mapped_)) == 0)
    mapping_ =
        mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, peer ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, descriptor_, 0);
  if (mapping_ == nullptr || mapping_ == MAP_FAILED) {
    mapping_ = nullptr;
    return;
  }
  char* end = static_cast<char*>(mapping_) + mapped_ - page;
  BATON_CHECK(mprotect(end, page, PROT_NONE) == 0);
  data_ = end - usable;
  std::memset(data_, 0xFF, usable);
  Poison(mapping_, data_);
  Poison(static_cast<char*>(data_) + bytes, end);
  simt::AddDevicePages({mapping_, mapped_ - page, data_, usable, kind == MemoryKind::kShared, ThreadDevice()});
}
Memory::~Memory() {
  if (mapping_ == nullptr) return;
  BATON_CHECK(captures == 0, "memory is freed while a stream of this thread captures");
  simt::RemoveDevicePages(mapping_);
  Unpoison(mapping_, mapped_);
  if (descriptor_ >= 0) {
    const simt::DeviceMemoryOpened work;
    if (mprotect(mapping_, mapped_ - page_, PROT_READ | PROT_WRITE) == 0)
      std::memset(mapping_, 0xEE, mapped_ - page_);  // who has it open reads nothing of what was
    close(descriptor_);
  }
  munmap(mapping_, mapped_);
}
Memory::Memory(Memory&& other) noexcept
    : data_(other.data_),
      bytes_(other.bytes_),
      mapping_(other.mapping_),
      mapped_(other.mapped_),
      descriptor_(other.descriptor_),
      page_(other.page_) {
  other.mapping_ = nullptr;
}

struct Event::State {
  std::weak_ptr<Stream::State> stream;  ///< that recorded it last
  uint64_t sequence = 0;                ///< that stream's work up to here
  uint64_t capture = 0;                 ///< in which it was recorded; 0: in none
};
struct Graph::State {
  std::vector<Work> work;
  size_t bytes = 0;  ///< of the device
  bool held = true;
  int device = 0;
  ~State() { taken_by_graphs[static_cast<size_t>(device)] -= bytes; }
};

struct Stream::State {
  explicit State(bool made) : made(made) {}
  const bool made;
  std::deque<Work> queue;
  std::vector<Work> captured;
  const int device = ThreadDevice();
  bool capturing = false, capture_lost = false;
  uint64_t capture = 0;  ///< the capture's number while one goes on
  uint64_t enqueued = 0, executed = 0;
  simt::Policy policy;
  simt::Counters counters;
  std::map<std::string, simt::Counters> by_kernel;
  std::string error;

  void Add(Work work) {
    BATON_CHECK(made, "a stream that was not made is given work");
    if (capturing) {
      captured.push_back(std::move(work));
      return;
    }
    if (work.begin) work.steps = std::exchange(work.begin, nullptr)();  // what begins it belongs to the graph
    queue.push_back(std::move(work));
    ++enqueued;
    LetStreamsDrift();
  }
  void AddAction(std::function<void()> action) { Add({.body = std::move(action)}); }

  void Finish(const simt::Outcome& outcome) {
    simt::AddCounters(counters, outcome.counters);
    simt::AddCounters(by_kernel, outcome.by_kernel);
    if (error.empty()) error = outcome.error;
  }

  /// Grids of which all but the first are programmatic.
  void RunChain(std::deque<Work>& chain) {
    std::vector<simt::GridShape> shapes;
    for (Work& work : chain) {
      if (error = CheckCluster(work.config); !error.empty()) return;
      shapes.push_back(Shape(work));
    }
    simt::RunKernelsOf(device);
    Finish(shapes.size() == 1 ? simt::RunGrid(shapes[0], policy) : simt::RunGridChain(shapes, policy));
  }

  /// Goes on with the first piece, and what is chained to it up to `sequence`. False: it is not done yet. After an
  /// error the rest is dropped, as after a sticky CUDA error.
  bool Go(uint64_t sequence) {
    if (only_drifts && queue.front().config.awaits_peers) return false;  // nobody here would wait for them
    if (error.empty() && queue.front().steps && !queue.front().steps()) return false;
    std::deque<Work> chain;
    const auto take = [&] {
      chain.push_back(std::move(queue.front()));
      queue.pop_front();
      ++executed;
    };
    take();
    if (!error.empty() || chain[0].steps) return true;
    if (!chain[0].is_grid) {
      chain[0].body();
      return true;
    }
    while (executed < sequence && !queue.empty() && queue.front().config.programmatic) take();
    RunChain(chain);
    return true;
  }

  /// Runs until `sequence` pieces have run.
  void RunUntil(uint64_t sequence) {
    if (error.empty()) error = EmulatedFault(device);
    LetStreamsDrift();
    if (executed >= sequence || queue.empty()) return;
    const simt::DeviceMemoryOpened opened;
    constexpr int kSpins = 64, kLongestSleepUs = 500;
    for (int idle = 0; executed < sequence && !queue.empty();) {
      ++going;
      idle = Go(sequence) ? 0 : idle + 1;
      --going;
      if (idle > 0) LetStreamsDrift();
      if (idle > kSpins) std::this_thread::sleep_for(std::chrono::microseconds(std::min(idle, kLongestSleepUs)));
    }
  }

  /// Does some pieces that need not wait.
  void Drift(int pieces) {
    if (going > 0 || capturing) return;
    ++going;
    only_drifts = true;
    while (pieces-- > 0 && !queue.empty() && Go(executed + 1)) {
    }
    only_drifts = false;
    --going;
  }

  int going = 0;  ///< calls of Go that have not returned
  static void LetStreamsDrift();
};

namespace {

/// See StreamsDrift.
struct Drifting {
  std::mt19937_64 random;
  std::vector<std::weak_ptr<Stream::State>> streams;
};
thread_local std::unique_ptr<Drifting> drifting;

}  // namespace

void Stream::State::LetStreamsDrift() {
  if (drifting == nullptr || drifting->random() % 2 == 0) return;
  const simt::DeviceMemoryOpened opened;
  const size_t first = drifting->random(), n = drifting->streams.size();
  for (size_t i = 0; i < n; ++i) {
    if (const auto stream = drifting->streams[(first + i) % n].lock())
      stream->Drift(static_cast<int>(drifting->random() % 4));
  }
}

StreamsDrift::StreamsDrift(uint64_t seed) {
  drifting = std::make_unique<Drifting>();
  drifting->random.seed(seed);
}
StreamsDrift::~StreamsDrift() { drifting.reset(); }

Stream::Stream() : refusal_(EmulatedMaking("a stream")), state_(std::make_shared<State>(refusal_.empty())) {
  if (drifting != nullptr) drifting->streams.push_back(state_);
}
Stream::~Stream() {
  if (state_->capturing) --captures;
  Synchronize();
}

void Stream::Bind() const { BindTo(state_->device); }
int Stream::device() const { return state_->device; }
std::string Stream::Failure() const { return EmulatedFault(state_->device); }

// Hardware records the copy of a vector too, and each replay copies from where the vector was.
void Stream::CopyAsync(void* dst, const void* src, size_t bytes) {
  for (const void* end : {static_cast<const void*>(dst), src})
    BATON_CHECK(!state_->capturing || simt::KernelMayTouch(end, bytes),
                "a copy of memory that no Memory owns is recorded");
  counts_.copies += !capturing_;
  NoteEmulatedCopy(src, bytes);
  state_->AddAction([=] { std::memmove(dst, src, bytes); });
}
void Stream::Upload(void* dst, const void* src, size_t bytes) {
  BATON_CHECK(!state_->capturing, "Upload while capturing");
  if (bytes == 0) return;
  ++counts_.copies;
  const auto* from = static_cast<const char*>(src);
  state_->AddAction(
      [dst, copy = std::vector<char>(from, from + bytes)] { std::memcpy(dst, copy.data(), copy.size()); });
}
void Stream::FillAsync(void* dst, int byte, size_t bytes) {
  state_->AddAction([=] { std::memset(dst, byte, bytes); });
}
void Stream::Call(std::function<void()> work) {
  BATON_CHECK(!state_->capturing, "Call while capturing");
  state_->AddAction(std::move(work));
}
void Stream::Record(Event& event) {
  BATON_CHECK(state_->made && event.refusal_.empty(), "a stream or an event that was not made is used");
  event.state_->stream = state_;
  event.state_->sequence = state_->enqueued;
  event.state_->capture = state_->capture;
}
void Stream::Wait(const Event& event) {
  auto other = event.state_->stream.lock();
  BATON_CHECK(
      other == nullptr || event.state_->capture == state_->capture,
      "a stream waits across the border of a capture: for an event recorded outside of it, or within another's");
  if (other == nullptr || other == state_) return;
  state_->Add({.begin = [other, sequence = event.state_->sequence] {
    return [=] {
      if (!only_drifts) other->RunUntil(sequence);
      return other->executed >= sequence;
    };
  }});
}
std::string Stream::Synchronize() {
  ++counts_.waits;
  if (state_->capturing) {
    state_->capture_lost = true;
    return "a stream that captures cannot be waited for";
  }
  state_->RunUntil(state_->enqueued);
  return state_->error;
}
void Stream::BeginCapture() {
  BATON_CHECK(!state_->capturing);
  state_->capturing = capturing_ = true;
  state_->capture_lost = false;
  ++captures;
  static std::atomic<uint64_t> captures_begun = 0;
  state_->capture = ++captures_begun;
}
Graph Stream::EndCapture() {
  BATON_CHECK(state_->capturing);
  state_->capturing = capturing_ = false;
  state_->capture = 0;
  --captures;
  BATON_CHECK(!state_->capture_lost, "a call failed, or the stream was waited for, while it captured");
  Graph graph;
  std::vector<Work> work = std::exchange(state_->captured, {});
  const size_t bytes = bytes_of_a_graph;
  Bind();
  graph.state_->device = state_->device;
  graph.state_->held = bytes <= FreeBytes();
  if (!graph.held()) return graph;
  taken_by_graphs[static_cast<size_t>(state_->device)] += graph.state_->bytes = bytes;
  graph.state_->work = std::move(work);
  return graph;
}
void Stream::DropCapture() {
  state_->capture_lost = false;
  EndCapture();
}
void Stream::SpoilCapture() { state_->capture_lost |= state_->capturing; }
void Stream::Replay(const Graph& graph) {
  BATON_CHECK(graph.held(), "the graph did not fit into the device's memory");
  ++counts_.replays;
  for (const Work& work : graph.state_->work) state_->Add(work);
}
void Stream::SetPolicy(const simt::Policy& policy) { state_->policy = policy; }
const simt::Counters& Stream::counters() const { return state_->counters; }
const std::map<std::string, simt::Counters>& Stream::counters_by_kernel() const { return state_->by_kernel; }
void Stream::Enqueue(const LaunchConfig& config, std::function<void()> kernel) {
  state_->Add({.is_grid = true, .config = config, .body = std::move(kernel)});
}

void Stream::EnqueueSteps(std::function<Steps()> begin) { state_->Add({.begin = std::move(begin)}); }

void SetEmulatedDevices(int count) {
  BATON_CHECK(count >= 1 && count <= kMostDevices);
  devices = count;
}
void SetEmulatedBytes(size_t bytes) { total_bytes = bytes; }
void SetEmulatedGraphBytes(size_t bytes) { bytes_of_a_graph = bytes; }
void FailAllocation(int64_t n) {
  allocations = 0;
  fail_at = n;
}
int64_t AllocationCount() { return allocations; }
int EmulatedDevice() { return ThreadDevice(); }

std::string UseDevice(int number) {
  if (std::string why = EmulatedRefusal(number, devices); !why.empty()) return why;
  int none = -1;
  first_used.compare_exchange_strong(none, number);
  thread_device = number;
  return {};
}
std::string OpenDevice() { return EmulatedMaking("a context"); }
void BindTo(int device) { thread_device = device; }
void HoldKernelsToDeviceMemory() { simt::HoldKernelsToDeviceMemory(true); }

DeviceInfo CurrentDevice() {
  const int device = ThreadDevice();
  return {2, FreeBytes(), TotalBytes(), "emulated", EmulatedName(device), "emulated-" + std::to_string(device)};
}

Event::Event() : refusal_(EmulatedMaking("an event")), state_(std::make_shared<State>()) {}
Event::~Event() = default;
std::string Event::Synchronize() {
  const auto stream = state_->stream.lock();
  if (stream == nullptr) return {};
  if (state_->capture != 0) return "an event that was recorded in a capture cannot be waited for";
  stream->RunUntil(state_->sequence);
  return stream->error;
}
Graph::Graph() : state_(std::make_shared<State>()) {}
Graph::Graph(Graph&&) noexcept = default;
Graph::~Graph() = default;
bool Graph::held() const { return state_ != nullptr && state_->held; }

}  // namespace baton::gpu
