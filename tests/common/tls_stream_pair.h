// Two ends of a connection in one test, each a tls::Stream.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/errno_text.h"
#include "common/net/socket_address.h"
#include "common/tls/context.h"
#include "common/tls/stream.h"

namespace baton::tls {

/// Two ends of a connection, and what came to each.
class Pair {
 public:
  /// `dials`, `dialled`: null for plain text. `by_tcp`: else by unix sockets.
  Pair(std::shared_ptr<const Context> dials, std::shared_ptr<const Context> dialled, bool by_tcp = false) {
    if (by_tcp) {
      ByTcp();
    } else {
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets_), 0);
    }
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
  /// Turns both ends, and what `also` is, until `enough`.
  template <class Enough>
  void Until(Enough&& enough) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!enough()) {
      ASSERT_LT(std::chrono::steady_clock::now(), end);
      if (here && here_status.ok()) here_status = Hear(*here, to_here);
      if (there && there_status.ok()) there_status = Hear(*there, to_there);
      if (here && here_status.ok()) here->Flush().IgnoreError();
      if (there && there_status.ok()) there->Flush().IgnoreError();
      if (also) also();
    }
  }
  void Meet() {
    Until([&] { return here->ready() && there->ready(); });
  }

  int socket_of(int number) const { return sockets_[number]; }

  std::optional<Stream> here, there;
  std::string to_here, to_there;
  absl::Status here_status, there_status;
  std::function<void()> also;

 private:
  void ByTcp() {
    const int listener = net::ListenAt(net::SocketAddress::Of("127.0.0.1", 0).value(), 0, 1).value();
    const net::SocketAddress where = net::SocketAddress::OfSocket(listener);
    sockets_[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int little = 64 << 10;
    setsockopt(sockets_[0], SOL_SOCKET, SO_SNDBUF, &little, sizeof(little));
    setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &little, sizeof(little));
    EXPECT_EQ(connect(sockets_[0], where.get(), where.bytes()), 0) << ErrnoText();
    sockets_[1] = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    EXPECT_GE(sockets_[1], 0) << ErrnoText();
    close(listener);
  }

  int sockets_[2] = {-1, -1};
};

}  // namespace baton::tls
