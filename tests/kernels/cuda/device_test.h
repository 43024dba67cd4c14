// What the kernel tests share (on the emulator, and on a device when compiled by nvcc: bench/gpu/build.sh): seeded
// data, device arrays, the four policies, one table of tolerances.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/px/px.h"
#include "kernels/runtime/runtime.h"
#include "tests/simt/grids.h"

namespace baton::cuda_test {

using simt_test::Array;

/// Tolerance of an output, by its dtype: |got − want| ≤ absolute + relative · |want|.
struct Tolerance {
  double absolute, relative;
};
template <typename T>
constexpr Tolerance kTolerance = {};
template <>
inline constexpr Tolerance kTolerance<float> = {2e-5, 2e-5};
template <>
inline constexpr Tolerance kTolerance<px::bf16> = {4e-3, 1e-2};  // one rounding to 8 bits, inputs of order 1
template <>
inline constexpr Tolerance kTolerance<px::e4m3> = {1e-2, 7e-2};  // one rounding to 4 bits

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
  return std::vector<T>(a.data(), a.data() + a.size());
}

template <typename T>
testing::AssertionResult Near(const T* got, const std::vector<double>& want, Tolerance tolerance = kTolerance<T>) {
  for (size_t i = 0; i < want.size(); ++i) {
    const double g = px::ToFloat(got[i]);
    if (!(std::abs(g - want[i]) <= tolerance.absolute + tolerance.relative * std::abs(want[i])))
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
