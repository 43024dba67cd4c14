#include "kernels/plugin/device_plugin.h"

#include <dlfcn.h>

#include <filesystem>

#include "common/str_cat.h"

namespace baton::kernels {

OpsOrError LoadDeviceOps(const std::string& path, const DeviceConfig& config) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::NotFoundError(StrCat("no device plugin: ", dlerror()));
  auto* make = reinterpret_cast<MakeDeviceOps*>(dlsym(library, "baton_make_device_ops"));
  if (make == nullptr) return absl::FailedPreconditionError(StrCat(path, " is no device plugin: ", dlerror()));
  OpsOrError ops = absl::InternalError(StrCat(path, " answered nothing"));
  make(kPluginVersion, config, &ops);
  return ops;
}

std::string DefaultCudaPlugin() {
  std::error_code error;
  return (std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "libbaton_cuda.so").string();
}

}  // namespace baton::kernels
