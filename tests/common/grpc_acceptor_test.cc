// A gRPC port before strangers: places, new connections a second, who is let go, and connections that do nothing.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "common/grpc/acceptor.h"
#include "common/grpc/error_lines.h"
#include "common/grpc/watched_calls.h"
#include "common/str_cat.h"

namespace baton::net {
namespace {

using std::chrono::milliseconds;

const std::string kPreface("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
constexpr int kPatienceMs = 10000;

/// A frame that means nothing and is answered: 9 bytes.
const std::string kSettings("\0\0\0\4\0\0\0\0\0", 9);

std::string Times(int count, const std::string& bytes) {
  std::string out;
  for (int i = 0; i < count; ++i) out += bytes;
  return out;
}

/// 120 calls, each of which is given up at once, or asks nothing and is answered.
std::string ManyCalls(bool given_up) {
  // POST, http, :path /a, :authority a, te: trailers, content-type: application/grpc
  const std::string headers(
      "\x83\x86\x04\x02/a\x01\x01"
      "a\0\x02te\x08trailers\x0f\x10\x10"
      "application/grpc",
      41);
  std::string out;
  for (int n = 0; n < 120; ++n) {
    const auto id = static_cast<char>(2 * n + 1);
    out += std::string("\0\0", 2) + static_cast<char>(headers.size()) + std::string("\1\5\0\0\0", 5) + id + headers;
    if (given_up) out += std::string("\0\0\4\3\0\0\0\0", 8) + id + std::string("\0\0\0\x08", 4);
  }
  return out;
}

/// A client's end, of an address of this machine.
class Socket {
 public:
  Socket(uint16_t port, const std::string& from) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const SocketAddress self = *SocketAddress::Of(from, 0), to = *SocketAddress::Of("127.0.0.1", port);
    EXPECT_EQ(bind(fd_, self.get(), self.bytes()), 0);
    EXPECT_EQ(connect(fd_, to.get(), to.bytes()), 0);
  }
  ~Socket() { close(fd_); }
  Socket(const Socket&) = delete;

  void Send(const std::string& bytes) const { send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  /// Its name in gRPC.
  std::string peer() const { return StrCat("ipv4:", SocketAddress::OfSocket(fd_).text()); }
  /// Whether anything comes before the end.
  bool Served() const { return ReadSome() > 0; }
  /// Reads on until the other side closes. False: it does not.
  bool Ended() const {
    ssize_t got = 1;
    while (got > 0) got = ReadSome();
    return got == 0;
  }
  /// Nothing has come that was not read, and no end.
  bool Quiet() const {
    pollfd one{fd_, POLLIN | POLLRDHUP, 0};
    return poll(&one, 1, 0) == 0;
  }

 private:
  ssize_t ReadSome() const {
    pollfd one{fd_, POLLIN, 0};
    if (poll(&one, 1, kPatienceMs) <= 0) return -1;
    char bytes[4096];
    return std::max<ssize_t>(read(fd_, bytes, sizeof bytes), 0);  // a reset is an end, too
  }
  const int fd_;
};

class Port : public testing::Test {
 protected:
  void Start(GrpcAcceptor::Options options, const IdleTimes& idle = {std::chrono::hours(1), std::chrono::hours(1)}) {
    options.where = *SocketAddress::Of("127.0.0.1", 0);
    options.port = "test";
    options.refused = [this](const char* why) {
      std::lock_guard lock(mutex_);
      ++refused_[why];
    };
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    BoundConnections(builder, idle);
    auto acceptor = GrpcAcceptor::Listen(std::move(options), builder, grpc::InsecureServerCredentials());
    ASSERT_TRUE(acceptor.ok()) << acceptor.status();
    acceptor_ = *std::move(acceptor);
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> watchers;
    watchers.push_back(std::make_unique<WatchedCalls>(doorkeeper_));
    builder.experimental().SetInterceptorCreators(std::move(watchers));
    builder.RegisterCallbackGenericService(&service_);  // gRPC starts no server without any
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    acceptor_->Start();
  }
  ~Port() override {
    if (acceptor_) acceptor_->Stop();
    if (server_) server_->Shutdown(std::chrono::system_clock::now());
  }
  /// A connection that has begun; its SETTINGS came, or its end.
  std::pair<std::unique_ptr<Socket>, bool> Dial(const std::string& from = "127.0.0.1") {
    auto socket = std::make_unique<Socket>(acceptor_->port(), from);
    socket->Send(kPreface);
    const bool served = socket->Served();
    return {std::move(socket), served};
  }
  /// Whether `from` is refused for that sooner or later, if it dials on and asks nothing.
  bool WaitRefused(const std::string& from, const std::string& why) {
    for (int i = 0; i < 1000 && Refused(why) == 0; ++i) Dial(from);
    return Refused(why) > 0;
  }
  static bool WaitFor(const std::function<bool()>& condition) {
    for (int waited_ms = 0; !condition() && waited_ms < kPatienceMs; waited_ms += 5)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return condition();
  }
  int Refused(const std::string& why) {
    std::lock_guard lock(mutex_);
    return refused_[why];
  }

  struct Doorkeeper final : public CallWatcher {
    explicit Doorkeeper(Port& port) : port(port) {}
    void OnBegin(const grpc::ServerContextBase&, std::string_view, std::string_view) override {}
    void OnEnd(std::string_view peer, End end) override { port.acceptor_->OnCallEnd(peer, end); }
    Port& port;
  };

  std::mutex mutex_;  // guards what follows
  std::map<std::string, int> refused_;
  Doorkeeper doorkeeper_{*this};
  grpc::CallbackGenericService service_;
  std::unique_ptr<GrpcAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(Port, AnAddressHasSoManyNewConnectionsASecondAndOthersHaveTheirOwn) {
  Start({.limits = {.most = 100, .loopback_too = true}, .new_per_second = 3});
  std::vector<std::unique_ptr<Socket>> open;
  int served = 0;
  for (int i = 0; i < 20; ++i) {
    auto [socket, ok] = Dial();
    served += ok ? 1 : 0;
    open.push_back(std::move(socket));
  }
  EXPECT_EQ(served + Refused("new-connections-per-address"), 20);
  EXPECT_GE(Refused("new-connections-per-address"), 1);
  EXPECT_TRUE(Dial("127.0.0.2").second);
}

TEST_F(Port, ThisMachinesClientsHaveNoSuchLimitUnlessTheyAreToHaveOne) {
  Start({.limits = {.most = 100}, .new_per_second = 1});
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(Dial().second) << i;
}

TEST_F(Port, OnlyTheAddressesThatProxiesDialFromAreThisMachine) {
  Start({.limits = {.most = 100}, .new_per_second = 1});
  EXPECT_TRUE(Dial("127.0.0.2").second);
  EXPECT_TRUE(WaitRefused("127.0.0.2", "new-connections-per-address"));
}

TEST_F(Port, ConnectionsThatComeToNothingAreRefusedWhateverTheirRateAndUsefulOnesAreNot) {
  Start({.limits = {.most = 1000, .loopback_too = true}, .vain_tries = 5});
  for (int i = 0; i < 50; ++i) {
    const auto [useful, served] = Dial("127.0.0.3");
    ASSERT_TRUE(served) << i;
    acceptor_->Useful(useful->peer());
  }
  EXPECT_TRUE(WaitRefused("127.0.0.2", "vain-tries-per-address"));
  EXPECT_EQ(Refused("new-connections-per-address"), 0);
}

TEST_F(Port, ResetsOfManyConnectionsCountTogether) {
  Start({.limits = {.most = 1000, .loopback_too = true}, .vain_tries = 60});
  std::vector<std::unique_ptr<Socket>> open;  // what a connection that is closed had sent may never be read
  for (int i = 0; i < 50; ++i) {
    open.push_back(std::make_unique<Socket>(acceptor_->port(), "127.0.0.2"));
    open.back()->Send(kPreface + ManyCalls(/*given_up=*/true));
  }
  // 50 connections alone are 50 of 60 tries: no other is refused, but one on which a call is given up then is ended.
  EXPECT_TRUE(WaitFor([&] { return Refused("vain-tries-per-address") > 0; }));
  EXPECT_TRUE(Dial("127.0.0.3").second);
}

TEST_F(Port, TheConnectionOnWhichCallsAreGivenUpWithoutEndIsEnded) {
  Start({.limits = {.most = 1000, .loopback_too = true}, .vain_tries = 5});
  const Socket socket(acceptor_->port(), "127.0.0.2");
  socket.Send(kPreface + ManyCalls(/*given_up=*/true));
  EXPECT_TRUE(socket.Ended());
  EXPECT_EQ(Refused("vain-tries-per-address"), 1);
}

TEST_F(Port, CallsThatAreRefusedCountAsThoseThatAreGivenUpUntilOneIsUseful) {
  Start({.limits = {.most = 1000, .loopback_too = true}, .vain_tries = 5});
  const auto [useful, served] = Dial("127.0.0.3");
  ASSERT_TRUE(served);
  acceptor_->Useful(useful->peer());
  useful->Send(ManyCalls(/*given_up=*/false));
  const Socket socket(acceptor_->port(), "127.0.0.2");
  socket.Send(kPreface + ManyCalls(/*given_up=*/false));
  EXPECT_TRUE(socket.Ended());
  EXPECT_EQ(Refused("vain-tries-per-address"), 1);
  EXPECT_TRUE(useful->Served());
}

TEST_F(Port, WhatComesWithoutEndOnConnectionsThatAskNothingCounts) {
  Start({.limits = {.most = 1000, .loopback_too = true}, .vain_tries = 12});
  std::vector<std::unique_ptr<Socket>> open;
  for (int i = 0; i < 5; ++i) {  // together: each of them is less than the address has left
    open.push_back(std::make_unique<Socket>(acceptor_->port(), "127.0.0.2"));
    open.back()->Send(kPreface + Times(3000, kSettings));
  }
  EXPECT_TRUE(WaitFor([&] { return Refused("vain-tries-per-address") > 0; }));
  EXPECT_TRUE(Dial("127.0.0.3").second);
}

TEST_F(Port, BetweenTwoCallsOfOneWhoMayAskOnlySoMuchComes) {
  Start({.limits = {.most = 100}, .vain_tries = 50, .bytes_between_calls = 64 << 10});
  const auto [floods, served] = Dial();
  const auto [calls, served_too] = Dial();
  ASSERT_TRUE(served && served_too);
  for (const auto& one : {floods.get(), calls.get()}) acceptor_->SetMayAsk(one->peer());
  const auto refused = [&] {
    floods->Send(Times(4000, kSettings));
    return Refused("bytes-between-calls") == 1;
  };
  EXPECT_TRUE(WaitFor(refused));
  EXPECT_TRUE(floods->Ended());
  calls->Send(kSettings);
  EXPECT_TRUE(calls->Served());
}

// Clients on this machine are not counted, and may fill no memory either.
TEST_F(Port, AConnectionOfThisMachineThatAsksNothingHasAMebibyte) {
  Start({.limits = {.most = 1000}, .vain_tries = 12});
  const auto [little, served] = Dial();
  ASSERT_TRUE(served);
  little->Send(Times(20000, kSettings));
  const Socket floods(acceptor_->port(), "127.0.0.1");
  floods.Send(kPreface);
  const std::string much = Times(200000, kSettings);
  while (Refused("vain-tries-per-address") == 0) floods.Send(much);
  EXPECT_TRUE(floods.Ended());
  EXPECT_TRUE(Dial().second);
  EXPECT_TRUE(little->Served());
}

// gRPC writes a line for each, with what they sent.
TEST(GrpcErrors, StrangersWriteAFewLinesOfALogWithoutControlCharacters) {
  testing::internal::CaptureStdout();
  for (int i = 0; i < 1000; ++i) LogGrpcError("Error parsing metadata: value=\x1b[31m\nevil");
  const std::string lines = testing::internal::GetCapturedStdout();
  EXPECT_EQ(lines.find('\x1b'), lines.npos);
  EXPECT_LE(std::count(lines.begin(), lines.end(), '\n'), 10) << "one a second";
  EXPECT_NE(lines.find("value=\\x1b[31m\\nevil"), lines.npos) << lines;
}

TEST_F(Port, TheMessageOfOneWhoMayAskIsAsLargeAsItLikes) {
  Start({.limits = {.most = 1000, .loopback_too = true}, .vain_tries = 12});
  const auto [asks, served] = Dial("127.0.0.3");
  ASSERT_TRUE(served);
  EXPECT_FALSE(acceptor_->MayAsk(asks->peer()));
  acceptor_->SetMayAsk(asks->peer());
  EXPECT_TRUE(acceptor_->MayAsk(asks->peer()));
  asks->Send(Times(20000, kSettings));
  const Socket stranger(acceptor_->port(), "127.0.0.2");
  stranger.Send(kPreface + Times(20000, kSettings));
  EXPECT_TRUE(stranger.Ended()) << "what had come by then was counted";
  EXPECT_TRUE(asks->Served());
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(Dial("127.0.0.3").second) << i;
}

TEST_F(Port, AMessageOfTheLargestSizeComesBeforeItsClientIsKnown) {
  constexpr size_t kSettingsOfAMessage = 20000, kMessage = kSettingsOfAMessage * 9;
  Start({.limits = {.most = 1000, .loopback_too = true}, .vain_tries = 12, .message_bytes = kMessage});
  const auto [slow, served] = Dial("127.0.0.3");
  ASSERT_TRUE(served);
  for (size_t i = 0; i < 10; ++i) {
    slow->Send(Times(kSettingsOfAMessage / 10, kSettings));
    EXPECT_TRUE(slow->Served()) << i;
  }
  acceptor_->Useful(slow->peer());
  const Socket stranger(acceptor_->port(), "127.0.0.2");
  stranger.Send(kPreface + Times(3 * kSettingsOfAMessage, kSettings));
  EXPECT_TRUE(stranger.Ended());
  EXPECT_EQ(Refused("vain-tries-per-address"), 1);
}

TEST_F(Port, OneConnectionOfAnAddressAndTwoInAllMayBringALargeMessageAtATime) {
  constexpr int kSettingsOfAMessage = 20000;
  Start({.limits = {.most = 1000, .loopback_too = true},
         .vain_tries = 4,
         .message_bytes = uint64_t{9} * kSettingsOfAMessage});
  const std::string large = Times(kSettingsOfAMessage / 2, kSettings);  // 10 tries, where they count
  const auto refused = [&](const char* from, const std::string& bytes) {
    const Socket stranger(acceptor_->port(), from);
    stranger.Send(kPreface + bytes);
    return stranger.Ended();
  };
  // Refused whoever else may bring one; what was there before is counted by then.
  const auto others_are_counted = [&](const char* from) { return refused(from, Times(6, large)); };

  const auto [first, first_served] = Dial("127.0.0.3");
  ASSERT_TRUE(first_served);
  first->Send(large);
  EXPECT_TRUE(others_are_counted("127.0.0.20"));
  EXPECT_TRUE(refused("127.0.0.3", large)) << "its address has one";
  const auto [second, second_served] = Dial("127.0.0.4");
  ASSERT_TRUE(second_served);
  second->Send(large);
  EXPECT_TRUE(others_are_counted("127.0.0.21"));
  EXPECT_TRUE(refused("127.0.0.5", large)) << "there are two";
  EXPECT_EQ(Refused("vain-tries-per-address"), 4);

  acceptor_->Useful(first->peer());
  const auto [third, third_served] = Dial("127.0.0.6");
  ASSERT_TRUE(third_served);
  third->Send(large);
  EXPECT_TRUE(others_are_counted("127.0.0.22"));
  EXPECT_EQ(Refused("vain-tries-per-address"), 5) << "the first is known by now";
}

TEST_F(Port, StrangersLoseTheirPlacesToOthersAndWhoHasGreetedKeepsHis) {
  Start({.limits = {.most = 3}, .greeted_stay = true});
  const auto [first, first_served] = Dial("127.0.0.2");
  const auto [greeted, greeted_served] = Dial();
  const auto [third, third_served] = Dial("127.0.0.3");
  ASSERT_TRUE(first_served && greeted_served && third_served);
  acceptor_->Greeted(greeted->peer());
  std::vector<std::unique_ptr<Socket>> flood;
  for (int i = 0; i < 20; ++i) {
    auto [socket, served] = Dial("127.0.0.4");
    EXPECT_TRUE(served) << i;
    flood.push_back(std::move(socket));
  }
  EXPECT_TRUE(first->Ended() && third->Ended());
  for (int i = 0; i < 18; ++i) EXPECT_TRUE(flood[static_cast<size_t>(i)]->Ended()) << i;
  EXPECT_EQ(Refused("for-another"), 20);
  greeted->Send(std::string("\0\0\0\4\0\0\0\0\0", 9));
  EXPECT_TRUE(greeted->Served()) << "its SETTINGS are answered";
}

TEST_F(Port, WhereAllHaveGreetedAStrangerFindsNoPlace) {
  Start({.limits = {.most = 2}, .greeted_stay = true});
  const auto [a, a_served] = Dial();
  const auto [b, b_served] = Dial();
  ASSERT_TRUE(a_served && b_served);
  acceptor_->Greeted(a->peer()), acceptor_->Greeted(b->peer());
  EXPECT_FALSE(Dial("127.0.0.2").second);
  EXPECT_EQ(Refused("max-connections"), 1);
}

TEST_F(Port, AnAddressThatHasGreetedIsNotCountedBySeconds) {
  Start({.limits = {.most = 100, .loopback_too = true}, .new_per_second = 1, .greeted_stay = true});
  const auto [router, served] = Dial();
  ASSERT_TRUE(served);
  acceptor_->Greeted(router->peer());
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(Dial().second) << i;
}

TEST_F(Port, AStrangerOfTheSameAddressTakesNobodysPlaceWhoHasGreeted) {
  Start({.limits = {.most = 100, .per_address = 2, .loopback_too = true}, .greeted_stay = true});
  const auto [router, served] = Dial();
  ASSERT_TRUE(served);
  acceptor_->Greeted(router->peer());
  const auto [stranger, stranger_served] = Dial();
  ASSERT_TRUE(stranger_served);
  EXPECT_TRUE(Dial().second);
  EXPECT_TRUE(stranger->Ended());
  EXPECT_TRUE(router->Quiet() || router->Served());
}

TEST_F(Port, ConnectionsThatDoNothingAreClosed) {
  Start({}, {milliseconds(200), milliseconds(300)});
  const Socket silent(acceptor_->port(), "127.0.0.1");
  const auto [idle, served] = Dial();
  ASSERT_TRUE(served);
  const auto channel = grpc::CreateChannel(StrCat("127.0.0.1:", acceptor_->port()), grpc::InsecureChannelCredentials());
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue done;
  grpc::ClientContext context;
  const auto watch = stub.PrepareCall(&context, "/grpc.health.v1.Health/Watch", &done);
  const auto wait = [&] {
    void* tag = nullptr;
    bool ok = false;
    return done.Next(&tag, &ok) && ok;
  };
  watch->StartCall(nullptr);
  ASSERT_TRUE(wait());
  grpc::Slice nothing;
  watch->Write(grpc::ByteBuffer(&nothing, 1), nullptr);
  ASSERT_TRUE(wait());
  grpc::ByteBuffer now;
  watch->Read(&now, nullptr);
  ASSERT_TRUE(wait());
  EXPECT_TRUE(silent.Ended());
  EXPECT_TRUE(idle->Ended());
  server_->GetHealthCheckService()->SetServingStatus("", false);
  watch->Read(&now, nullptr);
  EXPECT_TRUE(wait()) << "a call that waits is a call";
  context.TryCancel();
  grpc::Status status;
  watch->Finish(&status, nullptr);
  wait();
  done.Shutdown();
}

TEST(GrpcPeer, NamesAreRead) {
  for (const auto& [name, address, port] : {std::tuple{"ipv4:10.0.0.7:4000", "10.0.0.7", 4000},
                                            {"ipv6:%5Bfd00::1%5D:4000", "fd00::1", 4000},
                                            {"ipv6:[::1]:80", "::1", 80},
                                            {"ipv6:%5B::ffff:10.0.0.7%5D:80", "10.0.0.7", 80}}) {
    EXPECT_EQ(PeerOf(name).address().to_string(), address) << name;
    EXPECT_EQ(PeerOf(name).port(), port) << name;
  }
  for (const char* name : {"", "unix:/a", "ipv4:", "ipv4:x:1", "10.0.0.7"}) EXPECT_EQ(PeerOf(name).port(), 0) << name;
}

}  // namespace
}  // namespace baton::net
