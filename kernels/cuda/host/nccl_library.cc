#include "kernels/cuda/host/nccl_library.h"

#include <dlfcn.h>

#include <type_traits>

#include "common/str_cat.h"
#include "kernels/cuda/host/python_library.h"

namespace baton::cuda {
namespace {

constexpr int kOldestNccl = 21400;  ///< communicators that are made without blocking

}  // namespace

absl::StatusOr<gpu::NcclApi> LoadNccl(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return absl::NotFoundError(
        StrCat("several GPUs need NCCL, which cannot be loaded: ", why,
               "; LD_LIBRARY_PATH says where it is, or the Python on PATH has it (pip install nvidia-nccl-cu13)"));
  }
  gpu::NcclApi api{};
  std::string missing;
  const auto take = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr && missing.empty()) missing = name;
  };
  take(api.get_version, "ncclGetVersion");
  take(api.error_text, "ncclGetErrorString");
  take(api.last_error, "ncclGetLastError");
  take(api.get_unique_id, "ncclGetUniqueId");
  take(api.init_rank, "ncclCommInitRankConfig");
  take(api.abort, "ncclCommAbort");
  take(api.async_error, "ncclCommGetAsyncError");
  take(api.group_start, "ncclGroupStart");
  take(api.group_end, "ncclGroupEnd");
  take(api.all_gather, "ncclAllGather");
  take(api.broadcast, "ncclBroadcast");
  take(api.send, "ncclSend");
  take(api.recv, "ncclRecv");
  if (!missing.empty()) return absl::FailedPreconditionError(StrCat(path, " has no ", missing));
  int version = 0;
  if (api.get_version(&version) != gpu::kNcclSuccess || version < kOldestNccl)
    return absl::FailedPreconditionError(StrCat(path, " is NCCL ", version, ", ", kOldestNccl, " or later is needed"));
  return api;
}

std::string NcclOfPython(std::string_view path) {
  return LibraryOfPython(path, StrCat("nvidia/nccl/lib/", kNcclLibrary));
}

absl::StatusOr<gpu::NcclApi> FindNccl() {
  absl::StatusOr<gpu::NcclApi> api = LoadNccl();
  if (!absl::IsNotFound(api.status())) return api;
  const std::string library = NcclOfPython(FoldersOfPrograms());
  return library.empty() ? api : LoadNccl(library);
}

}  // namespace baton::cuda
