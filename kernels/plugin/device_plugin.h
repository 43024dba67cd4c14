// Backends that are loaded when asked for: libbaton_cuda.so (scripts/build_cuda.sh), or the same on the emulator.
//
// A plugin exports one function, MakeDeviceOps. Host and plugin are built from one tree by one toolchain: C++ objects
// cross the boundary, and kPluginVersion changes with everything that crosses it: this file and what it includes.
// interface.txt says for which headers it was raised last; tests/architecture/check_plugin.py holds it to them.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace baton::kernels {

constexpr int kPluginVersion = 14;

struct DeviceConfig {
  int number = 0;                 ///< of the device among those that the process sees
  std::optional<DType> kv_dtype;  ///< unset: the device's own choice
  bool deterministic = true;      ///< a row's bits do not depend on the batch (Promise A)
  /// Sums over ranks of up to so many bytes go over the GPUs' own links, in one round, where they reach; 0: none.
  int64_t one_shot_bytes = 256 << 10;
};

using OpsOrError = absl::StatusOr<std::unique_ptr<Ops>>;
/// extern "C" `baton_make_device_ops`. Answers FailedPrecondition to a version that is not its own.
using MakeDeviceOps = void(int version, const DeviceConfig& config, OpsOrError* out);

/// Loads the plugin at `path` (never unloaded) and makes its Ops. NotFound: it cannot be loaded, with the linker's
/// reason; FailedPrecondition: it is no plugin, or of another version, or finds no device.
OpsOrError LoadDeviceOps(const std::string& path, const DeviceConfig& config);

/// "<folder of this program>/libbaton_cuda.so".
std::string DefaultCudaPlugin();

}  // namespace baton::kernels
