// The emulated plugin, which is asked as a program of the next version would ask it. For tests alone.
#include <dlfcn.h>

#include "kernels/plugin/device_plugin.h"

extern "C" __attribute__((visibility("default"))) void baton_make_device_ops(int version,
                                                                             const baton::kernels::DeviceConfig& config,
                                                                             baton::kernels::OpsOrError* out) {
  void* library = dlopen(EMULATED_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  BATON_CHECK(library != nullptr, dlerror());
  reinterpret_cast<baton::kernels::MakeDeviceOps*>(dlsym(library, "baton_make_device_ops"))(version + 1, config, out);
}
