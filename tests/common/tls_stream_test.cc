// The bytes between two of our processes: the same in TLS and as they are, and who is refused hears why.
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <optional>

#include "common/tls/context.h"
#include "common/tls/stream.h"
#include "tests/common/tls_fixture.h"

namespace baton::tls {
namespace {

using ::testing::HasSubstr;

/// Two ends of a connection, and what came to each.
class Pair {
 public:
  /// `dials`, `dialled`: null for plain text.
  Pair(std::shared_ptr<const Context> dials, std::shared_ptr<const Context> dialled) {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets_), 0);
    here.emplace(sockets_[0], std::move(dials));
    there.emplace(sockets_[1], std::move(dialled));
  }
  ~Pair() { Hang(here, 0), Hang(there, 1); }
  void Hang(std::optional<Stream>& end, int number) {
    end.reset();
    if (sockets_[number] >= 0) close(std::exchange(sockets_[number], -1));
  }
  /// What has come to an end by now.
  static absl::Status Hear(Stream& end, std::string& heard) {
    char bytes[10'000];
    for (;;) {
      const absl::StatusOr<size_t> got = end.Read(bytes, sizeof bytes);
      if (!got.ok()) return got.status();
      if (*got == 0) return absl::OkStatus();
      heard.append(bytes, *got);
    }
  }
  static size_t Say(Stream& end, std::string_view bytes) {
    const size_t half = bytes.size() / 2;
    const iovec pieces[2] = {{const_cast<char*>(bytes.data()), half},
                             {const_cast<char*>(bytes.data()) + half, bytes.size() - half}};
    return end.Write(pieces).value();
  }
  /// Turns both ends until `enough`.
  template <class Enough>
  void Until(Enough&& enough) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!enough()) {
      ASSERT_LT(std::chrono::steady_clock::now(), end);
      if (here && here_status.ok()) here_status = Hear(*here, to_here);
      if (there && there_status.ok()) there_status = Hear(*there, to_there);
      if (here && here_status.ok()) here->Flush().IgnoreError();
      if (there && there_status.ok()) there->Flush().IgnoreError();
    }
  }
  void Meet() {
    Until([&] { return here->ready() && there->ready(); });
  }

  std::optional<Stream> here, there;
  std::string to_here, to_there;
  absl::Status here_status, there_status;

 private:
  int sockets_[2] = {-1, -1};
};

class StreamTest : public ::testing::TestWithParam<bool> {
 protected:
  StreamTest() {
    if (!GetParam()) return;
    const auto tls = TestPeerTls();
    dials_ = tls->ForDialling("127.0.0.1").value();
    dialled_ = tls->ForDialled().value();
  }
  std::shared_ptr<const Context> dials_, dialled_;
};

TEST_P(StreamTest, BytesComeInOrderBothWaysThroughSocketsThatAreFull) {
  Pair pair(dials_, dialled_);
  pair.Meet();
  std::string up, down;
  for (int i = 0; i < 3'000'000; ++i)
    up += static_cast<char>(i * 7 + i / 251), down += static_cast<char>(i * 3 + i / 97);
  size_t up_sent = 0, down_sent = 0;
  while (const size_t more = Pair::Say(*pair.here, std::string_view(up).substr(up_sent))) up_sent += more;
  EXPECT_LT(up_sent, up.size()) << "nobody reads, and the socket takes no end of it";
  pair.Until([&] {
    up_sent += Pair::Say(*pair.here, std::string_view(up).substr(up_sent));
    down_sent += Pair::Say(*pair.there, std::string_view(down).substr(down_sent));
    return pair.to_here.size() == down.size() && pair.to_there.size() == up.size();
  });
  EXPECT_TRUE(pair.to_there == up && pair.to_here == down);
}

