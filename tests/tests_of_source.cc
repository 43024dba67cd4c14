// The program of several sources of tests: `program SOURCE [GoogleTest's flags]` runs those of one source, of which a
// flag may choose some. Each source is a ctest entry (cmake/baton_test.cmake).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <iostream>
#include <string>

namespace {

/// GoogleTest's filter for those tests of `source` that `chosen`, a filter too, leaves; empty where it has none.
std::string FilterOf(const std::string& source, const std::string& chosen) {
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  std::string others;
  bool found = false;
  for (int suite_index = 0; suite_index < all.total_test_suite_count(); ++suite_index) {
    const testing::TestSuite& suite = *all.GetTestSuite(suite_index);
    for (int index = 0; index < suite.total_test_count(); ++index) {
      const testing::TestInfo& test = *suite.GetTestInfo(index);
      if (std::filesystem::path(test.file()).filename() == source)
        found = true;
      else
        others += std::string(":") + suite.name() + "." + test.name();
    }
  }
  if (!found) return {};
  return chosen + (chosen.find('-') == std::string::npos ? "-" : "") + others;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  const std::string source = argc == 2 ? argv[1] : "";
  const std::string filter = FilterOf(source, GTEST_FLAG_GET(filter));
  if (filter.empty()) {
    std::cerr << "usage: " << argv[0] << " SOURCE [--gtest_…]: no test is of '" << source << "'\n";
    return 2;
  }
  GTEST_FLAG_SET(filter, filter);
  return RUN_ALL_TESTS();
}
