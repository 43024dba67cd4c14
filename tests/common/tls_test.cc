// Identities, sessions in memory and what they refuse: each test builds what works and breaks one thing.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>

#include "common/str_cat.h"
#include "common/tls/context.h"
#include "common/tls/live_identity.h"
#include "common/tls/refusals.h"
#include "tests/common/tls_fixture.h"

namespace baton::tls {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string LoadError(const TlsFiles& files, int64_t now_s = WallSeconds()) {
  const auto loaded = Identity::Load(files, now_s);
  return loaded.ok() ? "" : std::string(View(loaded.status().message()));
}

// A client and a server, and what each said of the other in the end.
struct Meeting {
  std::unique_ptr<Session> client, server;
  absl::Status client_status, server_status;

  Meeting(const std::shared_ptr<const Context>& at_client, const std::shared_ptr<const Context>& at_server)
      : client(std::make_unique<Session>(at_client)), server(std::make_unique<Session>(at_server)) {
    Carry();
  }
  // Every byte, until nobody says more.
  void Carry() {
    for (;;) {
      const std::string up = client->TakeWire(), down = server->TakeWire();
      if (up.empty() && down.empty()) return;
      if (server_status.ok()) server_status = server->Feed(up);
      if (client_status.ok()) client_status = client->Feed(down);
    }
  }
  bool works() {
    if (!client->Write("question").ok()) return false;
    Carry();
    if (server->TakePlain() != "question") return false;
    if (!server->Write("answer").ok()) return false;
    Carry();
    return client->TakePlain() == "answer" && client_status.ok() && server_status.ok();
  }
};

std::shared_ptr<const Context> Server(const TlsFiles& files, ServerWish wish = {}) {
  auto made = Context::ForServer(MustLoad(files), std::move(wish));
  EXPECT_TRUE(made.ok()) << made.status();
  return *made;
}
std::shared_ptr<const Context> Client(const TlsFiles& files, std::vector<std::string> names = {"baton-worker"}) {
  auto made = Context::ForClient(MustLoad(files), {std::move(names), "", {}});
  EXPECT_TRUE(made.ok()) << made.status();
  return *made;
}

class Tls : public ::testing::Test {
 protected:
  CertDir dir_, other_dir_;
  const CertAndKey authority_ = TestAuthority("authority A"), other_ = TestAuthority("authority B");
};

TEST_F(Tls, BuffersMayComeAndGoInTheMiddleOfARecord) {
  const TlsFiles worker = dir_.Make(authority_, "worker", {"baton-worker", "127.0.0.1"});
  Meeting meeting(Client(worker), Server(worker));
  for (const size_t cut : {1, 5, 20, 21}) {
    ASSERT_TRUE(meeting.client->Write("half of this is held back").ok());
    const std::string wire = meeting.client->TakeWire();
    meeting.server->KeepBuffers(true);
    ASSERT_TRUE(meeting.server->Feed(wire.substr(0, cut)).ok());
    ASSERT_TRUE(meeting.server->Write("meanwhile").ok());
    meeting.server->KeepBuffers(false);
    ASSERT_TRUE(meeting.server->Feed(wire.substr(cut)).ok());
    EXPECT_EQ(meeting.server->TakePlain(), "half of this is held back");
    meeting.Carry();
    EXPECT_EQ(meeting.client->TakePlain(), "meanwhile");
    EXPECT_TRUE(meeting.works());
  }
}

TEST_F(Tls, TwoProcessesOfOneAuthorityUnderstandEachOther) {
  const TlsFiles worker = dir_.Make(authority_, "worker", {"baton-worker", "127.0.0.1"});
  const TlsFiles router = dir_.Make(authority_, "router", {});
  Meeting meeting(Client(router), Server(worker));
  EXPECT_TRUE(meeting.works()) << meeting.client_status << meeting.server_status;
}

TEST_F(Tls, ALongTextArrivesWholeInAnyPieces) {
  const TlsFiles worker = dir_.Make(authority_, "worker", {"baton-worker"});
  Session client(Client(worker)), server(Server(worker));
  std::string text(300000, 'x');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7 + i / 256);
  ASSERT_TRUE(client.Write(text).ok());
  std::string got;
  for (size_t piece = 1; got.size() < text.size(); piece = piece % 997 + 13) {
    std::string up = client.TakeWire();
    for (size_t at = 0; at < up.size(); at += piece) ASSERT_TRUE(server.Feed(up.substr(at, piece)).ok());
    const std::string down = server.TakeWire();
    got += server.TakePlain();
    ASSERT_TRUE(!up.empty() || !down.empty()) << got.size();
    ASSERT_TRUE(client.Feed(down).ok());
  }
  EXPECT_EQ(got, text);
}

