// Http2Stream before real gRPC servers in this process, in TLS and without, and before sockets that are no servers.
#include "router/outbound/http2_stream.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>

#include "common/str_cat.h"
#include "common/tls/context.h"
#include "proto/worker.grpc.pb.h"
#include "router/event_loop.h"
#include "tests/common/tls_fixture.h"
#include "tests/held_port.h"
#include "tests/router/http2_frames.h"

namespace baton::router {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr seconds kPatience{20};  // of a test, for what takes milliseconds

// Answers each message of its Relay with one: the landing addresses as they came. "end" ends it, "hold" reads no more
// until it is let go.
class EchoServer final : public v1::Worker::Service {
 public:
  explicit EchoServer(std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials(),
                      int wanted_port = 0) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(StrCat("127.0.0.1:", wanted_port), std::move(credentials), &port_);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.SetMaxReceiveMessageSize(-1);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    EXPECT_NE(server_, nullptr);
  }
  ~EchoServer() override { Stop(); }
  void Stop() {
    LetGo();
    server_->Shutdown(std::chrono::system_clock::now());
  }
  void LetGo() {
    std::lock_guard lock(mutex_);
    holds_ = false;
    changed_.notify_all();
  }
  int port() const { return port_; }
  bool WaitLeft() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [this] { return left_; });
  }

  grpc::Status Relay(grpc::ServerContext* context,
                     grpc::ServerReaderWriter<v1::RelayDown, v1::RelayUp>* stream) override {
    const auto session = context->client_metadata().find("baton-session");
    const bool named = session != context->client_metadata().end() && session->second == "router/1";
    if (!named) return {grpc::StatusCode::PERMISSION_DENIED, "who are you? é%"};
    v1::RelayUp up;
    while (stream->Read(&up)) {
      v1::RelayDown down;
      for (const v1::Meet& meet : up.meet()) down.add_entries()->set_request_id(meet.landing_address());
      if (down.entries_size() == 1 && down.entries(0).request_id() == "end")
        return {grpc::StatusCode::RESOURCE_EXHAUSTED, "as you wish"};
      if (down.entries_size() == 1 && down.entries(0).request_id() == "hold") {
        std::unique_lock lock(mutex_);
        holds_ = true;
        changed_.wait(lock, [this] { return !holds_; });
      }
      if (!stream->Write(down)) break;
    }
    std::lock_guard lock(mutex_);
    left_ = context->IsCancelled();
    changed_.notify_all();
    return grpc::Status::OK;
  }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool holds_ = false, left_ = false;
};

// A stream and what it said; a message is texts.
class Client {
 public:
  Client(EventLoop& loop, Http2Stream::Options options) {
    stream_ = OpenHttp2Stream(loop, std::move(options),
                              {[this](std::string_view message) { return Take(message); }, [this] { return Next(); },
                               [this](absl::Status why) {
                                 std::lock_guard lock(mutex_);
                                 EXPECT_FALSE(end_) << "a second end";
                                 end_ = std::move(why);
                                 changed_.notify_all();
                               }});
  }
  ~Client() {
    stream_->Cancel();
    End().IgnoreError();
  }
  void Send(const std::vector<std::string>& texts) {
    {
      std::lock_guard lock(mutex_);
      orders_.push_back(texts);
    }
    stream_->Wake();
  }
  void Cancel() { stream_->Cancel(); }
  /// Of the messages until there are `count`, or the end.
  std::vector<std::string> Texts(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [&] { return end_ || texts_.size() >= count; }));
    return texts_;
  }
  absl::Status End() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [&] { return end_.has_value(); }));
    return end_.value_or(absl::OkStatus());
  }
  bool ended() {
    std::lock_guard lock(mutex_);
    return end_.has_value();
  }
  size_t waiting() {
    std::lock_guard lock(mutex_);
    return orders_.size();
  }
  absl::Status refuses;  // what every message is answered with

 private:
  absl::Status Take(std::string_view message) {
    v1::RelayDown down;
    EXPECT_TRUE(down.ParseFromString(std::string(message)));
    std::lock_guard lock(mutex_);
    for (const v1::RelayEntry& entry : down.entries()) texts_.push_back(entry.request_id());
    changed_.notify_all();
    return refuses;
  }
  absl::Cord Next() {
    std::lock_guard lock(mutex_);
    if (orders_.empty()) return {};
    absl::Cord pieces;
    for (const std::string& text : orders_.front()) {
      v1::RelayUp up;
      up.add_meet()->set_landing_address(text);
      pieces.Append(absl::Cord(up.SerializeAsString()));
    }
    orders_.erase(orders_.begin());
    return pieces;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<std::string>> orders_;
  std::vector<std::string> texts_;
  std::optional<absl::Status> end_;
  std::shared_ptr<Http2Stream> stream_;
};

