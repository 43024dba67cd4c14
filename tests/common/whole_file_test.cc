#include "common/whole_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace baton {
namespace {

namespace fs = std::filesystem;

/// While it lives, no file of this process grows beyond so many bytes: a disk that is full.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FullDisk() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

class WholeFile : public testing::Test {
 protected:
  WholeFile() {
    std::string name = testing::TempDir() + "/whole-XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    dir_ = name;
  }
  ~WholeFile() override { fs::remove_all(dir_); }
  std::string Path(const std::string& name) const { return (dir_ / name).string(); }
  std::string Text(const std::string& name) const {
    std::ifstream in(dir_ / name);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  mode_t Mode(const std::string& name) const {
    struct stat there{};
    EXPECT_EQ(stat(Path(name).c_str(), &there), 0);
    return there.st_mode & 07777;
  }
  int Files() const { return static_cast<int>(std::distance(fs::directory_iterator(dir_), {})); }

  fs::path dir_;
};

TEST_F(WholeFile, TakesThePlaceOfWhatIsThereWithItsModeUnlessOneIsSaid) {
  ASSERT_TRUE(WriteWhole({{Path("a"), "one"}, {Path("key"), "secret", 0600}}).ok());
  EXPECT_EQ(Mode("key"), 0600u);
  ASSERT_EQ(chmod(Path("a").c_str(), 0640), 0);
  ASSERT_EQ(chmod(Path("key").c_str(), 0644), 0);
  fs::create_symlink("a", dir_ / "link");
  ASSERT_TRUE(WriteWhole({{Path("link"), "two"}, {Path("key"), "other", 0600}}).ok());
  EXPECT_TRUE(fs::is_symlink(dir_ / "link"));
  EXPECT_EQ(Text("a"), "two");
  EXPECT_EQ(Mode("a"), 0640u);
  EXPECT_EQ(Mode("key"), 0600u);
  EXPECT_EQ(Files(), 3);
}

TEST_F(WholeFile, OfFilesThatFindNoRoomNothingIsLeftAndWhatWasThereStays) {
  ASSERT_TRUE(WriteWhole({{Path("key"), "old key"}, {Path("crt"), "old"}}).ok());
  absl::Status status;
  {
    const FullDisk full(100);
    status = WriteWhole({{Path("key"), "new key", 0600}, {Path("crt"), std::string(5000, 'x')}});
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(status.message(), "cannot write " + Path("crt") + ": File too large");
  EXPECT_EQ(Text("key") + ", " + Text("crt"), "old key, old");
  EXPECT_EQ(Files(), 2);
}

TEST_F(WholeFile, WhatIsNoFileIsWrittenIntoAndAFolderIsRefused) {
  EXPECT_TRUE(WriteWhole({{"/dev/null", "x"}}).ok());
  const absl::Status full = WriteWhole({{"/dev/full", "x"}});
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_EQ(full.message(), "cannot write /dev/full: No space left on device");
  EXPECT_TRUE(fs::is_character_file("/dev/full") && fs::is_character_file("/dev/null"));
  for (const std::string& bad : {dir_.string(), Path("none/x"), std::string("/dev/null/x"), std::string()})
    EXPECT_TRUE(absl::IsFailedPrecondition(WriteWhole({{bad, "x"}}))) << bad;
}

TEST_F(WholeFile, AGrowingFileHasWholePieces) {
  {
    GrowingFile file = GrowingFile::Open(Path("lines"), /*keep=*/false).value();
    EXPECT_TRUE(file.Add("first\n").ok());
    const FullDisk full(10);
    const absl::Status status = file.Add("the second\n");
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_EQ(status.message(), "cannot write " + Path("lines") + ": File too large");
    EXPECT_TRUE(file.Add("2\n").ok());
  }
  EXPECT_TRUE(GrowingFile::Open(Path("lines"), /*keep=*/true)->Add("3\n").ok());
  EXPECT_EQ(Text("lines"), "first\n2\n3\n");
  EXPECT_TRUE(absl::IsResourceExhausted(GrowingFile::Open("/dev/full", false)->Add("x")));
  EXPECT_TRUE(absl::IsFailedPrecondition(GrowingFile::Open(Path("none/x"), false).status()));
}

}  // namespace
}  // namespace baton
