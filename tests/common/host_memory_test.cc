// Over folders that look like /proc and /sys/fs/cgroup of machines and containers of both versions.
#include "common/host_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace baton {
namespace {

class HostMemory : public ::testing::Test {
 protected:
  HostMemory() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = std::filesystem::path(::testing::TempDir()) / (std::string("host_memory.") + test->name());
    std::filesystem::remove_all(root_);
    files = {root_ / "proc", root_ / "cgroup"};
    Write("proc/meminfo",
          "MemTotal:       16000 kB\nMemFree:  10 kB\nMemAvailable:    8000 kB\nHugePages_Total:       3\n");
  }
  ~HostMemory() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  /// A version-2 group with this limit and use, of which `cache` is file cache, half of it lately used.
  void Group2(const std::string& path, const std::string& limit, int used, int cache) {
    Write("cgroup" + path + "/memory.max", limit + "\n");
    Write("cgroup" + path + "/memory.current", std::to_string(used) + "\n");
    Write("cgroup" + path + "/memory.stat", "anon 1\nfile 999999999\nshmem 2\ninactive_file " +
                                                std::to_string(cache / 2) + "\nactive_file " +
                                                std::to_string(cache - cache / 2) + "\n");
  }
  void Group1(const std::string& path, const std::string& limit, int used, int cache) {
    Write("cgroup/memory" + path + "/memory.limit_in_bytes", limit + "\n");
    Write("cgroup/memory" + path + "/memory.usage_in_bytes", std::to_string(used) + "\n");
    Write("cgroup/memory" + path + "/memory.stat",
          "cache 7\nactive_file 5\ntotal_inactive_file " + std::to_string(cache) + "\ntotal_active_file 0\n");
  }
  std::optional<int64_t> Available() const { return AvailableMemoryBytes(files); }

  std::filesystem::path root_;
  MemoryFiles files;
  static constexpr int64_t kMachine = 8000 * 1024;
};

TEST_F(HostMemory, WithoutGroupsItIsWhatTheKernelCallsAvailable) { EXPECT_EQ(Available(), kMachine); }

TEST_F(HostMemory, AGroupOfVersion2LeavesItsLimitLessWhatIsNotFileCache) {
  Write("proc/self/cgroup", "0::/\n");
  Group2("", "5000", 3000, 1001);
  EXPECT_EQ(Available(), 5000 - (3000 - 1001));
}

TEST_F(HostMemory, AGroupAboveMayBeTighter) {
  Write("proc/self/cgroup", "0::/pod/container\n");
  Group2("/pod", "4000", 3500, 0);
  Group2("/pod/container", "5000", 100, 0);
  EXPECT_EQ(Available(), 500);
  Group2("/pod/container", "400", 100, 0);
  EXPECT_EQ(Available(), 300);
}

TEST_F(HostMemory, AGroupWithoutALimitIsNone) {
  Write("proc/self/cgroup", "0::/pod\n");
  Group2("/pod", "max", 3500, 0);
  EXPECT_EQ(Available(), kMachine);
}

TEST_F(HostMemory, AGroupLargerThanTheMachineIsNoMoreThanTheMachine) {
  Write("proc/self/cgroup", "4:memory:/\n");
  Group1("", "9223372036854771712", 3500, 0);
  EXPECT_EQ(Available(), kMachine);
}

TEST_F(HostMemory, AGroupOfVersion1IsFoundAmongItsControllers) {
  Write("proc/self/cgroup", "5:devices:/a\n4:cpu,memory:/b/c\n1:name=systemd:/memory\n0::/\n");
  Group1("/b", "7000", 3000, 1000);
  EXPECT_EQ(Available(), 5000);
}

TEST_F(HostMemory, InAContainerThePathOutsideIsNotThereButItsRootIs) {
  Write("proc/self/cgroup", "4:memory:/docker/0123\n");
  Group1("", "6000", 3000, 500);
  EXPECT_EQ(Available(), 3500);
}

TEST_F(HostMemory, AFullGroupLeavesNothing) {
  Write("proc/self/cgroup", "0::/\n");
  Group2("", "5000", 6000, 0);
  EXPECT_EQ(Available(), 0);
  Group2("", "5000", 600, 700);  // more cache than use: read at two moments
  EXPECT_EQ(Available(), 5000);
}

TEST_F(HostMemory, AGroupCountsWhereMeminfoCannotBeRead) {
  std::filesystem::remove(root_ / "proc/meminfo");
  EXPECT_EQ(Available(), std::nullopt);
  Write("proc/self/cgroup", "0::/\n");
  Group2("", "5000", 1000, 0);
  EXPECT_EQ(Available(), 4000);
}

TEST_F(HostMemory, MemInfoKnowsItsUnits) {
  EXPECT_EQ(MemInfo("MemTotal", files), 16000 * 1024);
  EXPECT_EQ(MemInfo("HugePages_Total", files), 3);
  EXPECT_EQ(MemInfo("Mem", files), std::nullopt);
}

TEST(ThisMachine, SaysHowMuchIsFree) { EXPECT_GT(AvailableMemoryBytes().value_or(0), 1 << 20); }

}  // namespace
}  // namespace baton
