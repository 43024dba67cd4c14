#include "common/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace baton {
namespace {

class MappedFileTest : public ::testing::Test {
 protected:
  ~MappedFileTest() override { std::filesystem::remove(path_); }
  absl::StatusCode CodeOfOpen() const {
    const absl::Status status = MappedFile::Open(path_).status();
    EXPECT_TRUE(status.ok() || status.message().find(path_) != std::string::npos) << status;
    return status.code();
  }
  const std::string path_ =
      ::testing::TempDir() + "mapped_file." + ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(MappedFileTest, HasTheFilesBytesAlsoAfterItsNameIsGone) {
  std::ofstream(path_) << "baton";
  const auto file = MappedFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  std::filesystem::remove(path_);
  EXPECT_EQ(std::string((*file)->bytes().begin(), (*file)->bytes().end()), "baton");
}

TEST_F(MappedFileTest, WhatIsAbsentIsNotFound) { EXPECT_EQ(CodeOfOpen(), absl::StatusCode::kNotFound); }

TEST_F(MappedFileTest, AnEmptyFileIsRefused) {
  std::ofstream(path_) << "";
  EXPECT_EQ(CodeOfOpen(), absl::StatusCode::kInvalidArgument);
}

TEST_F(MappedFileTest, ADirectoryIsRefused) {
  std::filesystem::create_directory(path_);
  EXPECT_EQ(CodeOfOpen(), absl::StatusCode::kInvalidArgument);
}

TEST_F(MappedFileTest, ANamedPipeIsRefusedWithoutWaitingForAWriter) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(CodeOfOpen(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton
