// The functions of a real NCCL, where there is one: BATON_NCCL_LIBRARY=/path/to/libnccl.so.2, or the dynamic linker's.
// It answers its version without a GPU; what it does with one, no test here knows.
#include "kernels/cuda/host/nccl_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace baton::cuda {
namespace {

TEST(NcclLibrary, HasEveryFunctionAndSaysItsVersion) {
  const char* given = std::getenv("BATON_NCCL_LIBRARY");
  const auto api = LoadNccl(given != nullptr ? given : "libnccl.so.2");
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
  const auto api = LoadNccl(given != nullptr ? given : "libnccl.so.2");
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

}  // namespace
}  // namespace baton::cuda
