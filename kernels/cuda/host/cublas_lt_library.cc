#include "kernels/cuda/host/cublas_lt_library.h"

#include "common/status.h"
#include "common/str_cat.h"
#include "kernels/cuda/host/library_symbols.h"
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
  absl::StatusOr<LibrarySymbols> library = LibrarySymbols::Open(path);
  if (!library.ok()) return absl::NotFoundError(StrCat("no cuBLASLt: ", View(library.status().message())));
  gpu::CublasLtApi api{};
  library->Take(api.get_version, "cublasLtGetVersion");
  library->Take(api.error_text, "cublasLtGetStatusString");
  library->Take(api.create, "cublasLtCreate");
  library->Take(api.destroy, "cublasLtDestroy");
  library->Take(api.create_operation, "cublasLtMatmulDescCreate");
  library->Take(api.destroy_operation, "cublasLtMatmulDescDestroy");
  library->Take(api.set_operation, "cublasLtMatmulDescSetAttribute");
  library->Take(api.create_layout, "cublasLtMatrixLayoutCreate");
  library->Take(api.destroy_layout, "cublasLtMatrixLayoutDestroy");
  library->Take(api.create_preference, "cublasLtMatmulPreferenceCreate");
  library->Take(api.destroy_preference, "cublasLtMatmulPreferenceDestroy");
  library->Take(api.set_preference, "cublasLtMatmulPreferenceSetAttribute");
  library->Take(api.propose, "cublasLtMatmulAlgoGetHeuristic");
  library->Take(api.multiply, "cublasLtMatmul");
  BATON_RETURN_IF_ERROR(library->AllThere());
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
