// cuBLASLt for the emulated devices: products of bf16, and of e4m3 by each kind of scales, with sums in f32, the
// weights transposed; with a bias or without.
//
// As unkind as the library may be. What it multiplies is read, and what it adds to is kept, only when the work comes to
// its turn; until the product is complete its target has NaNs, and so has the workspace that it needs. How
// products are added depends on the whole problem, the number of rows among it: a row has other bits in another batch,
// and none has those of Baton's own kernels. Refused, as there: layouts that do not go together, pointers and strides
// that are less aligned than the preference said (256 bytes where it said nothing), an algorithm that was proposed for
// another problem, less workspace than it needs, a bias of another type, or less aligned than the one that was there
// when the algorithm was proposed, scales of bf16, scales that do not go together, that an older version does not know,
// or that lie at no multiple of 16 bytes. Ends the process: memory that is not the device's. A handle that is
// made while a stream captures spoils nothing here; it takes memory there.
#pragma once

#include <cstdint>

#include "kernels/runtime/cublas_lt.h"

namespace baton::gpu {

const CublasLtApi& EmulatedCublasLt();
/// It, with BATON_EMULATED_CUBLASLT=1; else null.
const CublasLtApi* EmulatedCublasLtByEnvironment();

/// Products that have been asked for in this process, and refused ones among them.
int64_t EmulatedLtCalls();
int64_t EmulatedLtRefusals();
/// For tests: the `call`-th call of `multiply` from now on, counted from 1, answers `result`; 0: none does.
void FailEmulatedLt(int64_t call, int result);
/// For tests: no algorithm is proposed for products of more than so many columns of b; 0: for all.
void SupportEmulatedLtUpTo(int64_t columns);
/// For tests: the version that it says, and of which it is; 0: the newest.
void SetEmulatedLtVersion(size_t version);

}  // namespace baton::gpu
