// What the kernel tests share (on the emulator, and on a device when compiled by nvcc: bench/gpu/build.sh): seeded
// data, device arrays, the four policies.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/px/px.h"
#include "kernels/runtime/runtime.h"
#include "tests/kernels/tolerance.h"
#include "tests/simt/grids.h"

namespace baton::cuda_test {

using simt_test::DeviceArray;
template <typename T>
using Array = simt_test::MirroredArray<T>;  ///< no kernel's tensor is the host's to reach

using kernel_test::Tolerance;

class Data {
 public:
  explicit Data(unsigned seed) : rng_(seed) {}
  template <typename T>
  std::vector<T> Normal(size_t n, float sigma = 1.0f) {
    std::normal_distribution<float> normal(0.0f, sigma);
    std::vector<T> v;
    v.reserve(n);
    for (size_t i = 0; i < n; ++i) v.push_back(px::FromFloat<T>(normal(rng_)));
    return v;
  }
  template <typename T>
  void Fill(T* to, int n) {
    std::normal_distribution<float> normal;
    for (int i = 0; i < n; ++i) to[i] = px::FromFloat<T>(normal(rng_));
  }
  int Int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng_); }
  std::mt19937& rng() { return rng_; }

 private:
  std::mt19937 rng_;
};

template <typename T>
T Nan() {
  return px::FromFloat<T>(NAN);
}

template <typename T>
std::vector<T> Copy(const Array<T>& a) {
  return std::vector<T>(a.host(), a.host() + a.size());
}
template <typename T>
std::vector<T> Copy(const DeviceArray<T>& a) {
  return a.Read();
}

template <typename T>
testing::AssertionResult Near(const T* got, const std::vector<double>& want,
                              Tolerance tolerance = kernel_test::ToleranceOf(kernel_test::kDTypeOf<T>).row) {
  for (size_t i = 0; i < want.size(); ++i) {
    const double g = px::ToFloat(got[i]);
    if (!tolerance.Holds(g, want[i]))
      return testing::AssertionFailure() << "element " << i << ": got " << g << ", want " << want[i];
  }
  return testing::AssertionSuccess();
}

/// Runs `body(stream)` under each of the four policies; `check(policy name)` after each. On a device: once.
template <typename Body, typename Check>
void UnderEveryPolicy(Body&& body, Check&& check) {
#if defined(__CUDACC__)
  gpu::Stream stream;
  body(stream);
  ASSERT_EQ(stream.Synchronize(), "");
  check("device");
#else
  for (const simt::Policy& policy : simt::AllPolicies()) {
    gpu::Stream stream;
    stream.SetPolicy(policy);
    body(stream);
    const std::string error = stream.Synchronize();
    ASSERT_EQ(error, "") << simt::PolicyName(policy);
    check(simt::PolicyName(policy));
    if (testing::Test::HasFatalFailure()) return;
  }
#endif
}

}  // namespace baton::cuda_test
