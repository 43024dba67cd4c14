// What users read where a GPU cannot be used. Versions as CUDA writes them: 12040 is 12.4.
#pragma once

#include <cstddef>
#include <string>

namespace baton::gpu {

/// Of a driver for CUDA `driver`, 0 where there is none, and a program that was built with CUDA `built`: one of the
/// same major version runs it, and any later one. Empty: it is not to blame.
inline std::string DriverRefusal(int driver, int built) {
  if (driver == 0) return "there is no NVIDIA driver (libcuda.so.1); a container gets it from the runtime for GPUs";
  if (driver / 1000 >= built / 1000) return {};
  const auto version = [](int v) { return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10); };
  return "the NVIDIA driver is too old: it is for CUDA " + version(driver) + ", this program was built with CUDA " +
         version(built) + ", which needs a driver for " + std::to_string(built / 1000) + ".0 or later";
}

/// Of device `number` where there are `count`. Empty: it is there.
inline std::string NumberRefusal(int number, int count) {
  if (number < count) return {};
  return "number " + std::to_string(number) + " is asked for, counted from 0; " + std::to_string(count) + " are there";
}

/// Of `what` device `number` did not make, for the reason in the driver's words. `free` and `total` bytes of its
/// memory; 0 of both: it does not say.
inline std::string MakingRefusal(int number, const std::string& what, const std::string& words, size_t free,
                                 size_t total) {
  const std::string refusal = "cuda:" + std::to_string(number) + " does not make " + what + ": " + words;
  if (total == 0) return refusal;
  return refusal + "; " + std::to_string(free) + " of its " + std::to_string(total) + " bytes of memory are free";
}
/// Of its context, before which it says how much memory it has, but not how much is free.
inline std::string ContextRefusal(int number, const std::string& words, size_t total) {
  const std::string refusal = MakingRefusal(number, "a context", words, 0, 0);
  return total == 0 ? refusal : refusal + "; it has " + std::to_string(total) + " bytes of memory";
}

}  // namespace baton::gpu
