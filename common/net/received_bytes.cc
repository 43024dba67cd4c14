#include "common/net/received_bytes.h"

#include <linux/tcp.h>  // glibc's own tcp_info is shorter, and the two do not go together
#include <netinet/in.h>
#include <sys/socket.h>

namespace baton::net {

uint64_t ReceivedBytes(int socket) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  return getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 ? info.tcpi_bytes_received : 0;
}

}  // namespace baton::net
