#include "cli/exit_code.h"

#include <gtest/gtest.h>

namespace baton::cli {
namespace {

TEST(ExitCode, IsThatOfTheStatussClass) {
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCodeOf(absl::FailedPreconditionError("")), 2);
  EXPECT_EQ(ExitCodeOf(absl::InvalidArgumentError("")), 3);
  EXPECT_EQ(ExitCodeOf(absl::NotFoundError("")), 3);
  EXPECT_EQ(ExitCodeOf(absl::DataLossError("")), 3);
  EXPECT_EQ(ExitCodeOf(absl::PermissionDeniedError("")), 4);
  EXPECT_EQ(ExitCodeOf(absl::AlreadyExistsError("")), 4);
  EXPECT_EQ(ExitCodeOf(absl::ResourceExhaustedError("")), 5);
  EXPECT_EQ(ExitCodeOf(absl::UnavailableError("")), 6);
  EXPECT_EQ(ExitCodeOf(absl::DeadlineExceededError("")), 6);
  EXPECT_EQ(ExitCodeOf(absl::InternalError("")), 70);
}

TEST(ExitCode, AFailureOfFlagsIsOneOfUsageWhateverItsStatus) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(FailUsage(absl::InternalError("why")), 2);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "baton: why\n");
}

}  // namespace
}  // namespace baton::cli
