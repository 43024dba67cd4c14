// What a log line looks like; the process's standard output is where it goes.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/log_fields.h"

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

}  // namespace
}  // namespace baton
