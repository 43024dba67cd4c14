// The ways to a decode worker, tried one after the other with the self-test on: over real TCP connections.
#include "prefill_worker/dialer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "common/str_cat.h"
#include "kvtransfer/lane_codec.h"
#include "tests/held_port.h"
#include "tests/prefill_worker/far_end.h"
#include "tests/worker/hand_loop.h"

namespace baton::prefill_worker {
namespace {

using ::testing::HasSubstr;

class Dialled final : public DialEvents {
 public:
  void OnReached(prefill::PeerId, Way) override { log += "Reached "; }
  void OnPeerMessage(prefill::PeerId peer, std::string_view bytes) override {
    log += "Heard ";
    if (!DecodeLaneMessage(bytes).ok()) dialer->Drop(peer, absl::InvalidArgumentError("nonsense"));
  }
  void OnPeerLost(prefill::PeerId, const absl::Status& status) override {
    log += "Lost ";
    why = std::string(status.message());
  }
  Dialer* dialer = nullptr;
  std::string log, why;
};

class DialerTest : public ::testing::Test {
 protected:
  DialerTest() { told_.dialer = &dialer_; }
  void Dial(std::vector<std::string> addresses) {
    dialer_.Dial(kFar, LandingAddresses{ThisMachine(), std::move(addresses)}.Pack());
  }
  void Until(const std::function<bool()>& enough) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!enough()) {
      loop_.Turn();
      ASSERT_LT(std::chrono::steady_clock::now(), end) << "took too long; told: " << told_.log;
    }
  }

  worker::HandLoop loop_;
  SteadyClock clock_;
  Dialled told_;
  Dialer dialer_{{.host = "127.0.0.1", .kinds = {"tcp"}}, clock_, loop_, told_};
};

TEST_F(DialerTest, AWayThatPassesItsSelfTestIsToldOfAndHeardOn) {
  FarEnd far(loop_, FarEnd::Answers::kWell);
  Dial({far.address()});
  Until([&] { return told_.log == "Reached "; });
  ASSERT_EQ(dialer_.paths().size(), 1u);
  EXPECT_EQ(dialer_.paths()[0].incarnation, "d1");
  EXPECT_GT(dialer_.paths()[0].gigabytes_per_second, 0);
  far.Say(EncodeLaneMessage(ToPrefill(LaneBusy{kFarLane})));
  Until([&] { return told_.log == "Reached Heard "; });
  EXPECT_EQ(dialer_.failed_self_tests(), 0);
}

TEST_F(DialerTest, AWayThatFailsItsSelfTestIsLeftAndTheNextOneTried) {
  for (const auto how : {FarEnd::Answers::kThatAllIsWrong, FarEnd::Answers::kByHangingUp}) {
    told_.log.clear();
    const int64_t failed_before = dialer_.failed_self_tests();
    FarEnd bad(loop_, how), good(loop_, FarEnd::Answers::kWell);
    Dial({bad.address(), good.address()});
    Until([&] { return told_.log == "Reached "; });
    EXPECT_EQ(dialer_.failed_self_tests(), failed_before + 1);
    if (how == FarEnd::Answers::kThatAllIsWrong) Until([&] { return bad.lost; });
    good.HangUp();
    Until([&] { return told_.log == "Reached Lost "; });
    EXPECT_TRUE(dialer_.paths().empty());
  }
}

TEST_F(DialerTest, WhereNoWayWorksEachIsNamedWithItsReason) {
  FarEnd wrong(loop_, FarEnd::Answers::kThatAllIsWrong), gone(loop_, FarEnd::Answers::kByHangingUp);
  Dial({"shm:elsewhere", "tcp:1.2.3.4:0", wrong.address(), gone.address()});
  Until([&] { return told_.log == "Lost "; });
  EXPECT_THAT(told_.why, HasSubstr("shm: not used here, which uses tcp"));
  EXPECT_THAT(told_.why, HasSubstr("; tcp: \"1.2.3.4:0\" is no address"));
  EXPECT_THAT(told_.why, HasSubstr("wrong bytes arrived"));
  EXPECT_THAT(told_.why, HasSubstr(gone.address() + ": "));
}

TEST_F(DialerTest, SharedMemoryIsNoWayToAnotherMachine) {
  Dialer both({.host = "127.0.0.1", .kinds = {"shm", "tcp"}}, clock_, loop_, told_);
  both.Dial(kFar, LandingAddresses{"another machine", {"shm:somewhere"}}.Pack());
  EXPECT_EQ(told_.log, "Lost ");
  EXPECT_THAT(told_.why, HasSubstr("shm: it runs on another machine"));
}

TEST_F(DialerTest, OfAPeerThatWasDroppedNothingMoreIsHeard) {
  FarEnd far(loop_, FarEnd::Answers::kWell);
  Dial({far.address()});
  Until([&] { return told_.log == "Reached "; });
  for (int i = 0; i < 2; ++i) far.Say("\xff\xff");
  Until([&] { return far.lost; });
  EXPECT_EQ(told_.log, "Reached Heard Lost ");
}

}  // namespace
}  // namespace baton::prefill_worker
