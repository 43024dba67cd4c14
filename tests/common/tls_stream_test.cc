// The bytes between two of our processes: the same in TLS and as they are, and who is refused hears why.
#include <gmock/gmock.h>
#include <poll.h>

#include "tests/common/kernel_tls_fake.h"
#include "tests/common/tls_fixture.h"
#include "tests/common/tls_stream_pair.h"

namespace baton::tls {
namespace {

using ::testing::HasSubstr;

/// Who encrypts what is sent: nobody, this process, a kernel that the test brings, or this machine's.
enum class By { kNobody, kProcess, kFakeKernel, kKernel };

class StreamTest : public ::testing::TestWithParam<By> {
 protected:
  void SetUp() override {
    if (GetParam() == By::kNobody) return;
    std::shared_ptr<KernelTls> kernel;
    if (GetParam() == By::kFakeKernel) kernel = fake_;
    if (GetParam() == By::kKernel) {
      KernelTlsChoice choice = ChooseKernelTls(/*wanted=*/true);
      if (choice.kernel == nullptr) GTEST_SKIP() << choice.text;
      kernel = std::make_shared<ShortKeys>(choice.kernel, 1 << 20);
    }
    const auto tls = TestPeerTls(kernel);
    dials_ = tls->ForDialling("127.0.0.1").value();
    dialled_ = tls->ForDialled().value();
  }
  /// Two ends that believe each other.
  std::unique_ptr<Pair> Met() {
    auto pair = std::make_unique<Pair>(dials_, dialled_, GetParam() == By::kKernel);
    pair->also = [fake = fake_] { fake->Turn(); };
    pair->Meet();
    const bool in_kernel = GetParam() == By::kFakeKernel || GetParam() == By::kKernel;
    pair->Until([&] { return pair->here->in_kernel() == in_kernel && pair->there->in_kernel() == in_kernel; });
    return pair;
  }
  const std::shared_ptr<FakeKernelTls> fake_ = std::make_shared<FakeKernelTls>(1 << 20);
  std::shared_ptr<const Context> dials_, dialled_;
};

TEST_P(StreamTest, BytesComeInOrderBothWaysThroughSocketsThatAreFull) {
  const std::unique_ptr<Pair> met = Met();
  Pair& pair = *met;
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
  const std::unique_ptr<Pair> met = Met();
  Pair& pair = *met;
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
  const std::unique_ptr<Pair> met = Met();
  Pair& pair = *met;
  std::string bytes(50'000, 'x');
  bytes += "the rest";
  ASSERT_EQ(Pair::Say(*pair.here, bytes), bytes.size());
  size_t gone = 0;
  while (gone < 50'000) gone += pair.there->Read(nullptr, 50'000 - gone).value();
  pair.Until([&] { return pair.to_there.size() == 8; });
  EXPECT_EQ(pair.to_there, "the rest");
}

TEST_P(StreamTest, BytesThatNoPollTellsOfAreHeld) {
  const std::unique_ptr<Pair> met = Met();
  Pair& pair = *met;
  ASSERT_EQ(Pair::Say(*pair.here, std::string(1000, 'x')), 1000u);
  char bytes[10];
  size_t first = 0;
  while (first == 0) first = pair.there->Read(bytes, sizeof bytes).value();
  EXPECT_EQ(pair.there->holds(), GetParam() != By::kNobody);
  pair.Until([&] { return pair.to_there.size() == 1000 - first; });
  EXPECT_FALSE(pair.there->holds());
}

TEST_P(StreamTest, APeerThatClosesHasSaidWhatItSaid) {
  const std::unique_ptr<Pair> met = Met();
  Pair& pair = *met;
  ASSERT_EQ(Pair::Say(*pair.here, "last words"), 10u);
  pair.Hang(pair.here, 0);
  pair.Until([&] { return !pair.there_status.ok(); });
  EXPECT_EQ(pair.to_there, "last words");
  EXPECT_EQ(pair.there_status.ToString(), "UNAVAILABLE: the peer closed the connection");
}

std::string NameOf(const ::testing::TestParamInfo<By>& info) {
  static const std::map<By, std::string> kNames = {{By::kNobody, "Plain"},
                                                   {By::kProcess, "InTls"},
                                                   {By::kFakeKernel, "InTlsOfAKernel"},
                                                   {By::kKernel, "InTlsOfThisKernel"}};
  return kNames.at(info.param);
}
INSTANTIATE_TEST_SUITE_P(Bytes, StreamTest, ::testing::Values(By::kNobody, By::kProcess, By::kFakeKernel, By::kKernel),
                         NameOf);

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