TEST_F(Tls, AWrongAuthorityIsRefusedOnEitherSideWithBothNames) {
  const TlsFiles worker = dir_.Make(authority_, "worker", {"baton-worker"});
  const TlsFiles stranger = other_dir_.Make(other_, "stranger", {"baton-worker"});
  Meeting dialled(Client(stranger), Server(worker));
  EXPECT_THAT(dialled.client_status.ToString(),
              AllOf(HasSubstr("issued by \"authority A\""), HasSubstr("\"authority B\"")));
  EXPECT_EQ(dialled.client->refusal(), Refusal::kUnknownAuthority);

  // It believes the worker's authority, and shows a certificate of another one.
  TlsFiles mixed = stranger;
  mixed.ca = worker.ca;
  Meeting asked(Client(mixed), Server(worker));
  EXPECT_THAT(asked.server_status.ToString(),
              AllOf(HasSubstr("issued by \"authority B\""), HasSubstr("\"authority A\"")));
  EXPECT_EQ(asked.server->refusal(), Refusal::kUnknownAuthority);
  EXPECT_FALSE(asked.works());
}

TEST_F(Tls, OfABundleOfManyAuthoritiesARefusalNamesFour) {
  const TlsFiles stranger = other_dir_.Make(other_, "stranger", {"baton-worker"});
  std::string bundle;
  for (int i = 0; i < 140; ++i) bundle += TestAuthority(StrCat("root ", i)).CertificatePem();
  dir_.Write("system.crt", bundle);
  Meeting meeting(Client({.ca = dir_.path("system.crt")}), Server(stranger, {.ask_client = false}));
  EXPECT_THAT(meeting.client_status.ToString(),
              HasSubstr("has \"root 0\", \"root 1\", \"root 2\", \"root 3\" and 136 more"));
}

TEST_F(Tls, AnAuthorityOfTheSameNameIsAnother) {
  const CertAndKey twin = TestAuthority("authority A");
  const TlsFiles worker = dir_.Make(authority_, "worker", {"baton-worker"});
  const TlsFiles stranger = other_dir_.Make(twin, "stranger", {"baton-worker"});
  Meeting meeting(Client(worker), Server(stranger));
  EXPECT_EQ(meeting.client->refusal(), Refusal::kUnknownAuthority) << meeting.client_status;
}

TEST_F(Tls, AnExpiredPeerIsRefusedWithBothTimes) {
  const TlsFiles old = dir_.Make(authority_, "old", {"baton-worker"}, -3, -1);
  // The peer took its files while they were valid.
  auto then = Identity::Load(old, WallSeconds() - 2 * kTestDay);
  ASSERT_TRUE(then.ok()) << then.status();
  const TlsFiles router = dir_.Make(authority_, "router", {"baton-worker"});
  Meeting meeting(Client(router), *Context::ForServer(*then, {}));
  EXPECT_EQ(meeting.client->refusal(), Refusal::kExpired);
  EXPECT_THAT(meeting.client_status.ToString(),
              AllOf(HasSubstr("\"old\" expired at " + UtcText((*then)->not_after_s())), HasSubstr("it is 20")));
  Meeting asked(*Context::ForClient(*then, {}), Server(router));
  EXPECT_EQ(asked.server->refusal(), Refusal::kExpired);
}

TEST_F(Tls, AWrongNameIsRefusedWithBothNames) {
  const TlsFiles worker = dir_.Make(authority_, "worker", {"decode-0.example", "10.0.0.7"});
  Meeting meeting(Client(worker, {"decode-1.example"}), Server(worker));
  EXPECT_EQ(meeting.client->refusal(), Refusal::kWrongName);
  EXPECT_THAT(meeting.client_status.ToString(),
              HasSubstr("valid for decode-0.example, 10.0.0.7, not for decode-1.example"));
  EXPECT_TRUE(Meeting(Client(worker, {"decode-0.example"}), Server(worker)).works());
  EXPECT_TRUE(Meeting(Client(worker, {"10.0.0.7"}), Server(worker)).works());
  EXPECT_FALSE(Meeting(Client(worker, {"10.0.0.8"}), Server(worker)).works());
}

