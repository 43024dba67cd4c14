// A port for servers that come and go, and for none.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include "common/net/socket_address.h"

namespace baton {

/// A port of 127.0.0.1 that nobody is given who asks for any, for as long as this lives. Who dials it is refused,
/// unless a server listens there that was told its number.
class HeldPort {
 public:
  HeldPort() : fd_(net::BoundSocket(*net::SocketAddress::Of("127.0.0.1", 0), 0)) {
    EXPECT_GE(fd_, 0);
    number_ = net::SocketAddress::OfSocket(fd_).port();
  }
  ~HeldPort() { close(fd_); }
  HeldPort(const HeldPort&) = delete;
  HeldPort& operator=(const HeldPort&) = delete;

  int number() const { return number_; }

 private:
  const int fd_;
  int number_ = 0;
};

}  // namespace baton
