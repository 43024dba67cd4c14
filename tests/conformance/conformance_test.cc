// The emulator does what the hardware is documented to do, and, once golden.txt has been written on a device
// (bench/gpu/run.sh --stage conformance), what that device did. Compiled by nvcc: the device does what is documented.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "tests/conformance/micro_kernels.h"

namespace baton::conformance {
namespace {

constexpr const char* kGolden = "tests/conformance/golden.txt";

TEST(Conformance, EveryFunctionOfPxDoesWhatItsDefinitionSays) {
  for (const MicroKernel& k : AllMicroKernels()) {
    ASSERT_FALSE(k.want.empty()) << k.name;
#if defined(__CUDACC__)
    gpu::Stream stream;
    EXPECT_EQ(Compare(k.run(stream), k.want, k.tolerance), "") << k.name;
#else
    for (const simt::Policy& policy : simt::AllPolicies()) {
      gpu::Stream stream;
      stream.SetPolicy(policy);
      EXPECT_EQ(Compare(k.run(stream), k.want, k.tolerance), "") << k.name << " " << simt::PolicyName(policy);
    }
#endif
  }
}

TEST(Conformance, NamesAreUniqueAndOneWord) {
  std::set<std::string> names;
  for (const MicroKernel& k : AllMicroKernels()) {
    EXPECT_TRUE(names.insert(k.name).second) << k.name;
    EXPECT_EQ(k.name.find(' '), std::string::npos) << k.name;
  }
}

TEST(Conformance, AGoldenFileKeepsEveryWord) {
  const std::string path = testing::TempDir() + "golden.txt";
  const std::vector<std::pair<std::string, Words>> answers = {
      {"A_B", {0, 0xFFFFFFFFu, 0x12345678u}}, {"C", Noise(300, 1)}, {"Empty", {}}};
  ASSERT_TRUE(WriteGolden(path, "some device", answers));
  EXPECT_EQ(ReadGolden(path), answers);
}

TEST(Conformance, ADifferenceIsNamedWithItsPlace) {
  EXPECT_EQ(Compare({1, 2, 3}, {1, 2, 4}, {}), "word 2: got 3, want 4");
  EXPECT_EQ(Compare({1}, {1, 2}, {}), "1 words, want 2");
  const Tolerance one{Tolerance::Kind::kFloat, 1, 0.0};
  EXPECT_EQ(Compare({0x3F800001u}, {0x3F800000u}, one), "");
  EXPECT_NE(Compare({0x3F800002u}, {0x3F800000u}, one), "");
  EXPECT_EQ(Compare({0x80000000u}, {0x00000001u}, one), "");  // a subnormal is a zero
  EXPECT_EQ(Compare({0x7FC00000u}, {0x7FFFFFFFu}, one), "");  // one NaN is as good as another
  EXPECT_NE(Compare({0x7FC00000u}, {0x3F800000u}, one), "");
}

/// What no GPU has run yet.
const std::vector<std::string> kAwaited = {"E4m3ToBf16",
                                           "BytePermute",
                                           "Mbarrier_TmaLoad2D_WgmmaE4m3N16_integers_from_0",
                                           "Mbarrier_TmaLoad2D_WgmmaE4m3N16_fractions_from_0",
                                           "Mbarrier_TmaLoad2D_WgmmaE4m3N32_integers_from_0",
                                           "Mbarrier_TmaLoad2D_WgmmaE4m3N64_integers_from_32",
                                           "Mbarrier_TmaLoad2D_WgmmaE4m3N64_fractions_from_0",
                                           "Mbarrier_TmaLoad2D_WgmmaE4m3N128_integers_from_0",
                                           "Mbarrier_TmaLoad2D_WgmmaE4m3N128_fractions_from_0",
                                           "WgmmaAddRows_integers",
                                           "WgmmaAddRows_fractions"};

TEST(Conformance, TheEmulatorAnswersAsTheDeviceOfTheGoldenFile) {
  if (!std::filesystem::exists(kGolden))
    GTEST_SKIP() << "no " << kGolden << " yet: a GPU has to write it (bench/gpu/run.sh --stage conformance)";
  const auto golden = ReadGolden(kGolden);
  for (const MicroKernel& k : AllMicroKernels()) {
    const auto at = std::find_if(golden.begin(), golden.end(), [&](const auto& g) { return g.first == k.name; });
    if (at == golden.end()) {  // until a GPU has run it, its definition alone binds the emulator
      EXPECT_THAT(kAwaited, testing::Contains(k.name)) << k.name << " is not in the golden file: write it again";
      continue;
    }
    EXPECT_THAT(kAwaited, testing::Not(testing::Contains(k.name))) << "a GPU has answered: strike it off";
    gpu::Stream stream;
    EXPECT_EQ(Compare(k.run(stream), at->second, k.tolerance), "") << k.name;
  }
}

}  // namespace
}  // namespace baton::conformance