TEST_F(Tls, AnAddressIsProvedByItselfOrByTheServerName) {
  EXPECT_EQ(NamesToProve("decode-0.example", "baton-worker"), std::vector<std::string>{"decode-0.example"});
  EXPECT_EQ(NamesToProve("10.0.0.7", "baton-worker"), (std::vector<std::string>{"baton-worker", "10.0.0.7"}));
  EXPECT_EQ(NamesToProve("::1", ""), std::vector<std::string>{"::1"});
}

TEST_F(Tls, AClientsCertificateIsNoServers) {
  const TlsFiles client_only = dir_.Make(authority_, "client", {});
  Meeting meeting(Client(client_only, {}), Server(client_only));
  EXPECT_EQ(meeting.client->refusal(), Refusal::kBadCertificate);
  EXPECT_THAT(meeting.client_status.ToString(), HasSubstr("purpose"));
}

TEST_F(Tls, WhoShowsNoCertificateIsRefused) {
  const TlsFiles worker = dir_.Make(authority_, "worker", {"baton-worker"});
  Meeting meeting(Client({.ca = worker.ca}), Server(worker));
  EXPECT_EQ(meeting.server->refusal(), Refusal::kNoCertificate) << meeting.server_status;
  EXPECT_TRUE(Meeting(Client({.ca = worker.ca}), Server(worker, {.ask_client = false})).works());
}

TEST_F(Tls, PlainTextIsNoTlsOnEitherSide) {
  const TlsFiles worker = dir_.Make(authority_, "worker", {"baton-worker"});
  Session server(Server(worker)), client(Client(worker));
  EXPECT_FALSE(server.Feed("GET / HTTP/1.1\r\n\r\n").ok());
  EXPECT_EQ(server.refusal(), Refusal::kPlaintext);
  EXPECT_FALSE(client.Feed("HTTP/1.1 400 Bad Request\r\n\r\n").ok());
  EXPECT_EQ(client.refusal(), Refusal::kPlaintext);
}

TEST_F(Tls, ProtocolsAreAgreedOn) {
  const TlsFiles worker = dir_.Make(authority_, "worker", {"baton-worker"});
  auto client = Context::ForClient(MustLoad(worker), {{"baton-worker"}, "baton-worker", {"h2", "http/1.1"}});
  Meeting meeting(*client, Server(worker, {.alpn = {"http/1.1"}}));
  ASSERT_TRUE(meeting.works());
  EXPECT_EQ(meeting.client->alpn(), "http/1.1");
  EXPECT_EQ(meeting.server->alpn(), "http/1.1");
  Meeting apart(*client, Server(worker, {.alpn = {"baton-kv/1"}}));
  EXPECT_FALSE(apart.works());
}

