// Cosines and sines of every position asked for so far, on the device, per set of rope parameters.
#pragma once

#include <cmath>
#include <deque>
#include <vector>

#include "kernels/cuda/host/scratch.h"
#include "kernels/ops.h"

namespace baton::cuda {

/// The angle is the f32 product position · inv_freq, as in the reference models. Thread: the executor's.
class RopeCache {
 public:
  explicit RopeCache(gpu::Stream& stream) : stream_(stream) {}

  /// [positions, rotary_dim]: cosines, then sines, attention factor applied.
  const float* Get(const kernels::RopeParams& rope, int positions) {
    Entry& e = Find(rope);
    if (e.positions < positions) {
      e.positions = (positions + 1023) / 1024 * 1024;
      std::vector<float> table;
      table.reserve(static_cast<size_t>(e.positions) * rope.rotary_dim);
      const double factor = rope.attention_factor;
      for (int p = 0; p < e.positions; ++p) {
        for (float f : rope.inv_freq)
          table.push_back(static_cast<float>(std::cos(static_cast<double>(static_cast<float>(p) * f)) * factor));
        for (float f : rope.inv_freq)
          table.push_back(static_cast<float>(std::sin(static_cast<double>(static_cast<float>(p) * f)) * factor));
      }
      e.data = e.memory.Upload(std::span<const float>(table));
    }
    return e.data;
  }

 private:
  struct Entry {
    Entry(const kernels::RopeParams& r, gpu::Stream& stream) : rope(r), memory(stream) {}
    kernels::RopeParams rope;
    int positions = 0;
    Scratch memory;
    const float* data = nullptr;
  };
  Entry& Find(const kernels::RopeParams& rope) {
    for (Entry& e : entries_)
      if (e.rope.rotary_dim == rope.rotary_dim && e.rope.attention_factor == rope.attention_factor &&
          e.rope.inv_freq == rope.inv_freq)
        return e;
    return entries_.emplace_back(rope, stream_);
  }

  gpu::Stream& stream_;
  std::deque<Entry> entries_;
};

}  // namespace baton::cuda
