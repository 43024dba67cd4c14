// The file that says that a process is ready: whole or not there, and never an earlier process's.
#include "cli/ready_file.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::cli {
namespace {

class ReadyFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "/ready-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path() const { return folder_ / "ready"; }
  std::string Text() const {
    std::stringstream text;
    text << std::ifstream(path()).rdbuf();
    return text.str();
  }

  std::filesystem::path folder_;
};

TEST_F(ReadyFile, HasTheAddressesAsShellVariables) {
  ASSERT_TRUE(WriteReadyFile(path(), {{"BATON_HTTP", "http://h:1"}, {"BATON_GRPC", "h:2"}}).ok());
  EXPECT_EQ(Text(), "BATON_HTTP='http://h:1'\nBATON_GRPC='h:2'\n");
  EXPECT_FALSE(std::filesystem::exists(path() + ".part"));
}

TEST_F(ReadyFile, AnEarlierLifesFileIsGoneBeforeTheNextOneIsReady) {
  ASSERT_TRUE(WriteReadyFile(path(), {{"BATON_GRPC", "h:2"}}).ok());
  ASSERT_TRUE(CheckReadyFile(path()).ok());
  EXPECT_TRUE(std::filesystem::exists(path())) << "a check changes nothing";
  ASSERT_TRUE(PrepareReadyFile(path()).ok());
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(ReadyFile, WhatIsNoFileStaysWhereItIs) {
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  const absl::Status status = PrepareReadyFile(path());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(std::filesystem::is_fifo(path()));
  std::filesystem::remove(path());
  std::filesystem::create_symlink("/dev/null", path());
  EXPECT_FALSE(PrepareReadyFile(path()).ok());
  EXPECT_TRUE(std::filesystem::is_symlink(path()));
}

TEST_F(ReadyFile, OneThatCannotBeWrittenIsSaidBeforehand) {
  const absl::Status status = PrepareReadyFile((folder_ / "no" / "ready").string());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("--ready-file: cannot write"));
  EXPECT_TRUE(PrepareReadyFile("").ok());
}

}  // namespace
}  // namespace baton::cli
