// Memory, streams, events, graphs and launches: the few calls of a device runtime that Baton uses.
//
// One interface, two halves chosen by the compiler: under nvcc thin calls of the CUDA runtime, else the emulator, whose
// device memory is guarded, poisoned and closed to the host. Thread: one per stream; none allocates while it captures.
// Each thread has a device: streams, memory and events that it makes are that device's, and stay it.
// Failure: launches and copies never fail at the call; Synchronize reports the first error, and spoils a capture.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#else
#include "kernels/simt/grid.h"
#endif

namespace baton::gpu {

struct Dim {
  unsigned x = 1, y = 1, z = 1;
};

struct LaunchConfig {
  Dim grid;
  Dim block;
  size_t shared_bytes = 0;
  bool programmatic = false;  ///< PDL: may start before its predecessor ends; the kernel calls GridDependencyWait
  bool awaits_peers = false;  ///< the kernel calls WaitSystem
  Dim cluster;                ///< {1,1,1}: none
};

/// Whether MemoryKind::kDevice lies in this process (open to the host only while work of a stream runs).
#if defined(__CUDACC__)
constexpr bool kHostMemory = false;
#else
constexpr bool kHostMemory = true;
#endif

enum class MemoryKind {
  kDevice,
  kPeer,    ///< the device's, which other devices may be given (peer_memory.h)
  kShared,  ///< pinned, the host's, which devices reach too; it touches what no work that is running does
};

/// Device memory with an owner; data() is null when there was too little. Host half: 0xFF-filled, a guard page follows.
class Memory {
 public:
  explicit Memory(size_t bytes, MemoryKind kind = MemoryKind::kDevice);
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
#if !defined(__CUDACC__)
  /// Emulation: of kPeer the file that the pages are of, and the pages.
  int descriptor() const { return descriptor_; }
  const void* mapping() const { return mapping_; }
  size_t pages() const { return mapped_ - page_; }
#endif

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  void* mapping_ = nullptr;  ///< CUDA half: kShared alone
  size_t mapped_ = 0;
  int descriptor_ = -1;
  size_t page_ = 0;  ///< bytes of the guard
};

struct DeviceInfo {
  int multiprocessors = 1;
  size_t free_bytes = 0, total_bytes = 0;
  std::string architecture;  ///< "sm_90", or "emulated"
  std::string name;          ///< the product's
  std::string id;            ///< no other GPU of any machine has it
};
/// Of the calling thread's device.
DeviceInfo CurrentDevice();
/// Makes the device of that number, counted from 0, the calling thread's; the first that any thread uses is that of the
/// threads that use none. The reason, when there is none of that number or it cannot run the kernels that were built;
/// empty when it can.
std::string UseDevice(int number);
/// Makes the context of the calling thread's device, which UseDevice does without: in it are the device's memory and
/// all that is made. Why it cannot be made; empty: it is there.
std::string OpenDevice();
/// Makes a device that has been used the calling thread's.
void BindTo(int device);
/// From now on kernels are given addresses of the device only. Hardware needs no telling; the emulator, which lets
/// tests give kernels a vector, holds them to it.
void HoldKernelsToDeviceMemory();

class Event;
class Graph;

/// What a stream was asked for; what is recorded counts when it is replayed, as one.
struct StreamCounts {
  int64_t launches = 0, replays = 0, copies = 0, waits = 0;
};

/// Work in order. Destroying a stream waits for it.
/// What a device does not make, a stream or an event, says why in refusal(): then it is destroyed, and nothing else.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// Why it was not made, with the device and its memory; empty: it was.
  const std::string& refusal() const { return refusal_; }
  /// Makes the stream's device the calling thread's.
  void Bind() const;
  int device() const;
  void CopyAsync(void* dst, const void* src, size_t bytes);
  /// Copies from host memory that the caller may change as soon as this returns. Not while capturing.
  void Upload(void* dst, const void* src, size_t bytes);
  void FillAsync(void* dst, int byte, size_t bytes);
  /// Calls `work` when what was enqueued before is done; what follows waits for its return. On a thread of the
  /// runtime's; it must not use the runtime. Dropped after an error. Not while capturing.
  void Call(std::function<void()> work);
  void Record(Event& event);
  void Wait(const Event& event);
  /// Runs what was enqueued. Returns the empty string or the first error.
  std::string Synchronize();
  /// The error that the device is known to have, of which nothing is waited for. Thread: any.
  std::string Failure() const;
  /// Everything between is recorded, not run.
  void BeginCapture();
  Graph EndCapture();
  /// Ends a capture in which a call failed, which may have spoiled it.
  void DropCapture();
  void Replay(const Graph& graph);
  const StreamCounts& counts() const { return counts_; }
  void CountLaunch() { counts_.launches += !capturing_; }

#if defined(__CUDACC__)
  cudaStream_t handle() const { return handle_; }

