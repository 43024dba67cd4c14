// Gated activations: out = act(gate) · up, gate and up the two halves of one row. SiLU, or GELU in its tanh form.
//
// Floor per row of n (bf16): read 4n, write 2n bytes; ~12n FLOP. 256 tokens of n = 14,336: 22 MB, 5.1 µs at 4.3 TB/s.
#pragma once

#include "kernels/cuda/warp.cuh"
#include "kernels/runtime/runtime.h"

namespace baton::cuda {

enum class Gate { kSilu, kGeluTanh };

template <typename Out>
struct GatedActivationParams {
  const px::bf16* gate_up;  ///< [rows, 2n]
  Out* out;                 ///< [rows, n], bf16 or e4m3 (times out_inverse_scale)
  int64_t gate_up_stride, out_stride;
  int rows, n;  ///< n a multiple of 8
  float out_inverse_scale;
};

constexpr int kGateThreads = 256;

template <Gate kGate>
PX_DEVICE float Activate(float x) {
  constexpr float kLog2E = 1.4426950408889634f;
  if constexpr (kGate == Gate::kSilu) {
    return px::Mul(x, px::Rcp(1.0f + px::Exp2(px::Mul(-kLog2E, x))));
  } else {
    constexpr float kSqrt2OverPi = 0.7978845608028654f;
    const float inner = px::Mul(kSqrt2OverPi, px::Fma(px::Mul(px::Mul(x, x), x), 0.044715f, x));
    return px::Mul(px::Mul(0.5f, x), 1.0f + px::Tanh(inner));
  }
}

template <Gate kGate, typename Out>
PX_KERNEL void PX_BOUNDS(kGateThreads) GatedActivationKernel(const PX_GRID_CONST GatedActivationParams<Out> p) {
  const int c = (px::BlockX() * kGateThreads + px::ThreadX()) * 8, row = px::BlockY();
  px::GridDependencyWait();
  if (c < p.n) {
    const px::bf16* gate_row = p.gate_up + row * p.gate_up_stride;
    float gate[8], up[8];
    LoadVector(gate_row + c, gate);
    LoadVector(gate_row + p.n + c, up);
    PX_UNROLL
    for (int i = 0; i < 8; ++i) gate[i] = px::Mul(px::Mul(Activate<kGate>(gate[i]), up[i]), p.out_inverse_scale);
    StoreVector(p.out + row * p.out_stride + c, gate);
  }
  px::GridDependencyRelease();
}

template <Gate kGate, typename Out>
void LaunchGatedActivation(gpu::Stream& stream, const GatedActivationParams<Out>& p, bool programmatic = false) {
  constexpr int kMaxGridY = 65535;
  const int blocks = (p.n + kGateThreads * 8 - 1) / (kGateThreads * 8);
  for (int first = 0; first < p.rows; first += kMaxGridY) {
    GatedActivationParams<Out> part = p;
    part.rows = p.rows - first < kMaxGridY ? p.rows - first : kMaxGridY;
    part.gate_up += first * p.gate_up_stride;
    part.out += first * p.out_stride;
    gpu::Launch(stream,
                {.grid = {static_cast<unsigned>(blocks), static_cast<unsigned>(part.rows)},
                 .block = {kGateThreads},
                 .programmatic = programmatic},
                &GatedActivationKernel<kGate, Out>, part);
  }
}

}  // namespace baton::cuda
