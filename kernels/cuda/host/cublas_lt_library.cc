#include "kernels/cuda/host/cublas_lt_library.h"

#include <dlfcn.h>

#include <type_traits>

#include "common/str_cat.h"
#include "kernels/cuda/host/python_library.h"

namespace baton::cuda {
namespace {

constexpr size_t kOldestCublasLt = 120000;

/// By the dynamic linker's name, and within a Python's packages.
constexpr const char* kNames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
constexpr const char* kWheels[] = {"nvidia/cu13/lib/libcublasLt.so.13", "nvidia/cublas/lib/libcublasLt.so.13",
                                   "nvidia/cublas/lib/libcublasLt.so.12"};

}  // namespace

absl::StatusOr<gpu::CublasLtApi> LoadCublasLt(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::NotFoundError(StrCat("no cuBLASLt: ", dlerror()));
  gpu::CublasLtApi api{};
  std::string missing;
  const auto take = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr && missing.empty()) missing = name;
  };
  take(api.get_version, "cublasLtGetVersion");
  take(api.error_text, "cublasLtGetStatusString");
  take(api.create, "cublasLtCreate");
  take(api.destroy, "cublasLtDestroy");
  take(api.create_operation, "cublasLtMatmulDescCreate");
  take(api.destroy_operation, "cublasLtMatmulDescDestroy");
  take(api.set_operation, "cublasLtMatmulDescSetAttribute");
  take(api.create_layout, "cublasLtMatrixLayoutCreate");
  take(api.destroy_layout, "cublasLtMatrixLayoutDestroy");
  take(api.create_preference, "cublasLtMatmulPreferenceCreate");
  take(api.destroy_preference, "cublasLtMatmulPreferenceDestroy");
  take(api.set_preference, "cublasLtMatmulPreferenceSetAttribute");
  take(api.propose, "cublasLtMatmulAlgoGetHeuristic");
  take(api.multiply, "cublasLtMatmul");
  if (!missing.empty()) return absl::FailedPreconditionError(StrCat(path, " has no ", missing));
  if (const size_t version = api.get_version(); version < kOldestCublasLt) {
    return absl::FailedPreconditionError(
        StrCat(path, " is cuBLASLt ", version, ", ", kOldestCublasLt, " or later is needed"));
  }
  return api;
}

std::string CublasLtOfPython(std::string_view path) {
  for (const char* within : kWheels)
    if (std::string library = LibraryOfPython(path, within); !library.empty()) return library;
  return {};
}

absl::StatusOr<gpu::CublasLtApi> FindCublasLt() {
  absl::StatusOr<gpu::CublasLtApi> api = absl::NotFoundError("");
  for (const char* name : kNames) {
    static_cast<void>(api = LoadCublasLt(name));
    if (!absl::IsNotFound(api.status())) return api;
  }
  const std::string library = CublasLtOfPython(FoldersOfPrograms());
  return library.empty() ? api : LoadCublasLt(library);
}

}  // namespace baton::cuda
