// What this card gives at most, measured in the run that is compared with it.
#pragma once

#include <string>

namespace baton::bench {

struct Roofs {
  double copy_bytes_per_s = 0, read_bytes_per_s = 0;  ///< of the device's memory; a copied byte counts twice
  double flops_per_s = 0;                             ///< bf16 products into f32 sums
  double bytes_per_s() const { return copy_bytes_per_s > read_bytes_per_s ? copy_bytes_per_s : read_bytes_per_s; }
  /// The time that moving `bytes` and computing `flops` takes at least, in µs; 0 while nothing is measured.
  double FloorUs(double bytes, double flops) const {
    const double moved = bytes_per_s() > 0 ? bytes / bytes_per_s() : 0,
                 made = flops_per_s > 0 ? flops / flops_per_s : 0;
    return 1e6 * (moved > made ? moved : made);
  }
};

/// What a case of RoofCases says of them.
void TakeRoof(const std::string& kernel, double bytes, double flops, double us, Roofs& roofs);
/// Measures them on the calling thread's device; `tiny` on the emulator, where they mean nothing.
Roofs MeasureRoofs(bool tiny);

}  // namespace baton::bench
