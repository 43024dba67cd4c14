// Http2Call by hand-made frames: what a server may say, in any pieces, and what it makes of it.
#include "router/outbound/http2_call.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "common/str_cat.h"
#include "tests/router/http2_frames.h"

namespace baton::router {
namespace {

using namespace http2;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr size_t kMost = 1 << 20;

// A call, and what came of it.
struct Talk {
  explicit Talk(size_t most_bytes = kMost)
      : call({"http", "worker:7000", "/baton.v1.Worker/Relay", {{"baton-session", "r/1"}}}, most_bytes,
             [this](std::string_view message) {
               messages.emplace_back(message);
               return taken;
             }) {
    Take();
  }
  std::string Take(size_t most = kMost) {
    absl::Cord out;
    call.TakeOutput(out, most);
    sent += std::string(out);
    return std::string(out);
  }
  Talk& Feed(const std::string& bytes) {
    call.Feed(bytes);
    Take();
    return *this;
  }

  absl::Status taken;  // what is said of a message
  std::vector<std::string> messages;
  std::string sent;
  Http2Call call;
};

std::string Code(const Talk& talk) {
  return talk.call.over() ? absl::StatusCodeToString(talk.call.status().code()) : "goes on";
}
std::string Words(const Talk& talk) {
  return talk.call.over() ? std::string(View(talk.call.status().message())) : "goes on";
}

TEST(Http2Call, BeginsWithThePrefaceSettingsAndTheRequest) {
  Talk talk;
  ASSERT_TRUE(talk.sent.starts_with(kPreface));
  const std::vector<Frame> frames = FramesOf(std::string_view(talk.sent).substr(kPreface.size()));
  ASSERT_GE(frames.size(), 3u);
  EXPECT_EQ(frames[0].type, kSettings);
  const Frame& request = frames.back();
  EXPECT_EQ(request.type, kHeaders);
  EXPECT_EQ(request.stream, 1u);
  EXPECT_EQ(request.flags & kEndStream, 0);
  EXPECT_FALSE(talk.call.over());
}

TEST(Http2Call, MessagesComeWholeHoweverTheirBytesAreSplit) {
  const std::string big(300, 'b'), all = Framed("one") + Framed("") + Framed(big) + Framed("four");
  const std::string said = Settings() + Answer() + Data(all.substr(0, 7)) + Data(all.substr(7, 60)) + Ping("12345678") +
                           Data(all.substr(67)) + Trailers("0");
  const auto expect_all = [&](const Talk& talk, size_t split) {
    EXPECT_THAT(talk.messages, ElementsAre("one", "", big, "four")) << "split at " << split;
    EXPECT_EQ(Code(talk), "OK") << "split at " << split;
  };
  for (size_t split = 0; split <= said.size(); ++split) {
    Talk talk;
    expect_all(talk.Feed(said.substr(0, split)).Feed(said.substr(split)), split);
  }
  Talk bytewise;
  for (const char c : said) bytewise.Feed(std::string(1, c));
  expect_all(bytewise, 1);
}

TEST(Http2Call, EndsWithTheStatusOfTheTrailers) {
  const auto end = [](const std::string& status, const std::string& message) {
    Talk talk;
    talk.Feed(Settings() + Answer() + Trailers(status, message));
    return StrCat(Code(talk), ": ", Words(talk));
  };
  EXPECT_EQ(end("7", "no"), "PERMISSION_DENIED: no");
  EXPECT_EQ(end("14", "%E2%82%AC at 100%25, line%0Atwo"), "UNAVAILABLE: € at 100%, line\ntwo");
  EXPECT_EQ(end("8", "50% of %zz and %4"), "RESOURCE_EXHAUSTED: 50% of %zz and %4");
  EXPECT_EQ(end("17", "new"), "UNKNOWN: new");
  EXPECT_EQ(end("x", "none"), "UNKNOWN: none");
  EXPECT_EQ(end("-1", "none"), "UNKNOWN: none");
}

TEST(Http2Call, TakesAnAnswerOfTrailersAlone) {
  Talk talk;
  talk.Feed(Settings() + Headers({{":status", "200"},
                                  {"content-type", "application/grpc"},
                                  {"grpc-status", "12"},
                                  {"grpc-message", "no such method"}},
                                 kEndStream));
  EXPECT_EQ(talk.call.status(), absl::UnimplementedError("no such method"));
}

TEST(Http2Call, AnAnswerWithoutAGrpcStatusHasTheHttpStatussMeaning) {
  const auto end = [](const std::string& http, uint8_t flags) {
    Talk talk;
    talk.Feed(Settings() + Headers({{":status", http}, {"content-type", "text/html"}}, flags));
    return Code(talk);
  };
  for (const uint8_t flags : {uint8_t{0}, kEndStream}) {
    EXPECT_EQ(end("400", flags), "INTERNAL");
    EXPECT_EQ(end("401", flags), "UNAUTHENTICATED");
    EXPECT_EQ(end("403", flags), "PERMISSION_DENIED");
    EXPECT_EQ(end("404", flags), "UNIMPLEMENTED");
    EXPECT_EQ(end("429", flags), "UNAVAILABLE");
    EXPECT_EQ(end("503", flags), "UNAVAILABLE");
    EXPECT_EQ(end("500", flags), "UNKNOWN");
    EXPECT_EQ(end("200", flags), "UNKNOWN");
  }
  EXPECT_EQ(end("100", 0), "goes on");
  Talk cut;
  cut.Feed(Settings() + Answer() + Data("", kEndStream));
  EXPECT_EQ(Code(cut), "UNKNOWN");
}

TEST(Http2Call, AResetStreamHasTheMeaningThatGrpcGivesIt) {
  const auto end = [](uint32_t code) {
    Talk talk;
    talk.Feed(Settings() + Answer() + Data(Framed("one")) + Reset(code));
    EXPECT_THAT(talk.messages, ElementsAre("one"));
    return Code(talk);
  };
  EXPECT_EQ(end(0x0), "INTERNAL");
  EXPECT_EQ(end(0x1), "INTERNAL");
  EXPECT_EQ(end(0x7), "UNAVAILABLE");
  EXPECT_EQ(end(0x8), "CANCELLED");
  EXPECT_EQ(end(0xb), "RESOURCE_EXHAUSTED");
  EXPECT_EQ(end(0xc), "PERMISSION_DENIED");
}

TEST(Http2Call, AServerThatClosesTheConnectionFinishesTheCallsItHasTaken) {
  Talk taken;
  taken.Feed(Settings() + Answer() + GoAway(1, 0, "maintenance") + Data(Framed("still")));
  EXPECT_EQ(Code(taken), "goes on");
  taken.Feed(Trailers("0"));
  EXPECT_EQ(Code(taken), "OK");
  EXPECT_THAT(taken.messages, ElementsAre("still"));

  Talk refused;
  refused.Feed(Settings() + GoAway(0, 11, "too_many_pings"));
  EXPECT_EQ(Code(refused), "UNAVAILABLE");
  EXPECT_THAT(Words(refused), HasSubstr("too_many_pings"));
}

TEST(Http2Call, MessagesThatCannotBeTakenEndTheCallWithTheNumbers) {
  Talk large(1000);
  large.Feed(Settings() + Answer() + Data(Framed(std::string(1000, 'x')) + Prefix(0, 1001)));
  EXPECT_EQ(large.messages.size(), 1u);
  EXPECT_EQ(Code(large), "RESOURCE_EXHAUSTED");
  EXPECT_THAT(Words(large), AllOf(HasSubstr("1001"), HasSubstr("1000")));

  Talk compressed;
  compressed.Feed(Settings() + Answer() + Data(Prefix(1, 3) + "abc"));
  EXPECT_EQ(Code(compressed), "INTERNAL");
  EXPECT_THAT(compressed.messages, IsEmpty());

  Talk cut;
  cut.Feed(Settings() + Answer() + Data(Prefix(0, 10) + "abc") + Trailers("0"));
  EXPECT_EQ(Code(cut), "INTERNAL");
  EXPECT_THAT(Words(cut), HasSubstr("after 8 bytes"));

  Talk refused;
  refused.taken = absl::InternalError("it is no RelayDown");
  refused.Feed(Settings() + Answer() + Data(Framed("one") + Framed("two")));
  EXPECT_THAT(refused.messages, ElementsAre("one"));
  EXPECT_EQ(refused.call.status(), refused.taken);
}

TEST(Http2Call, HeadersWithoutEndAreNotKept) {
  Talk talk;
  const std::string value(30000, 'v');
  const std::string block = HeaderBlock({{":status", "200"}, {"a", value}, {"b", value}, {"c", value}});
  std::string said = Settings() + FrameText(kHeaders, 0, 1, block.substr(0, 16000));
  for (size_t at = 16000; at < block.size(); at += 16000)
    said += FrameText(kContinuation, at + 16000 >= block.size() ? kEndHeaders : 0, 1, block.substr(at, 16000));
  talk.Feed(said);
  EXPECT_EQ(Code(talk), "RESOURCE_EXHAUSTED");
  EXPECT_THAT(Words(talk), HasSubstr("65536"));
}

TEST(Http2Call, SendsAsMuchAsTheServersWindowsAllow) {
  constexpr size_t kWindow = 65535;
  Talk talk;
  talk.Feed(Settings());
  std::string message;
  for (int i = 0; message.size() < 200000; ++i) message += StrCat(i, ",");
  talk.sent.clear();
  absl::Cord pieces(message.substr(0, 10));
  pieces.Append(absl::Cord(message.substr(10)));
  talk.call.Send(std::move(pieces));
  while (!talk.Take(10000).empty()) continue;
  EXPECT_EQ(DataIn(talk.sent).size(), kWindow);
  EXPECT_TRUE(talk.call.unsent());
  talk.Feed(WindowUpdate(1, 70000) + WindowUpdate(0, 10));
  EXPECT_EQ(DataIn(talk.sent).size(), kWindow + 10);
  talk.Feed(WindowUpdate(0, 1000000));
  EXPECT_EQ(DataIn(talk.sent).size(), kWindow + 70000);
  talk.Feed(WindowUpdate(1, 1000000));
  EXPECT_EQ(DataIn(talk.sent), Framed(message));
  EXPECT_FALSE(talk.call.unsent());

  talk.sent.clear();
  talk.call.Send(absl::Cord("again"));
  talk.call.Send({});
  talk.Take();
  EXPECT_EQ(DataIn(talk.sent), Framed("again") + Framed(""));
}

TEST(Http2Call, FramesAreAsLongAsTheServerTakesUpToABound) {
  const auto longest = [](uint32_t servers_most) {
    Talk talk;
    talk.Feed(FrameText(kSettings, 0, 0,
                        BigEndian(kMaxFrameSize, 2) + BigEndian(servers_most, 4) + BigEndian(kInitialWindow, 2) +
                            BigEndian(4 << 20, 4)) +
              WindowUpdate(0, 4 << 20));
    std::string message(1000000, 'm');
    for (size_t i = 0; i < message.size(); i += 7) message[i] = static_cast<char>(i);
    talk.sent.clear();
    talk.call.Send(absl::Cord(message));
    while (!talk.Take().empty()) continue;
    EXPECT_EQ(DataIn(talk.sent), Framed(message)) << servers_most;
    size_t most = 0;
    for (const Frame& frame : FramesOf(talk.sent)) most = std::max(most, frame.payload.size());
    return most;
  };
  EXPECT_EQ(longest(16384), 16384u);
  EXPECT_EQ(longest(100000), 100000u);
  EXPECT_EQ(longest(16777215), 262144u);
}

TEST(Http2Call, GivesTheServerNewWindowsForWhatItHasTaken) {
  Talk talk;
  int64_t stream = 4 << 20, connection = 8 << 20;  // what the server may send
  talk.Feed(Settings() + Answer());
  talk.sent.clear();
  const std::string piece = Data(Framed(std::string(16000, 'x')));
  for (int i = 0; i < 3000; ++i) {
    stream -= 16005;
    connection -= 16005;
    ASSERT_GT(std::min(stream, connection), 0) << "after " << i << " messages";
    talk.Feed(piece);
    for (const Frame& frame : FramesOf(std::exchange(talk.sent, {}))) {
      if (frame.type == kWindowUpdate) (frame.stream == 0 ? connection : stream) += Number32(frame.payload);
    }
  }
  EXPECT_EQ(talk.messages.size(), 3000u);
}

TEST(Http2Call, CancelTellsTheServer) {
  Talk talk;
  talk.Feed(Settings() + Answer());
  talk.call.Send(absl::Cord(std::string(100000, 'x')));
  talk.sent.clear();
  talk.call.Cancel();
  EXPECT_EQ(Code(talk), "CANCELLED");
  talk.Take();
  const std::vector<Frame> frames = FramesOf(talk.sent);
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].type, kReset);
  EXPECT_EQ(Number32(frames[0].payload), 8u);
  talk.Feed(Data(Framed("late")) + Trailers("0"));
  talk.call.Send(absl::Cord("late"));
  EXPECT_EQ(Code(talk), "CANCELLED");
  EXPECT_THAT(talk.messages, IsEmpty());
  EXPECT_FALSE(talk.call.unsent());
}

