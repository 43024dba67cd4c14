// The inputs of steps on their way to the device: packed bytes, through one of two halves of pinned memory, into one
// piece of the device's. The stream orders that one: a step's copy waits for the kernels of the step before it.
//
// Between two decode steps, of which the second is given while the first runs, the GPU has one copy in, one replay and
// one copy out, and no word of the host's; the bar is 40 µs of idle time. For one sequence with room for 8,192 tokens
// the copy in is 6 KB (513 numbers of blocks, attention's lists, what to draw), for 256 behind 1,200 tokens 0.7 MB: at
// 50 GB/s and 2 µs to begin with 2 and 16 µs; tokens out 2. The stream goes from copies to kernels and back three
// times, ~3 µs each (an empty launch by itself took 3.2 on an H100): 13 and 27 µs.
#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <span>

#include "kernels/cuda/host/pinned_memory.h"
#include "kernels/cuda/host/scratch.h"

namespace baton::cuda {

/// Thread: the executor's.
class StepArena {
 public:
  explicit StepArena(gpu::Stream& stream) : stream_(stream), on_device_(stream) {}

  /// Steps of up to `bytes` allocate nothing afterwards. ResourceExhausted with the numbers.
  absl::Status Reserve(size_t bytes) {
    BATON_RETURN_IF_ERROR(on_device_.Reserve(bytes, "the inputs of a step"));
    for (std::unique_ptr<Pinned>& half : halves_) {
      BATON_ASSIGN_OR_RETURN(half, Pinned::Make(stream_, bytes, "the inputs of a step"));
    }
    return absl::OkStatus();
  }
  /// Where the bytes will be on the device, until the next call. The host goes on while they are copied: it waits only
  /// when the copy before the last one is not done.
  char* Send(std::span<const char> bytes) {
    Pinned* half = halves_[next_++ % halves_.size()].get();
    if (half == nullptr || half->memory.bytes() < bytes.size()) return on_device_.Upload(bytes);
    half->Await();
    std::memcpy(half->memory.data(), bytes.data(), bytes.size());
    void* to = on_device_.Ensure(bytes.size());
    stream_.CopyAsync(to, half->memory.data(), bytes.size());
    stream_.Record(half->copied);
    return static_cast<char*>(to);
  }
  int64_t bytes() const { return on_device_.bytes(); }

 private:
  gpu::Stream& stream_;
  Scratch on_device_;
  std::array<std::unique_ptr<Pinned>, 2> halves_;
  size_t next_ = 0;
};

}  // namespace baton::cuda
