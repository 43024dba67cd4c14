#include "cli/exit_code.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

#include "common/rank_loss.h"

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

TEST(ExitCode, ALostRankHasItsOwn) {
  EXPECT_EQ(ExitCodeOf(RankLoss("rank 1 is gone")), kExitRankLost);
  EXPECT_EQ(ExitCodeOf(absl::UnavailableError("rank 1 is gone")), kExitUnreachable);
}

TEST(ExitCode, TheReadmeListsEveryOneAndNoOther) {
  std::ifstream readme(BATON_README);
  std::string text((std::istreambuf_iterator<char>(readme)), std::istreambuf_iterator<char>());
  const size_t begin = text.find("Exit codes:");
  ASSERT_NE(begin, std::string::npos);
  const std::string list = text.substr(begin, text.find(';', begin) - begin);
  std::set<int> listed;
  const std::regex code("(?::|·)\\s(\\d+) ");
  for (std::sregex_iterator i(list.begin(), list.end(), code), end; i != end; ++i) listed.insert(std::stoi((*i)[1]));
  EXPECT_EQ(listed, (std::set<int>{kExitOk, kExitCutOff, kExitUsage, kExitModel, kExitAddress, kExitMemory,
                                   kExitUnreachable, kExitRankLost, kExitDevice, kExitBug}))
      << list;
}

TEST(ExitCode, AFailureEndsWithItsClassAndItsLastLineIsTheCause) {
  const std::pair<absl::Status, int> rows[] = {
      {absl::FailedPreconditionError("flags"), kExitUsage},  {absl::NotFoundError("model"), kExitModel},
      {absl::AlreadyExistsError("port 8000"), kExitAddress}, {absl::PermissionDeniedError("port 80"), kExitAddress},
      {absl::ResourceExhaustedError("8 GiB"), kExitMemory},  {absl::UnavailableError("worker"), kExitUnreachable},
      {absl::InternalError("we are wrong"), kExitBug},       {absl::UnknownError("who knows"), kExitBug}};
  for (const auto& [status, code] : rows) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(Fail(status), code);
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "baton: " + std::string(status.message()) + "\n");
  }
}

TEST(ExitCode, AFailureOfFlagsIsOneOfUsageWhateverItsStatus) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(FailUsage(absl::InternalError("why")), 2);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "baton: why\n");
}

}  // namespace
}  // namespace baton::cli
