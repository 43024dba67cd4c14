// Shapes drawn at random. Every kernel has a sweep: a few seeds in each test run, as many as asked for by hand.
//   BATON_SWEEP_SEEDS=200 cuda_gemv_test --gtest_filter=*AnyShape*   seeds 1 … 200
//   BATON_SWEEP_SEED=17 …                                            this one alone
#pragma once

#include <cstdlib>
#include <initializer_list>

#include "tests/kernels/cuda/device_test.h"

namespace baton::cuda_test {

class Draw : public Data {
 public:
  using Data::Data;
  bool Chance(int of) { return Int(1, of) == 1; }
  template <typename T>
  T Pick(std::initializer_list<T> values) {
    return values.begin()[Int(0, static_cast<int>(values.size()) - 1)];
  }
  /// 1 … `high`, small numbers as likely as large ones.
  int Size(int high) {
    const double x = std::uniform_real_distribution<double>(0.0, std::log(high + 1.0))(rng());
    return std::min(high, static_cast<int>(std::exp(x)));
  }
  /// A multiple of `of`, `of` … `high`.
  int Multiple(int of, int high) { return of * Size(high / of); }
};

/// body(draw) for each seed; a failure names its seed. `usual`: how many seeds a test run has.
template <typename Body>
void Sweep(int usual, Body&& body) {
  const char *count = std::getenv("BATON_SWEEP_SEEDS"), *one = std::getenv("BATON_SWEEP_SEED");
  const int first = one != nullptr ? std::atoi(one) : 1, last = one != nullptr     ? first
                                                                : count != nullptr ? std::atoi(count)
                                                                                   : usual;
  for (int seed = first; seed <= last; ++seed) {
    SCOPED_TRACE("BATON_SWEEP_SEED=" + std::to_string(seed));
    Draw draw(static_cast<unsigned>(seed));
    body(draw);
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace baton::cuda_test
