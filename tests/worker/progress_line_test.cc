#include "worker/process/progress_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <vector>

namespace baton::worker {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class ProgressLineTest : public testing::Test {
 protected:
  void Make(bool terminal) {
    ProgressLine::Sinks sinks;
    sinks.line = [this](const std::string& text) { lines_.push_back(text); };
    if (terminal) sinks.terminal = [this](const std::string& text) { drawn_.push_back(text); };
    line_ = std::make_unique<ProgressLine>(clock_, std::move(sinks));
  }
  FakeClock clock_;
  std::vector<std::string> lines_, drawn_;
  std::unique_ptr<ProgressLine> line_;
};

TEST_F(ProgressLineTest, WithoutATerminalThereIsALineEveryFiveSeconds) {
  Make(false);
  for (int second = 0; second <= 11; ++second) {
    line_->Show("pack", second / 11.0);
    clock_.Advance(milliseconds(1000));
  }
  EXPECT_THAT(lines_, ElementsAre("worker: pack 45 %", "worker: pack 91 %"));
}

TEST_F(ProgressLineTest, ATerminalsLineIsRedrawnTenTimesASecondAndEndsWhereItBegan) {
  Make(true);
  for (int i = 0; i <= 20; ++i) {
    line_->Show("read", i / 20.0);
    clock_.Advance(milliseconds(50));
  }
  EXPECT_EQ(drawn_.size(), 10u);
  EXPECT_THAT(lines_, IsEmpty());
  EXPECT_THAT(drawn_.back(), HasSubstr("[==============================] worker: read 100 %"));
  for (const std::string& one : drawn_) EXPECT_EQ(one.back(), '\r');
}

TEST_F(ProgressLineTest, TheTerminalIsLeftClean) {
  Make(true);
  clock_.Advance(milliseconds(200));
  line_->Show("read", 0.5);
  line_.reset();
  EXPECT_EQ(drawn_.back(), "\x1b[K");
}

TEST_F(ProgressLineTest, AStartUpTooShortToSeeWritesNothing) {
  Make(true);
  line_->Show("read", 0.5);
  line_.reset();
  EXPECT_THAT(drawn_, IsEmpty());
}

}  // namespace
}  // namespace baton::worker
