// NCCL, found at run time: nothing of it is linked.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "kernels/runtime/nccl.h"

namespace baton::cuda {

/// The library at `path`, or of that name where the dynamic linker looks; never unloaded. NotFound: it cannot be
/// loaded, with the linker's words; FailedPrecondition: a function is missing, or it is older than 2.14.
absl::StatusOr<gpu::NcclApi> LoadNccl(const std::string& path = "libnccl.so.2");

}  // namespace baton::cuda