TEST(Http2Call, ALostConnectionIsUnavailableUnlessTheCallHasEnded) {
  Talk lost;
  lost.Feed(Settings() + Answer()).call.Lost("reset by peer");
  EXPECT_EQ(lost.call.status(), absl::UnavailableError("reset by peer"));
  Talk ended;
  ended.Feed(Settings() + Answer() + Trailers("5", "gone")).call.Lost("reset by peer");
  EXPECT_EQ(ended.call.status(), absl::NotFoundError("gone"));
}

TEST(Http2Call, PingsAreAskedAndAnswered) {
  Talk talk;
  talk.Feed(Settings());
  talk.sent.clear();
  talk.call.Ping();
  talk.Feed(Ping("abcdefgh"));
  const std::vector<Frame> frames = FramesOf(talk.sent);
  ASSERT_EQ(frames.size(), 2u);
  const bool ours_first = (frames[0].flags & kAck) == 0;
  const Frame &ours = frames[ours_first ? 0 : 1], &answer = frames[ours_first ? 1 : 0];
  EXPECT_EQ(ours.type, kPing);
  EXPECT_EQ(answer.type, kPing);
  EXPECT_EQ(answer.flags, kAck);
  EXPECT_EQ(answer.payload, "abcdefgh");
}

TEST(Http2Call, WhatIsNotHttp2EndsTheCall) {
  Talk http1;
  http1.Feed("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nno");
  EXPECT_EQ(Code(http1), "UNAVAILABLE");
  Talk unasked;  // a message before any headers
  unasked.Feed(Settings() + Data(Framed("one")));
  EXPECT_THAT(unasked.messages, IsEmpty());
  EXPECT_TRUE(unasked.call.over());
  Talk other;  // of a stream that nobody opened
  other.Feed(Settings() + FrameText(kData, 0, 7, Framed("one")));
  EXPECT_EQ(Code(other), "UNAVAILABLE");
  Talk tables;  // a header block that is none
  tables.Feed(Settings() + FrameText(kHeaders, kEndHeaders, 1, "\xff\xff\xff\xff\xff\xff"));
  EXPECT_EQ(Code(tables), "UNAVAILABLE");
}

TEST(Http2Call, NoByteThatChangesBreaksIt) {
  const std::string said = Settings() + Answer() + Data(Framed("one")) + WindowUpdate(1, 100) + Ping("12345678") +
                           Data(Framed(std::string(100, 'b'))) + Trailers("7", "a%20b");
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    std::string changed = said;
    for (int i = 0; i < 1 + round % 3; ++i) changed[random() % changed.size()] = static_cast<char>(random());
    const size_t split = random() % changed.size();
    Talk talk;
    talk.call.Send(absl::Cord("order"));
    talk.Feed(changed.substr(0, split)).Feed(changed.substr(split));
    for (const std::string& message : talk.messages) EXPECT_LE(message.size(), kMost);
    talk.call.Lost("the end");
    EXPECT_TRUE(talk.call.over());
  }
}

}  // namespace
}  // namespace baton::router
