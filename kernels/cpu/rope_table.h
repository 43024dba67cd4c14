// Cosines and sines of every (position, frequency) asked for so far, per set of rope parameters.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops.h"

namespace baton::kernels::cpu {

/// One per CpuOps; the executor's thread. The angle is the f32 product position · inv_freq, as in the reference models.
class RopeTable {
 public:
  struct Rows {
    const float* cosines;  ///< [positions, rotary_dim / 2], attention_factor applied
    const float* sines;
  };
  /// Rows for positions [0, positions); valid until the next call.
  Rows Get(const RopeParams& rope, int64_t positions);

 private:
  struct Entry {
    RopeParams rope;
    int64_t positions = 0;
    std::vector<float> cosines, sines;
  };
  Entry& Find(const RopeParams& rope);

  std::vector<Entry> entries_;
};

}  // namespace baton::kernels::cpu
