// Numbers that no weight may be: infinities and NaN. They are looked for where weights are read anyway.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>

#include "common/dtype.h"
#include "kernels/quantized/weight.h"

namespace baton::engine {

/// Index of the first of n values (f32, bf16, f16 or e4m3; not aligned) that is an infinity or NaN; −1: all are finite.
int64_t FirstNotFinite(DType type, const void* values, int64_t n);

struct CodePlace {
  int64_t row, input;
};
/// The first code of a weight that stands for no finite number, by its scale or, of e4m3, by itself.
std::optional<CodePlace> FirstNotFinite(const kernels::QuantizedWeight& weight);

/// The lowest of the places that several threads found.
class LowestPlace {
 public:
  void Note(int64_t place) {
    int64_t lowest = lowest_;
    while (place < lowest && !lowest_.compare_exchange_weak(lowest, place)) {
    }
  }
  std::optional<int64_t> found() const { return lowest_ == kNone ? std::nullopt : std::optional(lowest_.load()); }

 private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> lowest_ = kNone;
};

}  // namespace baton::engine
