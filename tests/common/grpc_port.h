// A gRPC server behind a GrpcAcceptor, and sockets of its clients.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/grpc/acceptor.h"
#include "common/grpc/watched_calls.h"
#include "common/str_cat.h"

namespace baton::net {

inline const std::string kPreface("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
inline constexpr int kPatienceMs = 10000;

/// A frame that means nothing and is answered: 9 bytes.
inline const std::string kSettings("\0\0\0\4\0\0\0\0\0", 9);

inline std::string Times(int count, const std::string& bytes) {
  std::string out;
  for (int i = 0; i < count; ++i) out += bytes;
  return out;
}

/// The headers of a call; `end`: nothing else comes of it.
inline std::string OneCall(bool end, char id = 1, const std::string& path = "/a") {
  // POST, http, :path, :authority a, te: trailers, content-type: application/grpc
  const std::string headers = std::string("\x83\x86\x04") + static_cast<char>(path.size()) + path +
                              std::string(
                                  "\x01\x01"
                                  "a\0\x02te\x08trailers\x0f\x10\x10"
                                  "application/grpc",
                                  35);
  return std::string("\0\0", 2) + static_cast<char>(headers.size()) + '\1' + (end ? '\5' : '\4') +
         std::string("\0\0\0", 3) + id + headers;
}

/// 120 calls, each of which is given up at once, or asks nothing and is answered.
inline std::string ManyCalls(bool given_up) {
  std::string out;
  for (int n = 0; n < 120; ++n) {
    const auto id = static_cast<char>(2 * n + 1);
    out += OneCall(/*end=*/true, id);
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
  /// Sends it, and waits until the other side's system has it all.
  void Bring(const std::string& bytes) const {
    Send(bytes);
    for (int unacknowledged = 1; unacknowledged > 0; std::this_thread::yield())
      ASSERT_EQ(ioctl(fd_, TIOCOUTQ, &unacknowledged), 0);
  }
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
  /// Reads what has come; true: it is all there will be.
  bool EndedByNow() const {
    char bytes[4096];
    ssize_t got = 1;
    while (got > 0) got = recv(fd_, bytes, sizeof bytes, MSG_DONTWAIT);
    return got == 0 || errno != EAGAIN;
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

/// A call of the health service that runs until it is destroyed: it waits for the server's next state.
class Watch {
 public:
  explicit Watch(int port)
      : stub_(grpc::CreateChannel(StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials())),
        call_(stub_.PrepareCall(&context_, "/grpc.health.v1.Health/Watch", &done_)) {
    call_->StartCall(nullptr);
    began_ = Wait();
    const grpc::Slice nothing;
    call_->Write(grpc::ByteBuffer(&nothing, 1), nullptr);
    began_ = Wait() && began_;
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch() {
    context_.TryCancel();
    grpc::Status status;
    call_->Finish(&status, nullptr);
    Wait();
    done_.Shutdown();
  }

  /// Waits for a state. False: the call is over.
  bool Answered() {
    call_->Read(&state_, nullptr);
    return Wait() && began_;
  }

 private:
  bool Wait() {
    void* tag = nullptr;
    bool ok = false;
    return done_.Next(&tag, &ok) && ok;
  }

  grpc::GenericStub stub_;
  grpc::CompletionQueue done_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  bool began_ = false;
  grpc::ByteBuffer state_;
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
    void OnBegin(const grpc::ServerContextBase&, std::string_view peer, std::string_view) override {
      port.acceptor_->MayAsk(peer);
    }
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

}  // namespace baton::net
