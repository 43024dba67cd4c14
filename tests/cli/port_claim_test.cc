#include "cli/port_claim.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/str_cat.h"

namespace baton::cli {
namespace {

// A listening socket on 127.0.0.1 as a child would make it; -1: the port cannot be had.
int Listen(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
  sockaddr_in address{
      .sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port)), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && listen(fd, 4) == 0) return fd;
  close(fd);
  return -1;
}

TEST(PortClaim, LetsOneListenerAfterAnotherHaveThePort) {
  const auto claim = PortClaim::Take("127.0.0.1", 0, "--port");
  ASSERT_TRUE(claim.ok()) << claim.status();
  ASSERT_GT(claim->port(), 0);
  for (int i = 0; i < 3; ++i) {
    const int fd = Listen(claim->port());
    ASSERT_GE(fd, 0) << i;
    close(fd);
  }
}

TEST(PortClaim, ClaimsOfAnyFreePortAreDifferent) {
  const auto first = PortClaim::Take("127.0.0.1", 0, "--port"), second = PortClaim::Take("localhost", 0, "--port");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(first->port(), second->port());
}

TEST(PortClaim, SaysWhyAPortCannotBeHad) {
  const auto free = PortClaim::Take("127.0.0.1", 0, "--port");
  ASSERT_TRUE(free.ok());
  const int fd = Listen(free->port());
  const auto taken = PortClaim::Take("127.0.0.1", free->port(), "--admin-port");
  close(fd);
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(taken.status().message(),
            StrCat("cannot listen on 127.0.0.1:", free->port(), ": Address already in use (--host, --admin-port)"));
}

TEST(PortClaim, AHostThatIsNoAddressOrNotOursIsRefused) {
  EXPECT_EQ(
      std::string(PortClaim::Take("no such host", 0, "--port").status().message()),
      "--host no such host: \"no such host\" is no address: a host name has letters, digits, '-', '_' and '.' only");
  EXPECT_EQ(PortClaim::Take("192.0.2.1", 0, "--port").status().code(), absl::StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace baton::cli
