// The names kernels may use for what the hardware does. One list, two halves: device.cuh is PTX, host.h emulation.
//
// Kernel sources include this header and nothing of CUDA: no raw asm, no <<<>>>, no __shfl. Every function is listed,
// with its meaning, in host.h; tests/conformance has a micro-kernel for each.
#pragma once

#include "kernels/px/types.h"

#if defined(__CUDACC__)
#include "kernels/px/device.cuh"
#include "kernels/px/device90.cuh"
#else
#include "kernels/px/host.h"
#include "kernels/px/host90.h"
#endif
