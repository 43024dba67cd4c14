// Cosines and sines of every position asked for so far, on the device, per set of rope parameters.
#pragma once

#include <cmath>
#include <deque>
#include <vector>

#include "kernels/cuda/host/scratch.h"
#include "kernels/device_rooms.h"

namespace baton::cuda {

/// The angle is the f32 product position · inv_freq, as in the reference models. Thread: the executor's.
class RopeCache {
 public:
  explicit RopeCache(gpu::Stream& stream) : stream_(stream) {}

  /// [positions, rotary_dim]: cosines, then sines, attention factor applied.
  const float* Get(const kernels::RopeParams& rope, int positions) {
    Entry& e = Find(rope);
    if (e.positions < positions) Fill(e, (positions + 1023) / 1024 * 1024);
    return e.data;
  }
  /// The whole table at once. ResourceExhausted with both numbers.
  absl::Status Reserve(const kernels::RopeParams& rope, int positions) {
    Entry& e = Find(rope);
    if (positions <= e.positions) return absl::OkStatus();
    BATON_RETURN_IF_ERROR(e.memory.Reserve(static_cast<size_t>(kernels::RotaryBytes(rope, positions)),
                                           StrCat("the table of ", positions, " rotary angles")));
    Fill(e, positions);
    return absl::OkStatus();
  }
  int64_t bytes() const {
    int64_t sum = 0;
    for (const Entry& e : entries_) sum += e.memory.bytes();
    return sum;
  }

 private:
  struct Entry {
    Entry(const kernels::RopeParams& r, gpu::Stream& stream) : rope(r), memory(stream) {}
    kernels::RopeParams rope;
    int positions = 0;
    Scratch memory;
    const float* data = nullptr;
  };
  static void Fill(Entry& e, int positions) {
    e.positions = positions;
    std::vector<float> table;
    table.reserve(static_cast<size_t>(positions) * static_cast<size_t>(e.rope.rotary_dim));
    const double factor = e.rope.attention_factor;
    for (int p = 0; p < positions; ++p) {
      for (float f : e.rope.inv_freq)
        table.push_back(static_cast<float>(std::cos(static_cast<double>(static_cast<float>(p) * f)) * factor));
      for (float f : e.rope.inv_freq)
        table.push_back(static_cast<float>(std::sin(static_cast<double>(static_cast<float>(p) * f)) * factor));
    }
    e.data = e.memory.Upload(std::span<const float>(table));
  }
  Entry& Find(const kernels::RopeParams& rope) {
    for (Entry& e : entries_)
      if (kernels::SameAngles(e.rope, rope)) return e;
    return entries_.emplace_back(rope, stream_);
  }

  gpu::Stream& stream_;
  std::deque<Entry> entries_;
};

}  // namespace baton::cuda
