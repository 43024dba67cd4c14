// cuBLASLt, found at run time: nothing of it is linked.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/runtime/cublas_lt.h"

namespace baton::cuda {

/// The library at `path`, or of that name where the dynamic linker looks; never unloaded. NotFound: it cannot be
/// loaded, with the linker's words; FailedPrecondition: a function is missing, or it is older than 12.0.
absl::StatusOr<gpu::CublasLtApi> LoadCublasLt(const std::string& path);

/// Where the wheels nvidia-cublas (of CUDA 13) and nvidia-cublas-cu12 have put it, the newer first
/// (python_library.h); empty: no Python has them.
std::string CublasLtOfPython(std::string_view path);

/// The dynamic linker's, of CUDA 13 or else 12; else that of the Python on PATH.
absl::StatusOr<gpu::CublasLtApi> FindCublasLt();

}  // namespace baton::cuda