TEST_F(Tls, AKeyServesForSoManyBytesAndThenAnotherOneDoes) {
  const TlsFiles worker = dir_.Make(authority_, "worker", {"baton-worker"});
  Meeting meeting(Client(worker), Server(worker));
  meeting.client = std::make_unique<Session>(Client(worker), /*bytes_of_a_key=*/50'000);
  meeting.server = std::make_unique<Session>(Server(worker));
  meeting.Carry();
  std::string sent, got;
  for (int i = 0; i < 40; ++i) {
    const std::string piece(10'000 + i, static_cast<char>('a' + i % 26));
    sent += piece;
    ASSERT_TRUE(meeting.client->Write(piece).ok());
    meeting.Carry();
    got += meeting.server->TakePlain();
  }
  EXPECT_TRUE(got == sent) << meeting.server_status;
  EXPECT_EQ(meeting.client->keys_taken(), 7);
  EXPECT_TRUE(meeting.works());
}

TEST_F(Tls, FilesThatDoNotFitAreRefusedByName) {
  const TlsFiles good = dir_.Make(authority_, "worker", {"baton-worker"});
  const TlsFiles second = dir_.Make(authority_, "second", {"baton-worker"});
  EXPECT_THAT(LoadError(good), IsEmpty());
  EXPECT_THAT(LoadError({good.cert, second.key, good.ca}),
              AllOf(HasSubstr(good.cert), HasSubstr("does not belong to the key " + second.key)));
  EXPECT_THAT(LoadError({good.cert, dir_.path("none"), good.ca}),
              AllOf(HasSubstr(dir_.path("none")), HasSubstr("No such file"), HasSubstr("--tls-key")));
  EXPECT_THAT(LoadError({good.key, good.key, good.ca}), HasSubstr(good.key + " has no certificate"));
  EXPECT_THAT(LoadError({good.cert, good.cert, good.ca}), HasSubstr(good.cert + " has no private key"));
  EXPECT_THAT(LoadError({good.cert, good.key, good.key}), HasSubstr(good.key + " has no certificate"));
  EXPECT_THAT(LoadError({good.cert, "", good.ca}), HasSubstr("--tls-cert " + good.cert + " needs --tls-key"));
  EXPECT_THAT(LoadError(good, WallSeconds() + 31 * kTestDay), HasSubstr("\"worker\" expired at "));
  EXPECT_THAT(LoadError(good, WallSeconds() - 2 * kTestDay), HasSubstr("is valid from "));
  EXPECT_THAT(LoadError(good, WallSeconds() + 101 * kTestDay), HasSubstr("expired at "));
}

class Reload : public Tls {
 protected:
  void SetUp() override {
    files_ = dir_.Make(authority_, "worker", {"baton-worker"});
    auto opened = LiveIdentity::Open(files_, [this] { return now_s_; });
    ASSERT_TRUE(opened.ok()) << opened.status();
    live_ = *std::move(opened);
    live_->OnChange([this](const std::shared_ptr<const Identity>&) { ++changes_; });
  }
  // Seen to have changed, and to stand still.
  std::string PollTwice() {
    testing::internal::CaptureStdout();
    live_->Poll();
    live_->Poll();
    return testing::internal::GetCapturedStdout();
  }

  TlsFiles files_;
  int64_t now_s_ = WallSeconds();
  std::unique_ptr<LiveIdentity> live_;
  int changes_ = 0;
};

TEST_F(Reload, NewHandshakesTakeNewFilesAndOpenSessionsGoOn) {
  Meeting before(Client(files_), *Context::ForServer(live_->now(), {}));
  ASSERT_TRUE(before.works());
  const int64_t old_end = live_->now()->not_after_s();
  dir_.Make(authority_, "worker", {"baton-worker"}, -1, 60);
  EXPECT_THAT(PollTwice(), HasSubstr("new connections take the changed files"));
  EXPECT_EQ(changes_, 1);
  EXPECT_GT(live_->now()->not_after_s(), old_end + 29 * kTestDay);
  EXPECT_TRUE(Meeting(Client(files_), *Context::ForServer(live_->now(), {})).works());
  EXPECT_TRUE(before.works()) << "a session that was open";
  EXPECT_THAT(PollTwice(), IsEmpty());
  EXPECT_EQ(changes_, 1);
}

TEST_F(Reload, AnotherAuthorityTakesOver) {
  const TlsFiles router = other_dir_.Make(other_, "router", {});
  EXPECT_FALSE(Meeting(Client(router), *Context::ForServer(live_->now(), {})).works());
  dir_.Make(other_, "worker", {"baton-worker"});
  PollTwice();
  EXPECT_TRUE(Meeting(Client(router), *Context::ForServer(live_->now(), {})).works());
}

TEST_F(Reload, ABrokenFileLeavesTheOldOneWithOneLine) {
  const auto before = live_->now();
  for (const std::string broken : {"", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}) {
    dir_.Write("worker.crt", broken);
    EXPECT_THAT(PollTwice(),
                AllOf(HasSubstr("cannot be used: " + files_.cert), HasSubstr("what was read before stays")));
    EXPECT_THAT(PollTwice(), IsEmpty());
    EXPECT_EQ(live_->now(), before);
  }
  std::filesystem::remove(files_.cert);
  EXPECT_THAT(PollTwice(), HasSubstr("No such file"));
  ASSERT_EQ(mkfifo(files_.cert.c_str(), 0600), 0);  // nobody waits for who writes it
  EXPECT_THAT(PollTwice(), HasSubstr(files_.cert + " is no file"));
  std::filesystem::remove(files_.cert);
  std::filesystem::create_directory(files_.cert);
  EXPECT_THAT(PollTwice(), HasSubstr(files_.cert + " is no file"));
  std::filesystem::remove(files_.cert);
  EXPECT_EQ(changes_, 0);
  dir_.Make(authority_, "worker", {"baton-worker"}, -1, 60);
  EXPECT_THAT(PollTwice(), HasSubstr("new connections take"));
  EXPECT_EQ(changes_, 1);
}

TEST_F(Reload, AKeyThatIsWrittenAfterItsCertificateIsWaitedFor) {
  auto next = MakeCertificate(authority_, {"worker", {"baton-worker"}, now_s_ - 60, now_s_ + 50 * kTestDay});
  dir_.Write("worker.crt", next->CertificatePem());
  testing::internal::CaptureStdout();
  live_->Poll();
  dir_.Write("worker.key", next->KeyPem());
  live_->Poll();
  live_->Poll();
  EXPECT_THAT(testing::internal::GetCapturedStdout(),
              AllOf(HasSubstr("new connections take"), ::testing::Not(HasSubstr("cannot be used"))));
}

TEST_F(Reload, ACertificateThatIsNotYetValidIsTakenOnceItIs) {
  auto next = MakeCertificate(authority_, {"worker", {"baton-worker"}, now_s_ + 60, now_s_ + 50 * kTestDay});
  dir_.Write("worker.crt", next->CertificatePem());
  dir_.Write("worker.key", next->KeyPem());
  EXPECT_THAT(PollTwice(), AllOf(HasSubstr("is valid from"), HasSubstr("what was read before stays")));
  now_s_ += 59;
  EXPECT_THAT(PollTwice(), IsEmpty());
  EXPECT_EQ(changes_, 0);
  now_s_ += 1;
  EXPECT_THAT(PollTwice(), HasSubstr("new connections take"));
  EXPECT_THAT(PollTwice(), IsEmpty());
  EXPECT_EQ(changes_, 1);
}

TEST_F(Reload, ExpiryIsAnnouncedFourteenDaysBeforeOnceADayAndWhenItComes) {
  EXPECT_THAT(PollTwice(), IsEmpty());
  EXPECT_NEAR(live_->SecondsLeft(), 30 * kTestDay, 5);
  now_s_ += 17 * kTestDay;
  EXPECT_THAT(PollTwice(), HasSubstr("expires in 13 days"));
  EXPECT_THAT(PollTwice(), IsEmpty());
  now_s_ += kTestDay;
  EXPECT_THAT(PollTwice(), HasSubstr("expires in 12 days"));
  now_s_ += live_->SecondsLeft() - 60;
  EXPECT_THAT(PollTwice(), HasSubstr("expires in 0 days"));
  now_s_ += 61;
  EXPECT_THAT(PollTwice(), HasSubstr("has been expired for 0 days"));
  EXPECT_THAT(PollTwice(), IsEmpty());
  now_s_ += 5 * kTestDay / 2;
  EXPECT_THAT(PollTwice(), HasSubstr("has been expired for 2 days"));
  EXPECT_LT(live_->SecondsLeft(), 0);
}

TEST(TlsRefusals, AreCountedAndLoggedOnceASecondForAnAddress) {
  FakeClock clock;
  Refusals refusals(clock);
  testing::internal::CaptureStdout();
  for (int i = 0; i < 5; ++i) refusals.Note("worker", Refusal::kPlaintext, "10.0.0.1", "plain text came");
  refusals.Note("worker", Refusal::kExpired, "10.0.0.2", "old");
  const std::string lines = testing::internal::GetCapturedStdout();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2) << lines;
  clock.Advance(std::chrono::seconds(1));
  testing::internal::CaptureStdout();
  for (int i = 0; i < 1000; ++i) refusals.Note("http", Refusal::kPlaintext, "10.1.0." + std::to_string(i), "x");
  const std::string many = testing::internal::GetCapturedStdout();
  EXPECT_EQ(std::count(many.begin(), many.end(), '\n'), 16);
  ASSERT_EQ(refusals.Counts().size(), 3u);
  EXPECT_EQ(refusals.Counts()[0].port, "http");
  EXPECT_EQ(refusals.Counts()[0].connections, 1000);
  EXPECT_EQ(refusals.Counts()[2].reason, "plaintext");
}

TEST(TlsCerts, HostsThatAreNoneAreRefused) {
  const CertAndKey authority = TestAuthority("a");
  for (const std::string bad : {"two words", "a,DNS:b", "fe80::1%eth0", ""}) {
    EXPECT_FALSE(MakeCertificate(authority, {"x", {bad}, 0, 1}).ok()) << bad;
  }
}

TEST(TlsCerts, KeysAreReadableForTheirOwnerAlone) {
  CertDir dir;
  dir.Write("key", "secret");
  EXPECT_EQ(std::filesystem::status(dir.path("key")).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

}  // namespace
}  // namespace baton::tls
