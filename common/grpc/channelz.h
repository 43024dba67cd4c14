// What gRPC itself counts of the connections of its servers in this process: calls begin for it with their headers, and
// nobody else hears of one before its message is here. Threads: any.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace baton::net {

/// Tells of sockets that it has not told of yet.
class GrpcSockets {
 public:
  struct Socket {
    int64_t id = 0;
    std::string peer;  ///< as grpc::ServerContext names it
  };
  /// May tell of one again.
  std::vector<Socket> New();

 private:
  std::map<int64_t, int64_t> next_;  ///< by server: the first socket that it was not asked for
};

/// Calls that are open on the socket, whether their messages have come or not. None: it has ended.
std::optional<int64_t> OpenCallsOf(int64_t socket_id);

}  // namespace baton::net
