// A peer of a transport that says what a test wants, and the listener that hears what came of it.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "common/net/socket_address.h"
#include "kvtransfer/shm/unix_socket.h"
#include "kvtransfer/tcp/tcp_transport.h"

namespace baton {

inline constexpr auto kLimit = std::chrono::seconds(60);

/// What a transport tells its owner.
struct Side final : TransportEvents {
  void OnConnected(PeerNumber peer) override { connected.push_back(peer); }
  void OnMessage(PeerNumber, std::string_view) override { ++messages; }
  void OnLost(PeerNumber peer, const absl::Status& why) override { lost.push_back(peer), lost_why = why; }
  bool MayLand(PeerNumber, const LandingPlace&) override { return true; }
  std::vector<PeerNumber> connected, lost;
  int messages = 0;
  absl::Status lost_why;
};

inline std::string Frame(tcp::FrameHeader header, std::string_view payload) {
  header.payload_bytes = payload.size();
  tcp::Seal(header);
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + std::string(payload);
}
/// A header whose payload does not follow.
inline std::string Promise(tcp::FrameKind kind, uint64_t payload_bytes) {
  tcp::FrameHeader header{.kind = kind, .payload_bytes = payload_bytes};
  tcp::Seal(header);
  return {reinterpret_cast<const char*>(&header), sizeof(header)};
}
inline std::string HelloFrame(uint64_t slots, uint64_t slot_bytes) {
  const tcp::HelloBody body{slots, slot_bytes, getpid()};
  return Frame({.kind = tcp::FrameKind::kHello}, {reinterpret_cast<const char*>(&body), sizeof(body)});
}
/// A socket to where a transport by TCP or shared memory listens.
inline int DialAt(const std::string& address) {
  const size_t colon = address.find(':');
  const std::string where = address.substr(colon + 1);
  return (address.starts_with("shm:") ? unix_socket::Dial(where) : tcp::Dial(where)).value();
}

/// A socket to where a transport by TCP listens, of an address of this machine.
inline int DialFrom(const std::string& from, const std::string& address) {
  const int dialled = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const net::SocketAddress self = *net::SocketAddress::Of(from, 0);
  const auto port = static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  const net::SocketAddress to = *net::SocketAddress::Of("127.0.0.1", port);
  EXPECT_EQ(bind(dialled, self.get(), self.bytes()), 0);
  EXPECT_EQ(connect(dialled, to.get(), to.bytes()), 0);
  return dialled;
}

/// A socket that says what a test wants.
class Liar {
 public:
  explicit Liar(Transport& victim) : Liar(DialAt(victim.address())) {}
  Liar(Transport& victim, const std::string& from) : Liar(DialFrom(from, victim.address())) {}
  explicit Liar(int socket) : socket_(socket) {
    pollfd ready{socket_, POLLOUT, 0};
    EXPECT_EQ(poll(&ready, 1, 5000), 1);
  }
  ~Liar() { close(socket_); }
  Liar(const Liar&) = delete;
  Liar& operator=(const Liar&) = delete;
  void Say(std::string_view bytes) {
    EXPECT_EQ(send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  /// With these descriptors beside the bytes.
  void Say(std::string_view bytes, const std::vector<int>& descriptors) {
    iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
    std::vector<char> control(CMSG_SPACE(descriptors.size() * sizeof(int)));
    const msghdr message{
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control.data(), .msg_controllen = control.size()};
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    *head = {.cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    std::memcpy(CMSG_DATA(head), descriptors.data(), descriptors.size() * sizeof(int));
    EXPECT_EQ(sendmsg(socket_, &message, MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  /// Sends `bytes` again and again, as much as is taken now.
  void Repeat(std::string_view bytes) {
    const ssize_t sent = send(socket_, bytes.data() + at_, bytes.size() - at_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) at_ = (at_ + static_cast<size_t>(sent)) % bytes.size();
  }

  /// The other side has ended it.
  bool Ended() const {
    pollfd end{socket_, POLLRDHUP, 0};
    return poll(&end, 1, 0) == 1;
  }

  /// What has come for it, as far as it has.
  std::string Hear() {
    char bytes[4096];
    const ssize_t got = recv(socket_, bytes, sizeof(bytes), MSG_DONTWAIT);
    return {bytes, got > 0 ? static_cast<size_t>(got) : 0};
  }

 private:
  const int socket_;
  size_t at_ = 0;  ///< of what is repeated
};

template <class Condition>
void Until(Transport& transport, Condition&& condition) {
  const auto end = std::chrono::steady_clock::now() + kLimit;
  while (!condition() && std::chrono::steady_clock::now() < end) transport.Progress();
  ASSERT_TRUE(condition());
}

}  // namespace baton
