#include "kernels/cuda/host/nccl_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "common/str_cat.h"

namespace baton::cuda {
namespace {

namespace fs = std::filesystem;

constexpr int kOldest = 21400;  ///< communicators that are made without blocking

/// In the packages of the Python whose `bin` is in `prefix`, of the latest version that has it; Debian has two places.
std::string NcclUnder(const fs::path& prefix) {
  std::vector<std::pair<int, fs::path>> found;  // by 9 of 3.9
  for (const char* lib : {"local/lib", "lib"}) {
    std::error_code error;
    for (fs::directory_iterator at(prefix / lib, error), end; !error && at != end; at.increment(error)) {
      const std::string name = at->path().filename().string();
      int minor = 0;
      if (!name.starts_with("python3.") || !absl::SimpleAtoi(name.substr(8), &minor)) continue;
      for (const char* packages : {"site-packages", "dist-packages"}) {
        fs::path library = at->path() / packages / "nvidia/nccl/lib" / kNcclLibrary;
        if (std::error_code none; fs::exists(library, none)) found.emplace_back(minor, std::move(library));
      }
    }
  }
  const auto newest = std::ranges::max_element(found);
  return newest == found.end() ? "" : newest->second.string();
}

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
  if (api.get_version(&version) != gpu::kNcclSuccess || version < kOldest)
    return absl::FailedPreconditionError(StrCat(path, " is NCCL ", version, ", ", kOldest, " or later is needed"));
  return api;
}

std::string NcclOfPython(std::string_view path) {
  while (!path.empty()) {
    const size_t end = std::min(path.find(':'), path.size());
    const fs::path folder(path.substr(0, end));
    path.remove_prefix(std::min(end + 1, path.size()));
    for (const char* name : {"python3", "python"}) {
      std::error_code error;
      const fs::path program = fs::canonical(folder / name, error);
      if (error || !folder.is_absolute()) continue;
      for (const fs::path& bin : {folder, program.parent_path()})
        if (std::string library = NcclUnder(bin.parent_path()); !library.empty()) return library;
    }
  }
  return {};
}

absl::StatusOr<gpu::NcclApi> FindNccl() {
  absl::StatusOr<gpu::NcclApi> api = LoadNccl();
  if (!absl::IsNotFound(api.status())) return api;
  const char* const path = std::getenv("PATH");  // NOLINT(concurrency-mt-unsafe): nothing sets it
  const std::string library = path == nullptr ? "" : NcclOfPython(path);
  return library.empty() ? api : LoadNccl(library);
}

}  // namespace baton::cuda
