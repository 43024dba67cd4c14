// One kernel at one shape: what it must move and compute at least, how to launch it, and a check of its result.
#pragma once

#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "common/check.h"
#include "kernels/px/types.h"
#include "kernels/runtime/runtime.h"

namespace baton::bench {

struct KernelCase {
  std::string shape;
  double floor_bytes = 0, floor_flops = 0;  ///< from the kernel's header comment
  std::function<void(gpu::Stream&)> launch;
  std::function<std::string(gpu::Stream&)> check;  ///< "" when right; against double precision on sampled outputs
};

/// A case that has not taken its memory yet.
struct CaseMaker {
  std::string kernel;
  std::function<KernelCase()> make;
};

/// Sizes of a run: full on a device, tiny under the emulator.
struct Sizes {
  bool tiny = false;
  int operator()(int full, int small) const { return tiny ? small : full; }
};

/// Device memory with values from the host; poisoned when made without.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t n) : memory_(n * sizeof(T)), size_(n) {}
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    gpu::Stream stream;
    stream.Upload(data(), values.data(), values.size() * sizeof(T));
    BATON_CHECK(stream.Synchronize().empty());
  }
  T* data() const { return static_cast<T*>(memory_.data()); }
  size_t size() const { return size_; }
  std::vector<T> Download(gpu::Stream& stream, size_t first, size_t n) const {
    std::vector<T> out(n);
    stream.CopyAsync(out.data(), data() + first, n * sizeof(T));
    const std::string error = stream.Synchronize();
    BATON_CHECK(error.empty(), error);
    return out;
  }

 private:
  gpu::Memory memory_;
  size_t size_;
};

/// n values of a normal distribution; large arrays repeat a random megabyte, which no cache or compressor notices.
template <typename T>
std::vector<T> RandomValues(size_t n, unsigned seed, float sigma = 1.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, sigma);
  constexpr size_t kDistinct = (1 << 20) - 3;
  std::vector<T> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = i < kDistinct ? px::FromFloat<T>(normal(rng)) : out[i - kDistinct];
  return out;
}

inline std::string CheckNear(double got, double want, double tolerance, const char* what) {
  if (std::abs(got - want) <= tolerance) return {};
  return std::string(what) + ": got " + std::to_string(got) + ", want " + std::to_string(want);
}

std::vector<CaseMaker> RoofCases(const Sizes& sizes);
std::vector<CaseMaker> RowCases(const Sizes& sizes);
std::vector<CaseMaker> GemmCases(const Sizes& sizes);
std::vector<CaseMaker> AttentionCases(const Sizes& sizes);
std::vector<CaseMaker> SamplerCases(const Sizes& sizes);
std::vector<CaseMaker> GemvCases(const Sizes& sizes);
std::vector<CaseMaker> MlaCases(const Sizes& sizes);
std::vector<CaseMaker> MoeCases(const Sizes& sizes);
std::vector<CaseMaker> HandoffCases(const Sizes& sizes);
std::vector<CaseMaker> ElementCases(const Sizes& sizes);

}  // namespace baton::bench
