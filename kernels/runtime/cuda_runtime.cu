// The CUDA half of runtime.h.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "common/device_failure.h"
#include "kernels/runtime/device_refusal.h"
#include "kernels/runtime/runtime.h"

namespace baton::gpu {

namespace {

std::atomic<int> first_used = -1;
thread_local int thread_device = -1;  ///< -1: the first used

int ThreadDevice() { return thread_device >= 0 ? thread_device : std::max(0, first_used.load()); }

// The runtime keeps a device per thread, and asks nothing of the driver when it stays the same.
cudaError_t TellDriver() {
  thread_local int bound = -1;
  const int device = ThreadDevice();
  if (bound == device) return cudaSuccess;
  const cudaError_t error = cudaSetDevice(device);
  bound = error == cudaSuccess ? device : -1;
  return error;
}

/// Empty when there is no error; else its words and the device's number, as --device counts.
std::string WordsOf(cudaError_t error, int device) {
  if (error == cudaSuccess) return {};
  return std::string(cudaGetErrorString(error)) + " (cuda:" + std::to_string(device) + ")";
}

/// Of a call that makes something on the thread's device. An error that stays is the device's end, as elsewhere.
std::string RefusalOf(cudaError_t error, const char* what, const char* call) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // forgets it, unless it stays
  size_t free = 0, total = 0;
  const cudaError_t asked = cudaMemGetInfo(&free, &total);
  if (asked == error && error != cudaErrorMemoryAllocation) CheckCuda(error, call, __LINE__);
  if (asked != cudaSuccess) {
    cudaGetLastError();
    free = total = 0;
  }
  return MakingRefusal(ThreadDevice(), what, cudaGetErrorString(error), free, total);
}

}  // namespace

#define BATON_CUDA(call) CheckCuda((call), #call, __LINE__)

void CheckCuda(cudaError_t error, const char* call, int line) {
  if (error == cudaSuccess) return;
  EndForDevice(WordsOf(error, ThreadDevice()) + ": " + call + ", line " + std::to_string(line));
}

void BindThread() { CheckCuda(TellDriver(), "cudaSetDevice", __LINE__); }

void BindTo(int device) {
  thread_device = device;
  BindThread();
}

// Shared memory is pinned and mapped, at one address for host and device, and not managed: not every virtual machine
// has managed memory, and pages that wander hide what a test's access costs.
Memory::Memory(size_t bytes, MemoryKind kind) : bytes_(bytes) {
  BindThread();
  const size_t size = bytes > 0 ? bytes : 1;
  const bool shared = kind == MemoryKind::kShared;
  const cudaError_t error =
      shared ? cudaHostAlloc(&mapping_, size, cudaHostAllocMapped | cudaHostAllocPortable) : cudaMalloc(&data_, size);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // forgets it: the next launch asks for the last error too
    data_ = mapping_ = nullptr;
    return;
  }
  CheckCuda(error, shared ? "cudaHostAlloc" : "cudaMalloc", __LINE__);
  if (shared) data_ = mapping_;
  BATON_CUDA(cudaMemset(data_, 0xFF, bytes));
  BATON_CUDA(cudaStreamSynchronize(nullptr));  // our streams do not wait for the default stream
}
Memory::~Memory() {
  if (mapping_ != nullptr)
    cudaFreeHost(mapping_);
  else if (data_ != nullptr)
    cudaFree(data_);
}
Memory::Memory(Memory&& other) noexcept : data_(other.data_), bytes_(other.bytes_), mapping_(other.mapping_) {
  other.data_ = other.mapping_ = nullptr;
}