 private:
  StreamCounts counts_;
  bool capturing_ = false;
  std::string refusal_;
  int device_ = 0;
  cudaStream_t handle_ = nullptr;
#else
  /// Emulation: how the grids of this stream are scheduled, and what they have done.
  void SetPolicy(const simt::Policy& policy);
  const simt::Counters& counters() const;
  const std::map<std::string, simt::Counters>& counters_by_kernel() const;  ///< see simt::Outcome::by_kernel
  void Enqueue(const LaunchConfig& config, std::function<void()> kernel);
  /// Emulation: work of a library, with the device's memory open. `begin` is called when the work comes into the
  /// stream (of a recorded one at each replay); what it returns is called until it says that the work is done.
  using Steps = std::function<bool()>;
  void EnqueueSteps(std::function<Steps()> begin);
  bool capturing() const { return capturing_; }
  /// As a library's call that fails in a capture.
  void SpoilCapture();
  struct State;

 private:
  StreamCounts counts_;
  bool capturing_ = false;
  std::string refusal_;
  std::shared_ptr<State> state_;
#endif
};

/// A point in a stream.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  const std::string& refusal() const { return refusal_; }  ///< as Stream's
  /// Waits on the calling thread until what was recorded last is done; never recorded: not at all. As
  /// Stream::Synchronize.
  std::string Synchronize();

 private:
  friend class Stream;
  std::string refusal_;
#if defined(__CUDACC__)
  cudaEvent_t handle_ = nullptr;
#else
  struct State;
  std::shared_ptr<State> state_;
#endif
};

/// A recorded sequence of work, replayed as a whole with the pointers it was recorded with.
class Graph {
 public:
  Graph(Graph&&) noexcept;
  ~Graph();
  /// False when the device had too little memory for it: then it cannot be replayed.
  bool held() const;

 private:
  friend class Stream;
  Graph();
#if defined(__CUDACC__)
  cudaGraphExec_t handle_ = nullptr;
#else
  struct State;
  std::shared_ptr<State> state_;
#endif
};

#if defined(__CUDACC__)
/// Tells the driver of the calling thread's device.
void BindThread();
/// Ends the process (common/device_failure.h) with the error, the call and the line when a CUDA call fails.
void CheckCuda(cudaError_t error, const char* call, int line);

template <typename... Parameters, typename... Arguments>
void Launch(Stream& stream, const LaunchConfig& config, void (*kernel)(Parameters...), Arguments&&... arguments) {
  stream.Bind();
  cudaLaunchAttribute attributes[2];
  unsigned count = 0;
  if (config.programmatic) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (config.cluster.x * config.cluster.y * config.cluster.z > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = config.cluster.x;
    attributes[count].val.clusterDim.y = config.cluster.y;
    attributes[count++].val.clusterDim.z = config.cluster.z;
  }
  cudaLaunchConfig_t launch = {};
  launch.gridDim = dim3(config.grid.x, config.grid.y, config.grid.z);
  launch.blockDim = dim3(config.block.x, config.block.y, config.block.z);
  launch.dynamicSmemBytes = config.shared_bytes;
  launch.stream = stream.handle();
  launch.attrs = attributes;
  launch.numAttrs = count;
  constexpr size_t kDefaultSharedLimit = 48 << 10;
  if (config.shared_bytes > kDefaultSharedLimit)
    CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(config.shared_bytes)),
              "cudaFuncSetAttribute", __LINE__);
  stream.CountLaunch();
  CheckCuda(cudaLaunchKernelEx(&launch, kernel, static_cast<Parameters>(arguments)...), "cudaLaunchKernelEx", __LINE__);
}
#else
template <typename... Parameters, typename... Arguments>
void Launch(Stream& stream, const LaunchConfig& config, void (*kernel)(Parameters...), Arguments&&... arguments) {
  // Arguments are copied, as a launch copies them; each thread of the grid calls the kernel with its own copy.
  stream.CountLaunch();
  stream.Enqueue(config, [=] { kernel(static_cast<std::decay_t<Parameters>>(arguments)...); });
}
#endif

}  // namespace baton::gpu