TEST_P(StreamTest, WhatWasTakenMayBeForgottenAtOnce) {
  Pair pair(dials_, dialled_);
  pair.Meet();
  std::string bytes(100'000, 'a');
  std::string sent;
  while (const size_t more = Pair::Say(*pair.here, bytes)) {
    sent += bytes.substr(0, more);
    bytes.assign(bytes.size(), static_cast<char>(bytes[0] + 1));
  }
  pair.Until([&] { return pair.to_there.size() == sent.size(); });
  EXPECT_TRUE(pair.to_there == sent);
}

TEST_P(StreamTest, WhatNobodyWantsIsThrownAway) {
  Pair pair(dials_, dialled_);
  pair.Meet();
  std::string bytes(50'000, 'x');
  bytes += "the rest";
  ASSERT_EQ(Pair::Say(*pair.here, bytes), bytes.size());
  size_t gone = 0;
  while (gone < 50'000) gone += pair.there->Read(nullptr, 50'000 - gone).value();
  pair.Until([&] { return pair.to_there.size() == 8; });
  EXPECT_EQ(pair.to_there, "the rest");
}

TEST_P(StreamTest, BytesThatNoPollTellsOfAreHeld) {
  Pair pair(dials_, dialled_);
  pair.Meet();
  ASSERT_EQ(Pair::Say(*pair.here, std::string(1000, 'x')), 1000u);
  char bytes[10];
  size_t first = 0;
  while (first == 0) first = pair.there->Read(bytes, sizeof bytes).value();
  EXPECT_EQ(pair.there->holds(), GetParam());
  pair.Until([&] { return pair.to_there.size() == 1000 - first; });
  EXPECT_FALSE(pair.there->holds());
}

TEST_P(StreamTest, APeerThatClosesHasSaidWhatItSaid) {
  Pair pair(dials_, dialled_);
  pair.Meet();
  ASSERT_EQ(Pair::Say(*pair.here, "last words"), 10u);
  pair.Hang(pair.here, 0);
  pair.Until([&] { return !pair.there_status.ok(); });
  EXPECT_EQ(pair.to_there, "last words");
  EXPECT_EQ(pair.there_status.ToString(), "UNAVAILABLE: the peer closed the connection");
}

INSTANTIATE_TEST_SUITE_P(Bytes, StreamTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "InTls" : "Plain"; });

// ---- who is refused

class RefusedStream : public ::testing::Test {
 protected:
  /// What both ends say in the end of a pair that must not come about.
  static void Expect(Pair& pair, const std::string& here, const std::string& there) {
    pair.Until([&] { return !pair.here_status.ok() && !pair.there_status.ok(); });
    EXPECT_THAT(pair.here_status.ToString(), HasSubstr(here)) << "who dialled";
    EXPECT_THAT(pair.there_status.ToString(), HasSubstr(there)) << "who was dialled";
    EXPECT_FALSE(pair.here->ready()) << "it may have said something";
  }
  std::shared_ptr<const Context> Dials(const TlsFiles& files, std::vector<std::string> names = {"baton-worker"}) {
    return Context::ForClient(MustLoad(files), {std::move(names), "", {}}).value();
  }
  std::shared_ptr<const Context> Dialled(const TlsFiles& files) {
    return Context::ForServer(MustLoad(files), {}).value();
  }

  const CertDir dir_, others_;
  const CertAndKey authority_ = TestAuthority("ours");
  const TlsFiles ours_ = dir_.Make(authority_, "worker", {"baton-worker"});
  const TlsFiles theirs_ = others_.Make(TestAuthority("theirs"), "stranger", {"baton-worker"});
};

TEST_F(RefusedStream, ACertificateOfAnotherAuthority) {
  const TlsFiles believes_us{theirs_.cert, theirs_.key, ours_.ca};
  Pair stranger_dials(Dials(believes_us), Dialled(ours_));
  Expect(stranger_dials, "the peer refuses our certificate or handshake: tlsv1 alert unknown ca",
         "the certificate of \"stranger\" was issued by \"theirs\", but " + ours_.ca + " has \"ours\"");
  Pair stranger_is_dialled(Dials(ours_), Dialled(believes_us));
  Expect(stranger_is_dialled, "the certificate of \"stranger\" was issued by \"theirs\"",
         "the peer refuses our certificate or handshake: tlsv1 alert unknown ca");
}

TEST_F(RefusedStream, ACertificateOfAnotherName) {
  Pair pair(Dials(ours_, {"baton-router"}), Dialled(ours_));
  Expect(pair, "is valid for baton-worker, not for baton-router", "the peer refuses our certificate or handshake");
}

TEST_F(RefusedStream, ACertificateThatHasExpired) {
  const TlsFiles old = dir_.Make(authority_, "old", {"baton-worker"}, -3, -1);
  const auto then = Identity::Load(old, WallSeconds() - 2 * kTestDay).value();
  Pair pair(Context::ForClient(then, {{"baton-worker"}, "", {}}).value(), Dialled(ours_));
  Expect(pair, "alert certificate expired", "the certificate of \"old\" expired at ");
}

TEST_F(RefusedStream, NoCertificate) {
  Pair pair(Dials({.ca = ours_.ca}), Dialled(ours_));
  Expect(pair, "the peer refuses our certificate or handshake", "peer did not return a certificate");
}

TEST_F(RefusedStream, PlainTextToTls) {
  Pair pair(nullptr, Dialled(ours_));
  ASSERT_EQ(Pair::Say(*pair.here, "BATN hello"), 10u);
  pair.Until([&] { return !pair.there_status.ok() && !pair.to_here.empty(); });
  EXPECT_EQ(pair.there_status.ToString(), "UNAUTHENTICATED: plain text came to a TLS port");
  EXPECT_EQ(CheckPlain(pair.to_here[0]).ToString(), "UNAUTHENTICATED: the peer speaks TLS, this process plain text");
}

TEST_F(RefusedStream, TlsToPlainText) {
  Pair pair(Dials(ours_), nullptr);
  ASSERT_EQ(Pair::Say(*pair.there, "BATN hello"), 10u);
  pair.Until([&] { return !pair.here_status.ok() && !pair.to_there.empty(); });
  EXPECT_EQ(pair.here_status.ToString(), "UNAUTHENTICATED: the peer answers in plain text, not TLS");
  EXPECT_FALSE(CheckPlain(pair.to_there[0]).ok());
}

TEST_F(RefusedStream, GarbageBehindTheFirstByteOfTls) {
  Pair pair(nullptr, Dialled(ours_));
  ASSERT_EQ(Pair::Say(*pair.here, "\x16" + std::string(999, 'g')), 1000u);
  pair.Until([&] { return !pair.there_status.ok(); });
  EXPECT_THAT(pair.there_status.ToString(), HasSubstr("the TLS handshake failed"));
}

// ---- certificates that change

TEST(PeerTlsTest, NewConnectionsShowNewCertificatesAndOldOnesGoOn) {
  const CertDir dir;
  const CertAndKey authority = TestAuthority("ours"), next = TestAuthority("next");
  const TlsFiles files = dir.Make(authority, "peer", {"baton-worker"});
  const std::shared_ptr<LiveIdentity> live = LiveIdentity::Open(files).value();
  const PeerTls tls(live, "baton-worker");
  Pair before(tls.ForDialling("10.0.0.7").value(), tls.ForDialled().value());
  before.Meet();
  EXPECT_EQ(tls.ForDialled().value(), tls.ForDialled().value()) << "one context while nothing changes";
  const auto old_side = tls.ForDialling("10.0.0.7").value();
  dir.Make(next, "peer", {"baton-worker"});
  live->Poll(), live->Poll();
  Pair after(tls.ForDialling("10.0.0.7").value(), tls.ForDialled().value());
  after.Meet();
  Pair mixed(old_side, tls.ForDialled().value());
  mixed.Until([&] { return !mixed.here_status.ok(); });
  EXPECT_THAT(mixed.here_status.ToString(), HasSubstr("was issued by \"next\""));
  ASSERT_EQ(Pair::Say(*before.here, "still here"), 10u);
  before.Until([&] { return before.to_there == "still here"; });
}

}  // namespace
}  // namespace baton::tls
