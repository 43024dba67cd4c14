// What this machine can do at most, measured in the same run as everything it is compared with.
#pragma once

namespace baton::bench {

/// f32 fused multiply-adds on registers only, in FLOP/s over `threads` threads.
double PeakF32Flops(int threads);
/// Bytes per second read from memory (far more than the caches hold) by `threads` threads.
double ReadBandwidth(int threads);

}  // namespace baton::bench
