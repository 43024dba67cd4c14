// The functions of a real NCCL, where there is one: BATON_NCCL_LIBRARY=/path/to/libnccl.so.2, or as a worker finds it.
// It answers its version without a GPU; what it does with one, no test here knows.
#include "kernels/cuda/host/nccl_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace baton::cuda {
namespace {

TEST(NcclLibrary, HasEveryFunctionAndSaysItsVersion) {
  const char* given = std::getenv("BATON_NCCL_LIBRARY");
  const auto api = given != nullptr ? LoadNccl(given) : FindNccl();
  if (given == nullptr && absl::IsNotFound(api.status())) GTEST_SKIP() << api.status();
  ASSERT_TRUE(api.ok()) << api.status();
  int version = 0;
  EXPECT_EQ(api->get_version(&version), gpu::kNcclSuccess);
  EXPECT_GE(version, 21400);
  EXPECT_STREQ(api->error_text(gpu::kNcclSuccess), "no error");
  EXPECT_STREQ(api->last_error(nullptr), "");
}

// Without a GPU a group of one cannot be made, and the library says what CUDA said.
TEST(NcclLibrary, TheCauseOfAnErrorIsTold) {
  const char* given = std::getenv("BATON_NCCL_LIBRARY");
  const auto api = given != nullptr ? LoadNccl(given) : FindNccl();
  if (given == nullptr && absl::IsNotFound(api.status())) GTEST_SKIP() << api.status();
  ASSERT_TRUE(api.ok()) << api.status();
  gpu::NcclId id;
  ASSERT_EQ(api->get_unique_id(&id), gpu::kNcclSuccess);
  gpu::NcclComm* comm = nullptr;
  gpu::NcclConfig config;
  const int result = api->init_rank(&comm, 1, id, 0, &config);
  if (result == gpu::kNcclSuccess || result == gpu::kNcclInProgress) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(result, gpu::kNcclUnhandledCudaError);
  EXPECT_THAT(api->last_error(nullptr), testing::HasSubstr("Cuda failure"));
}

TEST(NcclLibrary, OneThatIsNotThereIsNamed) {
  const absl::Status status = LoadNccl("/nowhere/libnccl.so.2").status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("/nowhere/libnccl.so.2"));
}

TEST(NcclLibrary, AnotherLibraryIsRefusedByWhatItLacks) {
  const absl::Status status = LoadNccl("libc.so.6").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_EQ(status.message(), "libc.so.6 has no ncclGetVersion");
}

// Folders as Pythons and virtual environments have them.
class NcclOfAPython : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(root_); }
  void Put(const std::string& file) {
    std::filesystem::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << "anything";
  }
  void Link(const std::string& to, const std::string& file) {
    std::filesystem::create_directories((root_ / file).parent_path());
    std::filesystem::create_symlink(to[0] == '/' ? std::filesystem::path(to) : root_ / to, root_ / file);
  }
  std::string At(const std::string& file) const { return (root_ / file).string(); }

  const std::filesystem::path root_ =
      std::filesystem::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name();
};
const std::string kWheel = "/nvidia/nccl/lib/libnccl.so.2";

TEST_F(NcclOfAPython, IsThatOfTheFirstOnPathThatHasIt) {
  Put("empty/bin/sh"), Put("without/bin/python3"), Put("without/lib/python3.12/site-packages/nvidia/cuda.py");
  Put("venv/bin/python"), Put("venv/lib/python3.12/site-packages" + kWheel);
  Put("later/bin/python3"), Put("later/lib/python3.12/site-packages" + kWheel);
  Put("noprogram/lib/python3.12/site-packages" + kWheel);
  const std::string path =
      At("gone/bin") + ":" + At("noprogram/bin") + "::" + At("empty/bin") + ":" + At("without/bin");
  EXPECT_EQ(NcclOfPython(path), "");
  EXPECT_EQ(NcclOfPython(path + ":" + At("venv/bin") + ":" + At("later/bin")),
            At("venv/lib/python3.12/site-packages" + kWheel));
  EXPECT_EQ(NcclOfPython(""), "");
}

TEST_F(NcclOfAPython, IsThatOfTheLatestVersion) {
  Put("usr/bin/python3");
  for (const char* version : {"3.9", "3.13", "3.2"})
    Put(std::string("usr/lib/python") + version + "/dist-packages" + kWheel);
  EXPECT_EQ(NcclOfPython(At("usr/bin")), At("usr/lib/python3.13/dist-packages" + kWheel));
}

TEST_F(NcclOfAPython, MayBeOfTheOneThatAVirtualEnvironmentWasMadeOf) {
  Put("usr/bin/python3.11"), Link("usr/bin/python3.11", "venv/bin/python3");
  Put("usr/local/lib/python3.11/dist-packages" + kWheel);
  EXPECT_EQ(NcclOfPython(At("venv/bin")), At("usr/local/lib/python3.11/dist-packages" + kWheel));
  Put("venv/lib/python3.11/site-packages" + kWheel);
  EXPECT_EQ(NcclOfPython(At("venv/bin")), At("venv/lib/python3.11/site-packages" + kWheel));
}

// Whatever is found there is loaded as any other: what it lacks is told with its place.
TEST_F(NcclOfAPython, IsFoundWhereTheLinkerFindsNone) {
  if (!absl::IsNotFound(LoadNccl().status())) GTEST_SKIP() << "the dynamic linker finds one, or it is loaded";
  Put("venv/bin/python3"), Put("venv/lib/python3.12/site-packages" + kWheel);
  const std::string library = At("venv/lib/python3.12/site-packages" + kWheel), before = std::getenv("PATH");
  setenv("PATH", At("venv/bin").c_str(), 1);
  const absl::Status status = FindNccl().status();
  setenv("PATH", At("none/bin").c_str(), 1);
  const absl::Status none = FindNccl().status();
  setenv("PATH", before.c_str(), 1);
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(library));
  EXPECT_THAT(std::string(none.message()), testing::HasSubstr("pip install nvidia-nccl-cu13"));
}

}  // namespace
}  // namespace baton::cuda
