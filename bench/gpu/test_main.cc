// The main of tests that run on a device: without one they say so and end with an exit code of its own, instead of
// failing one after another.
#include <gtest/gtest.h>

#include <cstdio>

#include "bench/gpu/run_each.h"
#include "kernels/runtime/runtime.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  // Here and not in a child: a sanitizer's tool may not follow one.
  if (const std::string why = baton::gpu::UseDevice(0); !why.empty() && !testing::GTEST_FLAG(list_tests))
    return std::fprintf(stderr, "%s: no GPU can be used: %s\n", argv[0], why.c_str()), baton::bench::kNoDevice;
  return RUN_ALL_TESTS();
}
