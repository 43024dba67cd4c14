// What a server says to a gRPC channel of ours without end.
#include "common/grpc/channel_sockets.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "common/net/socket_address.h"
#include "common/str_cat.h"

namespace baton::net {
namespace {

/// A server of one connection, which sends its first word and then `again` for as long as anybody reads.
class Flooder {
 public:
  explicit Flooder(std::string again) : again_(std::move(again)), listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    const SocketAddress any = *SocketAddress::Of("127.0.0.1", 0);
    EXPECT_EQ(bind(listener_, any.get(), any.bytes()), 0);
    EXPECT_EQ(listen(listener_, 4), 0);
    address_ = SocketAddress::OfSocket(listener_).text();
    thread_ = std::thread([this] { Serve(); });
  }
  ~Flooder() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  const std::string& address() const { return address_; }
  uint64_t sent() const { return sent_; }
  bool ended() const { return ended_; }

 private:
  void Serve() {
    const int fd = accept(listener_, nullptr, nullptr);
    if (fd < 0) return;
    const std::string settings("\0\0\0\4\0\0\0\0\0", 9);
    // HEADERS of stream 1, not over: a header of 2 GiB has begun.
    const std::string begin("\0\0\x09\1\0\0\0\0\1\0\1a\x7f\x81\xff\xff\xff\7", 18);
    Send(fd, settings);
    std::string asked;  // the call must be there
    for (char piece[4096]; asked.find("/a.B/C") == asked.npos;) {
      const ssize_t came = recv(fd, piece, sizeof piece, 0);
      if (came <= 0) break;
      asked.append(piece, static_cast<size_t>(came));
    }
    Send(fd, begin);
    while (Send(fd, again_)) sent_ += again_.size();
    ended_ = true;
    close(fd);
  }
  static bool Send(int fd, const std::string& bytes) {
    size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t now = send(fd, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
      if (now <= 0) return false;
      done += static_cast<size_t>(now);
    }
    return true;
  }
  const std::string again_;
  const int listener_;
  std::string address_;
  std::atomic<uint64_t> sent_ = 0;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

/// CONTINUATION of stream 1, 16 KiB of it.
std::string Continuation() { return std::string("\0\x40\0\x09\0\0\0\0\1", 9) + std::string(16 << 10, 'x'); }

/// A call whose end nobody waits for before it is asked.
struct Call {
  explicit Call(const std::shared_ptr<grpc::Channel>& channel) : stub(channel) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    stub.UnaryCall(&context, "/a.B/C", {}, &request, &reply, [this](const grpc::Status& status) {
      code = status.error_code();
      over = true;
      over.notify_all();
    });
  }
  grpc::ClientContext context;
  grpc::GenericStub stub;
  grpc::ByteBuffer request{nullptr, 0}, reply;
  grpc::StatusCode code = grpc::StatusCode::OK;
  std::atomic<bool> over = false;
};

/// Between two looks: who looks without a pause never leaves the lock to gRPC, which has to tell of its socket, for
/// minutes.
void LetOthersIn() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

TEST(ChannelSockets, AHeaderWithoutEndEndsTheConnection) {
  const Flooder server(Continuation());
  ChannelSockets sockets({.bytes = 1 << 20, .bytes_each_second = 0});
  grpc::ChannelArguments args;
  sockets.Join(args);
  Call call(grpc::CreateCustomChannel(StrCat("ipv4:", server.address()), grpc::InsecureChannelCredentials(), args));
  const SteadyClock clock;
  uint64_t flood = 0;
  bool unread = false;
  while (flood == 0 && !call.over) {
    unread |= sockets.HasUnread();
    flood = sockets.EndFlood(clock.Now());
    LetOthersIn();
  }
  EXPECT_GT(flood, 1u << 20);
  EXPECT_TRUE(unread) << "more comes than gRPC reads at once";
  call.over.wait(false);
  EXPECT_EQ(call.code, grpc::StatusCode::UNAVAILABLE);
}

TEST(ChannelSockets, MessagesThatWereTakenAndLittleElseAreNone) {
  const Flooder server(Continuation());
  ChannelSockets sockets({.bytes = 64 << 20, .bytes_each_second = 1 << 20});
  grpc::ChannelArguments args;
  sockets.Join(args);
  Call call(grpc::CreateCustomChannel(StrCat("ipv4:", server.address()), grpc::InsecureChannelCredentials(), args));
  TimePoint now{};
  while (server.sent() < 2 << 20) {
    EXPECT_EQ(sockets.EndFlood(now += std::chrono::milliseconds(1)), 0u);
    LetOthersIn();
  }
  sockets.Took(512 << 10);  // and what they came in: 2 MiB
  EXPECT_EQ(sockets.EndFlood(now += std::chrono::seconds(8)), 0u);
  EXPECT_LT(sockets.NextLook() - now, std::chrono::seconds(1));
  call.context.TryCancel();
  call.over.wait(false);
  EXPECT_FALSE(server.ended()) << "nobody ended it";
}

}  // namespace
}  // namespace baton::net
