// What a gRPC port does before gRPC hears of a connection: it waits for its first bytes and looks at them.
#include "common/grpc/first_flight.h"
#include "tests/common/grpc_port.h"

namespace baton::net {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

const std::string kPing("\0\0\x08\6\0\0\0\0\0abcdefgh", 17);
const std::string kReset("\0\0\4\3\0\0\0\0\1\0\0\0\x08", 13);
const std::string kWindowUpdate("\0\0\4\x08\0\0\0\0\0\0\1\0\0", 13);

TEST(FirstFlight, IsUnfinishedUntilThePrefaceAndTheHeadOfItsSettingsAreHere) {
  for (size_t bytes = 0; bytes < kPreface.size(); ++bytes)
    EXPECT_EQ(JudgeFirstFlight(std::string_view(kPreface).substr(0, bytes)), FirstFlight::kUnfinished) << bytes;
  EXPECT_EQ(JudgeFirstFlight(kPreface), FirstFlight::kHttp2);
}

TEST(FirstFlight, ThatIsNotHttp2IsKnownByItsFirstWrongByte) {
  EXPECT_EQ(JudgeFirstFlight("PUT"), FirstFlight::kNotHttp2);
  EXPECT_EQ(JudgeFirstFlight("GET / HTTP/1.1\r\n"), FirstFlight::kNotHttp2);
  EXPECT_EQ(JudgeFirstFlight("\x16\x03\x01"), FirstFlight::kNotHttp2) << "TLS to a port that speaks none";
  EXPECT_EQ(JudgeFirstFlight(kPreface.substr(0, 24) + OneCall(/*end=*/true)), FirstFlight::kNotHttp2)
      << "SETTINGS come first";
}

TEST(FirstFlight, MayAskAsMuchAsItLikesAndHasFewFramesThatAskNothing) {
  EXPECT_EQ(JudgeFirstFlight(kPreface + kWindowUpdate + ManyCalls(/*given_up=*/false)), FirstFlight::kHttp2);
  const int spare = static_cast<int>(kMostVainFrames) - 1;  // SETTINGS are one
  for (const std::string& vain : {kSettings, kPing, kReset}) {
    EXPECT_EQ(JudgeFirstFlight(kPreface + Times(spare, vain)), FirstFlight::kHttp2);
    EXPECT_EQ(JudgeFirstFlight(kPreface + Times(spare + 1, vain)), FirstFlight::kVainFrames);
  }
  EXPECT_EQ(JudgeFirstFlight(kPreface + ManyCalls(/*given_up=*/true)), FirstFlight::kVainFrames);
  EXPECT_EQ(JudgeFirstFlight(kPreface + std::string("\xff\xff\xff\0\0\0\0\0\1", 9) + "x"), FirstFlight::kHttp2)
      << "a message that is longer than what is here";
}

GrpcAcceptor::Options PlainText(milliseconds first_bytes_time) {
  return {.limits = {.most = 100}, .vain_tries = 50, .first_bytes_time = first_bytes_time, .plain_text = true};
}

TEST_F(Port, GrpcHearsOfNoConnectionThatSaysNothingAndItIsClosed) {
  Start(PlainText(milliseconds(200)));
  const Socket silent(acceptor_->port(), "127.0.0.1"), halfway(acceptor_->port(), "127.0.0.1");
  halfway.Send(kPreface.substr(0, 30));
  EXPECT_FALSE(silent.Served()) << "gRPC would send its SETTINGS";
  EXPECT_FALSE(halfway.Served());
  EXPECT_TRUE(silent.Ended() && halfway.Ended());
  EXPECT_TRUE(Dial().second);
}

TEST_F(Port, WhatIsNoGrpcIsClosedAndCountedBeforeGrpcHearsOfIt) {
  Start(PlainText(hours(1)));
  for (const auto& [bytes, why] : {std::pair<std::string, const char*>{"noise", "not-http2"},
                                   {kPreface + ManyCalls(/*given_up=*/true), "vain-frames"}}) {
    const Socket socket(acceptor_->port(), "127.0.0.1");
    socket.Send(bytes);
    EXPECT_EQ(socket.Served(), why == std::string("not-http2")) << "who speaks TLS, say, is told what this port speaks";
    EXPECT_TRUE(socket.Ended()) << why << ": it is reset, and what it was told is lost";
    EXPECT_EQ(Refused(why), 1);
  }
  EXPECT_TRUE(Dial().second);
}

TEST_F(Port, AClientWhosePrefaceComesInPiecesIsServedAndItsCallAnswered) {
  Start(PlainText(hours(1)));
  const Socket socket(acceptor_->port(), "127.0.0.1");
  for (size_t at = 0; at < kPreface.size(); ++at) {
    EXPECT_TRUE(socket.Quiet()) << at;
    socket.Send(kPreface.substr(at, 1));
  }
  EXPECT_TRUE(socket.Served());
  Watch watch(acceptor_->port());
  EXPECT_TRUE(watch.Answered());
}

TEST_F(Port, WhatComesFirstAndIsVainCountsTwiceAndByItsBytes) {
  GrpcAcceptor::Options options = PlainText(hours(1));
  options.limits.loopback_too = true;
  options.vain_tries = 20;
  Start(std::move(options));
  int looked_at = 0;
  for (; Refused("vain-tries-per-address") == 0; ++looked_at) {
    ASSERT_LT(looked_at, 20);
    const Socket socket(acceptor_->port(), "127.0.0.2");
    socket.Send(kPreface + Times(1820, kSettings));  // 2 tries more
    EXPECT_TRUE(socket.Ended());
  }
  EXPECT_LE(looked_at, 10);
  EXPECT_TRUE(Dial("127.0.0.3").second);
}

TEST_F(Port, WhoSaysNothingGivesWayBeforeGrpcHearsOfHim) {
  GrpcAcceptor::Options options = PlainText(hours(1));
  options.limits.most = 2;
  options.useful_stay = true;
  Start(std::move(options));
  std::vector<std::unique_ptr<Socket>> silent;
  for (int i = 0; i < 5; ++i) silent.push_back(std::make_unique<Socket>(acceptor_->port(), "127.0.0.1"));
  EXPECT_TRUE(WaitFor([&] { return Refused("for-another") == 3; }));
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(silent[i]->Ended()) << i;
  EXPECT_TRUE(Dial().second);
}

TEST_F(Port, ThatStopsClosesThoseOfWhomGrpcHasNotHeard) {
  Start(PlainText(hours(1)));
  const Socket silent(acceptor_->port(), "127.0.0.1");
  EXPECT_TRUE(Dial().second) << "the one before it was taken";
  acceptor_->Stop();
  EXPECT_TRUE(silent.Ended());
}

}  // namespace
}  // namespace baton::net
