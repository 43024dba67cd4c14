#include "kernels/cuda/host/nccl_library.h"

#include "common/status.h"
#include "common/str_cat.h"
#include "kernels/cuda/host/library_symbols.h"
#include "kernels/cuda/host/python_library.h"

namespace baton::cuda {
namespace {

constexpr int kOldestNccl = 21400;  ///< communicators that are made without blocking

}  // namespace

absl::StatusOr<gpu::NcclApi> LoadNccl(const std::string& path) {
  absl::StatusOr<LibrarySymbols> library = LibrarySymbols::Open(path);
  if (!library.ok()) {
    return absl::NotFoundError(
        StrCat("several GPUs need NCCL, which cannot be loaded: ", View(library.status().message()),
               "; LD_LIBRARY_PATH says where it is, or the Python on PATH has it (pip install nvidia-nccl-cu13)"));
  }
  gpu::NcclApi api{};
  library->Take(api.get_version, "ncclGetVersion");
  library->Take(api.error_text, "ncclGetErrorString");
  library->Take(api.last_error, "ncclGetLastError");
  library->Take(api.get_unique_id, "ncclGetUniqueId");
  library->Take(api.init_rank, "ncclCommInitRankConfig");
  library->Take(api.abort, "ncclCommAbort");
  library->Take(api.async_error, "ncclCommGetAsyncError");
  library->Take(api.group_start, "ncclGroupStart");
  library->Take(api.group_end, "ncclGroupEnd");
  library->Take(api.all_gather, "ncclAllGather");
  library->Take(api.broadcast, "ncclBroadcast");
  library->Take(api.send, "ncclSend");
  library->Take(api.recv, "ncclRecv");
  BATON_RETURN_IF_ERROR(library->AllThere());
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