Stream::Stream() : device_(ThreadDevice()) {
  BindThread();
  refusal_ = RefusalOf(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking), "a stream", "cudaStreamCreate");
}
Stream::~Stream() {
  if (!refusal_.empty()) return;
  cudaStreamSynchronize(handle_);
  cudaStreamDestroy(handle_);
}
void Stream::Bind() const { BindTo(device_); }
int Stream::device() const { return device_; }
void Stream::CopyAsync(void* dst, const void* src, size_t bytes) {
  Bind();
  counts_.copies += !capturing_;
  BATON_CUDA(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, handle_));
}
// From pageable memory: the driver stages the bytes before the call returns, but where the device reads pageable memory
// itself (HMM, ATS) it need not: then the copy is waited for. Shared memory is a target too.
void Stream::Upload(void* dst, const void* src, size_t bytes) {
  Bind();
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  BATON_CUDA(cudaStreamIsCapturing(handle_, &capture));
  if (capture != cudaStreamCaptureStatusNone) {
    std::fprintf(stderr, "Upload while capturing: a replay would read memory that is gone\n");
    std::abort();
  }
  if (bytes == 0) return;
  ++counts_.copies;
  BATON_CUDA(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, handle_));
  int reads_pageable = 0;
  BATON_CUDA(cudaDeviceGetAttribute(&reads_pageable, cudaDevAttrPageableMemoryAccess, device_));
  if (reads_pageable != 0) EndIfDeviceFailed(Synchronize());
}
void Stream::FillAsync(void* dst, int byte, size_t bytes) {
  Bind();
  BATON_CUDA(cudaMemsetAsync(dst, byte, bytes, handle_));
}
void Stream::Call(std::function<void()> work) {
  Bind();
  auto kept = std::make_unique<std::function<void()>>(std::move(work));
  const cudaHostFn_t call = [](void* data) {
    const std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(data));
    (*owned)();
  };
  BATON_CUDA(cudaLaunchHostFunc(handle_, call, kept.release()));
}
void Stream::Record(Event& event) { BATON_CUDA(cudaEventRecord(event.handle_, handle_)); }
void Stream::Wait(const Event& event) { BATON_CUDA(cudaStreamWaitEvent(handle_, event.handle_, 0)); }
std::string Stream::Synchronize() {
  if (!refusal_.empty()) return {};
  ++counts_.waits;
  return WordsOf(cudaStreamSynchronize(handle_), device_);
}
std::string Stream::Failure() const {
  const cudaError_t error = cudaStreamQuery(handle_);
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // forgets it, unless it stays
  const bool of_capture = error >= cudaErrorStreamCaptureUnsupported && error <= cudaErrorStreamCaptureWrongThread;
  return error == cudaErrorNotReady || of_capture ? "" : WordsOf(error, device_);
}
void Stream::BeginCapture() {
  Bind();
  BATON_CUDA(cudaStreamBeginCapture(handle_, cudaStreamCaptureModeThreadLocal));
  capturing_ = true;
}
Graph Stream::EndCapture() {
  cudaGraph_t recorded = nullptr;
  capturing_ = false;
  BATON_CUDA(cudaStreamEndCapture(handle_, &recorded));
  Graph graph;
  cudaError_t error = cudaGraphInstantiate(&graph.handle_, recorded, 0);
  cudaGraphDestroy(recorded);
  const bool made = error == cudaSuccess;
  // Else the first replay would take the memory that the graph needs on the device.
  if (made) error = cudaGraphUpload(graph.handle_, handle_);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // forgets it: the next launch asks for the last error too
    if (made) cudaGraphExecDestroy(graph.handle_);
    graph.handle_ = nullptr;
    return graph;
  }
  CheckCuda(error, made ? "cudaGraphUpload" : "cudaGraphInstantiate", __LINE__);
  return graph;
}
void Stream::DropCapture() {
  cudaGraph_t recorded = nullptr;
  capturing_ = false;
  if (cudaStreamEndCapture(handle_, &recorded) != cudaSuccess) cudaGetLastError();  // forgets it
  if (recorded != nullptr) cudaGraphDestroy(recorded);
}
void Stream::Replay(const Graph& graph) {
  Bind();
  ++counts_.replays;
  BATON_CUDA(cudaGraphLaunch(graph.handle_, handle_));
}

void HoldKernelsToDeviceMemory() {}

std::string UseDevice(int number) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  int driver = 0;  // stays so where there is none, which the error calls an old one
  if (error != cudaSuccess && cudaDriverGetVersion(&driver) == cudaSuccess) {
    if (std::string why = DriverRefusal(driver, CUDART_VERSION); !why.empty()) return why;
  }
  if (error != cudaSuccess) return cudaGetErrorString(error);
  if (std::string why = NumberRefusal(number, count); !why.empty()) return why;
  int none = -1;
  first_used.compare_exchange_strong(none, number);
  thread_device = number;
  int major = 0, minor = 0;
  for (const auto& [attribute, value] :
       {std::pair(cudaDevAttrComputeCapabilityMajor, &major), std::pair(cudaDevAttrComputeCapabilityMinor, &minor)}) {
    if (const cudaError_t asked = cudaDeviceGetAttribute(value, attribute, number); asked != cudaSuccess)
      return WordsOf(asked, number);
  }
  const std::string architecture = "sm_" + std::to_string(major * 10 + minor);
  return architecture == "sm_90" ? "" : "the kernels are built for sm_90a, this one is " + architecture;
}

std::string OpenDevice() {
  const int device = ThreadDevice();
  cudaError_t error = TellDriver();
  if (error == cudaSuccess) error = cudaFree(nullptr);
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // forgets it
  cudaDeviceProp properties;
  const bool known = cudaGetDeviceProperties(&properties, device) == cudaSuccess;
  return ContextRefusal(device, cudaGetErrorString(error), known ? properties.totalGlobalMem : 0);
}

DeviceInfo CurrentDevice() {
  cudaDeviceProp properties;
  DeviceInfo info;
  BindThread();
  BATON_CUDA(cudaGetDeviceProperties(&properties, ThreadDevice()));
  BATON_CUDA(cudaMemGetInfo(&info.free_bytes, &info.total_bytes));
  info.multiprocessors = properties.multiProcessorCount;
  info.architecture = "sm_" + std::to_string(properties.major * 10 + properties.minor);
  info.name = properties.name;
  for (const char byte : properties.uuid.bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    info.id += {kDigits[(byte >> 4) & 15], kDigits[byte & 15]};
  }
  return info;
}

Event::Event() {
  BindThread();
  refusal_ = RefusalOf(cudaEventCreateWithFlags(&handle_, cudaEventDisableTiming), "an event", "cudaEventCreate");
}
Event::~Event() {
  if (refusal_.empty()) cudaEventDestroy(handle_);
}
std::string Event::Synchronize() {
  return refusal_.empty() ? WordsOf(cudaEventSynchronize(handle_), ThreadDevice()) : "";
}

Graph::Graph() = default;
Graph::Graph(Graph&& other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
bool Graph::held() const { return handle_ != nullptr; }
Graph::~Graph() {
  if (handle_ != nullptr) cudaGraphExecDestroy(handle_);
}

}  // namespace baton::gpu
