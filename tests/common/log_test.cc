// What a log line looks like; the process's standard output is where it goes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "common/json.h"
#include "common/log_fields.h"
#include "common/lost_log_lines.h"

namespace baton {
namespace {

std::string LineOf(const std::string& message) {
  testing::internal::CaptureStdout();
  LogWarning("{}", message);
  return testing::internal::GetCapturedStdout();
}

TEST(Log, AJsonLineIsOneObjectWhateverTheMessageIs) {
  SetLogFormat("json");
  SetLogName("prefill-0 \"100%\"");
  for (const std::string message :
       {"plain", "a \"quoted\" \\ path", "two\nlines\t\x1b[31m", "caf\u00e9 \u4f60", "100 %v %l"}) {
    const std::string line = LineOf(message);
    ASSERT_EQ(line.find('\n'), line.size() - 1) << line;
    const auto object = nlohmann::json::parse(line);
    EXPECT_EQ(object["message"], message);
    EXPECT_EQ(object["level"], "warning");
    EXPECT_EQ(object["process"], "prefill-0 \"100%\"");
    EXPECT_EQ(object["time"].get<std::string>().find('T'), 10u) << line;
  }
  EXPECT_EQ(nlohmann::json::parse(LineOf("cut \xe4\xbd"))["message"], "cut \ufffd");
}

TEST(Log, FieldsStandBesideTheMessageInJsonAlone) {
  SetLogFormat("json");
  SetLogName("router");
  const auto lines = [] {
    testing::internal::CaptureStdout();
    LogWithFields(LogLevel::kInfo, "done", {{"id", "a\"b"}, {"tokens", int64_t{7}}, {"ms", 1.25}});
    return testing::internal::GetCapturedStdout();
  };
  const auto object = nlohmann::json::parse(lines());
  EXPECT_EQ(object["message"], "done");
  EXPECT_EQ(object["id"], "a\"b");
  EXPECT_EQ(object["tokens"], 7);
  EXPECT_EQ(object["ms"], 1.25);
  SetLogFormat("text");
  SetLogName("router");
  EXPECT_TRUE(lines().ends_with("[router] done\n"));
}

TEST(Log, ATextLineHasTimeLevelAndProcess) {
  SetLogFormat("text");
  SetLogName("decode-1");
  const std::string line = LineOf("says \"this\"");
  EXPECT_NE(line.find("[warning] [decode-1] says \"this\"\n"), std::string::npos) << line;
}

TEST(Log, LinesBelowTheLevelAreNotWritten) {
  SetLogFormat("text");
  SetLogLevel("error");
  EXPECT_FALSE(IsLogged(LogLevel::kWarning));
  EXPECT_EQ(LineOf("unseen"), "");
  SetLogLevel("debug");
  EXPECT_TRUE(IsLogged(LogLevel::kDebug));
  EXPECT_NE(LineOf("seen"), "");
  SetLogLevel("info");
}

TEST(Log, ATextLineIsOneLineWhateverAPeerHasSaid) {
  SetLogFormat("text");
  SetLogName("router");
  const std::string line = LineOf("worker a\n[2026-01-01] [error] [router] forged\x1b[2J: lost");
  EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
  EXPECT_EQ(line.find('\x1b'), std::string::npos) << line;
  EXPECT_NE(line.find("worker a\\n[2026"), std::string::npos) << line;
}

TEST(Log, ALineHasALength) {
  const std::string said(1 << 20, 'x');
  for (const char* format : {"text", "json"}) {
    SetLogFormat(format);
    const std::string line = LineOf(said);
    EXPECT_LT(line.size(), 20'000u) << format;
    EXPECT_NE(line.find("(1048576 bytes)"), std::string::npos) << format;
  }
  SetLogFormat("text");
}

/// Standard output is another file while it lives.
class OutputTo {
 public:
  explicit OutputTo(const std::string& path) {
    std::fflush(stdout);
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    EXPECT_GE(dup2(file, STDOUT_FILENO), 0) << path;
    close(file);
  }
  ~OutputTo() {
    dup2(before_, STDOUT_FILENO);
    close(before_);
  }
  OutputTo(const OutputTo&) = delete;
  OutputTo& operator=(const OutputTo&) = delete;

 private:
  const int before_ = dup(STDOUT_FILENO);
};

std::vector<std::string> LinesOf(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST(Log, LinesThatFindNoRoomAreCountedSaidOnceAndMissedInTheNextOne) {
  for (const char* format : {"text", "json"}) {
    SetLogFormat(format);
    SetLogName("router");
    const int64_t before = LostLogLines();
    testing::internal::CaptureStderr();
    {
      const OutputTo full("/dev/full");
      for (int i = 0; i < 5; ++i) LogInfo("nobody reads this {}", i);
    }
    EXPECT_EQ(LostLogLines() - before, 5);
    EXPECT_EQ(testing::internal::GetCapturedStderr(),
              "baton: cannot write the log to standard output: No space left on device; lines are lost until it can be "
              "written\n");
    const std::string lines = LineOf("there is room");
    const size_t first = lines.find('\n') + 1;
    EXPECT_NE(lines.substr(0, first).find("5 lines of the log are missing here: No space left on device"),
              std::string::npos)
        << lines;
    EXPECT_NE(lines.substr(first).find("there is room"), std::string::npos) << lines;
    EXPECT_EQ(lines.find('\n', first), lines.size() - 1) << lines;
    if (std::string(format) == "json") {
      EXPECT_EQ(nlohmann::json::parse(lines.substr(0, first))["level"], "warning");
    }
    EXPECT_EQ(LineOf("and more").find("missing"), std::string::npos);
  }
  SetLogFormat("text");
}

TEST(Log, ALineThatFoundRoomForAPartOfItIsEndedBeforeTheNextOne) {
  SetLogFormat("text");
  SetLogName("router");
  const std::string path = testing::TempDir() + "torn.log";
  unlink(path.c_str());
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  {
    const OutputTo file(path);
    LogInfo("{}", std::string(100, 'a'));
    rlimit less = limit;
    less.rlim_cur = 200;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &less), 0);
    for (int i = 0; i < 3; ++i) LogInfo("{}", std::string(100, 'b'));
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    LogInfo("{}", std::string(100, 'c'));
  }
  const std::vector<std::string> lines = LinesOf(path);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_TRUE(lines[0].ends_with("a"));
  EXPECT_TRUE(lines[1].ends_with("b")) << "as much of it as found room";
  EXPECT_NE(lines[2].find("3 lines of the log are missing here: File too large"), std::string::npos) << lines[2];
  EXPECT_TRUE(lines[3].ends_with(std::string(100, 'c'))) << lines[3];
}

}  // namespace
}  // namespace baton