std::string ReadAll(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

// A port of loopback on which nobody speaks.
struct Door {
  Door() {
    const auto where = net::SocketAddress::Of("127.0.0.1", 0);
    fd = *net::ListenAt(*where, 0, 8);
    port = net::SocketAddress::OfSocket(fd).port();
  }
  ~Door() {
    if (fd >= 0) close(fd);
  }
  int fd = -1;
  int port = 0;
};

class Http2StreamTest : public ::testing::Test {
 protected:
  ~Http2StreamTest() override { loops_.Stop(); }

  Http2Stream::Options To(int port, const std::string& session = "router/1") {
    Http2Stream::Options options;
    options.where = *net::SocketAddress::Of("127.0.0.1", static_cast<uint16_t>(port));
    options.head = {"", StrCat("127.0.0.1:", port), "/baton.v1.Worker/Relay", {{"baton-session", session}}};
    return options;
  }
  Http2Stream::Options TlsTo(int port, const tls::TlsFiles& files, const std::string& name = "worker.test",
                             const std::string& alpn = "h2") {
    Http2Stream::Options options = To(port);
    options.tls = [=] { return tls::Context::ForClient(tls::MustLoad(files), {{name}, name, {alpn}}); };
    return options;
  }
  // Asks for a client's certificate of its authority.
  std::shared_ptr<grpc::ServerCredentials> Credentials(const tls::TlsFiles& files) {
    grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    options.pem_root_certs = ReadAll(files.ca);
    options.pem_key_cert_pairs.push_back({ReadAll(files.key), ReadAll(files.cert)});
    return grpc::SslServerCredentials(options);
  }

  EventLoopPool loops_{1};
  EventLoop& loop_ = loops_.at(0);
  tls::CertDir dir_, other_dir_;
  const tls::CertAndKey authority_ = tls::TestAuthority("authority A"), other_ = tls::TestAuthority("authority B");
};

TEST_F(Http2StreamTest, MessagesGoBothWaysAndTheEndHasTheServersStatus) {
  EchoServer server;
  Client client(loop_, To(server.port()));
  client.Send({"a"});
  EXPECT_THAT(client.Texts(1), ::testing::ElementsAre("a"));
  client.Send({"b", "c"});
  client.Send({"d"});
  EXPECT_THAT(client.Texts(4), ::testing::ElementsAre("a", "b", "c", "d"));
  client.Send({"end"});
  EXPECT_EQ(client.End(), absl::ResourceExhaustedError("as you wish"));
}

TEST_F(Http2StreamTest, ARefusalComesWithItsText) {
  EchoServer server;
  Client client(loop_, To(server.port(), "stranger"));
  EXPECT_EQ(client.End(), absl::PermissionDeniedError("who are you? é%"));
}

TEST_F(Http2StreamTest, LargeMessagesComeAsTheyWere) {
  EchoServer server;
  Client client(loop_, To(server.port()));
  std::string large;
  for (int i = 0; large.size() < 3'000'000; ++i) large += StrCat(i, " ");
  client.Send({large, "x"});
  const std::vector<std::string> got = client.Texts(2);
  ASSERT_EQ(got.size(), 2u);
  EXPECT_TRUE(got[0] == large);
}

TEST_F(Http2StreamTest, AServerThatDoesNotReadHoldsMessagesBack) {
  EchoServer server;
  Client client(loop_, To(server.port()));
  client.Send({"hold"});
  constexpr int kMessages = 24;
  const std::string megabyte(1 << 20, 'm');
  for (int i = 0; i < kMessages; ++i) client.Send({megabyte, StrCat(i)});
  Client other(loop_, To(server.port()));  // the same loop has time for all that it can send
  for (size_t i = 1; i <= 50; ++i) {
    other.Send({"a"});
    ASSERT_EQ(other.Texts(i).size(), i);
  }
  EXPECT_GT(client.waiting(), 0u);
  server.LetGo();
  EXPECT_EQ(client.Texts(1 + 2 * kMessages).size(), 1u + 2 * kMessages);
  EXPECT_EQ(client.Texts(0).back(), StrCat(kMessages - 1));
}

TEST_F(Http2StreamTest, ManyStreamsShareALoop) {
  EchoServer server;
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 16; ++i) clients.push_back(std::make_unique<Client>(loop_, To(server.port())));
  for (int round = 0; round < 20; ++round) {
    for (auto& client : clients) client->Send({StrCat(round)});
  }
  for (auto& client : clients) EXPECT_EQ(client->Texts(20).size(), 20u);
}

