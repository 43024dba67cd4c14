// NCCL, found at run time: nothing of it is linked.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/runtime/nccl.h"

namespace baton::cuda {

constexpr const char* kNcclLibrary = "libnccl.so.2";

/// The library at `path`, or of that name where the dynamic linker looks; never unloaded. NotFound: it cannot be
/// loaded, with the linker's words; FailedPrecondition: a function is missing, or it is older than 2.14.
absl::StatusOr<gpu::NcclApi> LoadNccl(const std::string& path = kNcclLibrary);

/// Where the wheels nvidia-nccl-cu12 and -cu13 have put it (python_library.h); empty: no Python has them.
std::string NcclOfPython(std::string_view path);

/// The dynamic linker's; else that of the Python on PATH.
absl::StatusOr<gpu::NcclApi> FindNccl();

}  // namespace baton::cuda