TEST_F(Http2StreamTest, CancelReachesTheServer) {
  EchoServer server;
  Client client(loop_, To(server.port()));
  client.Send({"a"});
  client.Texts(1);
  client.Cancel();
  EXPECT_EQ(client.End().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(server.WaitLeft());
}

TEST_F(Http2StreamTest, AMessageThatIsRefusedEndsTheStream) {
  EchoServer server;
  Client client(loop_, To(server.port()));
  client.refuses = absl::InternalError("no RelayDown");
  client.Send({"a"});
  EXPECT_EQ(client.End(), client.refuses);
  EXPECT_TRUE(server.WaitLeft());
}

TEST_F(Http2StreamTest, ARefusedPortIsUnavailableAndARestartedServerIsReached) {
  const HeldPort held;
  const int port = held.number();
  auto server = std::make_unique<EchoServer>(grpc::InsecureServerCredentials(), port);
  Client first(loop_, To(port));
  first.Send({"a"});
  first.Texts(1);
  server.reset();
  EXPECT_EQ(first.End().code(), absl::StatusCode::kUnavailable) << first.End();
  Client nobody(loop_, To(port));
  EXPECT_EQ(nobody.End().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(nobody.End().ToString(), HasSubstr("refused"));
  EchoServer again(grpc::InsecureServerCredentials(), port);
  Client second(loop_, To(port));
  second.Send({"b"});
  EXPECT_THAT(second.Texts(1), ::testing::ElementsAre("b"));
}

TEST_F(Http2StreamTest, WhoGivesNoSignOfLifeIsLost) {
  Door door;
  Http2Stream::Options options = To(door.port);
  options.silence = options.answer = milliseconds(30);
  Client client(loop_, std::move(options));
  EXPECT_EQ(client.End().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(client.End().ToString(), HasSubstr("nothing came for"));
}

// Answers three questions for a sign of life, then no more.
TEST_F(Http2StreamTest, WhoAnswersPingsIsNotLost) {
  Door door;
  Http2Stream::Options options = To(door.port);
  options.silence = milliseconds(10);
  options.answer = milliseconds(1000);
  Client client(loop_, std::move(options));
  const int fd = accept(door.fd, nullptr, nullptr);
  ASSERT_GE(fd, 0);
  const auto say = [fd](const std::string& bytes) {
    EXPECT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  };
  say(http2::Settings());
  std::string heard;
  for (int answered = 0; answered < 3;) {
    char bytes[1024];
    const ssize_t n = recv(fd, bytes, sizeof bytes, 0);
    ASSERT_GT(n, 0);
    heard.append(bytes, static_cast<size_t>(n));
    if (heard.size() < http2::kPreface.size()) continue;
    int pings = 0;
    for (const http2::Frame& frame : http2::FramesOf(std::string_view(heard).substr(http2::kPreface.size()))) {
      if (frame.type != http2::kPing || ++pings <= answered) continue;
      EXPECT_FALSE(client.ended());
      say(http2::Ping(frame.payload, http2::kAck));
      ++answered;
    }
  }
  EXPECT_THAT(client.End().ToString(), HasSubstr("nothing came for"));
  close(fd);
}

TEST_F(Http2StreamTest, BothProveThemselvesByTls) {
  EchoServer server(Credentials(dir_.Make(authority_, "worker", {"worker.test"})));
  Client client(loop_, TlsTo(server.port(), dir_.Make(authority_, "router", {})));
  std::string large(2'000'000, 'x');
  client.Send({"a"});
  client.Send({large});
  const std::vector<std::string> got = client.Texts(2);
  ASSERT_EQ(got.size(), 2u) << client.End();
  EXPECT_EQ(got[0], "a");
  EXPECT_TRUE(got[1] == large);
  client.Send({"end"});
  EXPECT_EQ(client.End(), absl::ResourceExhaustedError("as you wish"));
}

TEST_F(Http2StreamTest, TlsRefusesWhoIsNotBelievedAndSaysWhy) {
  const tls::TlsFiles router = dir_.Make(authority_, "router", {});
  EchoServer server(Credentials(dir_.Make(authority_, "worker", {"worker.test"})));
  const auto refused = [&](Http2Stream::Options options) {
    Client client(loop_, std::move(options));
    EXPECT_EQ(client.End().code(), absl::StatusCode::kUnavailable);
    return client.End().ToString();
  };
  EXPECT_THAT(refused(TlsTo(server.port(), router, "other.test")),
              AllOf(HasSubstr("TLS: "), HasSubstr("other.test"), HasSubstr("worker.test")));
  const tls::TlsFiles stranger = other_dir_.Make(other_, "router", {});
  EXPECT_THAT(refused(TlsTo(server.port(), stranger)), AllOf(HasSubstr("TLS: "), HasSubstr("authority")));
  tls::TlsFiles unproven = stranger;  // believes the worker, and is not believed
  unproven.ca = router.ca;
  EXPECT_THAT(refused(TlsTo(server.port(), unproven)), HasSubstr("refused our certificate"));
  EXPECT_THAT(refused(TlsTo(server.port(), router, "worker.test", "http/1.1")), HasSubstr("TLS: "));
  EXPECT_THAT(refused(To(server.port())), HasSubstr("does that port speak TLS"));
  EchoServer plain;
  EXPECT_THAT(refused(TlsTo(plain.port(), router)), HasSubstr("plain text"));
}

TEST_F(Http2StreamTest, AConnectionThatIsNotThereInTimeIsUnavailable) {
  Door door;
  Http2Stream::Options options = TlsTo(door.port, dir_.Make(authority_, "router", {}));
  options.connect = milliseconds(30);
  Client client(loop_, std::move(options));
  EXPECT_EQ(client.End().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(client.End().ToString(), HasSubstr("not done after"));
}

TEST_F(Http2StreamTest, AnIdentityThatCannotDialEndsTheStream) {
  EchoServer server;
  Http2Stream::Options options = To(server.port());
  options.tls = []() -> absl::StatusOr<std::shared_ptr<const tls::Context>> {
    return absl::FailedPreconditionError("dialling needs --tls-ca");
  };
  Client client(loop_, std::move(options));
  EXPECT_THAT(client.End().ToString(), HasSubstr("--tls-ca"));
}

TEST_F(Http2StreamTest, CancelBeforeTheConnectionIsThereEndsItOnce) {
  EchoServer server;
  Door door;
  for (int i = 0; i < 50; ++i) {
    Client plain(loop_, To(server.port())), tls(loop_, TlsTo(door.port, dir_.Make(authority_, "router", {})));
    plain.Cancel();
    tls.Cancel();
    EXPECT_EQ(plain.End().code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(tls.End().code(), absl::StatusCode::kCancelled);
  }
}

}  // namespace
}  // namespace baton::router
