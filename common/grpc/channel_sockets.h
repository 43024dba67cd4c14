// ChannelSockets: what comes on the connections of a gRPC channel beside the messages that were waited for, and the end
// of those on which it never ends. gRPC bounds a message; it does not bound what a server says between two of them (a
// header that is not over, frames that mean nothing), and keeps some of that. Thread-safe.
#pragma once

#include <grpcpp/support/channel_arguments.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "common/clock.h"

namespace baton::net {

class ChannelSockets {
 public:
  struct Limits {
    uint64_t bytes = 16 << 20;              ///< that are no message, or not yet
    uint64_t bytes_each_second = 64 << 10;  ///< of them are forgotten
  };
  explicit ChannelSockets(Limits limits);
  ~ChannelSockets();

  /// Of the one channel that is made with these arguments. It may outlive this object.
  void Join(grpc::ChannelArguments& args);
  /// A message of so many bytes was taken, with what frames and headers it came in.
  void Took(size_t bytes);
  /// Looks at what has come by now and ends all connections when it is too much: how much that was. 0: it is not.
  uint64_t EndFlood(TimePoint now);
  /// Whether something has come that gRPC, whose threads may all be busy, has not read.
  bool HasUnread() const;
  /// When to look the next time: sooner where much came.
  TimePoint NextLook() const;

 private:
  struct Opened;  // the sockets, which gRPC tells of
  const Limits limits_;
  const std::shared_ptr<Opened> opened_;
  std::atomic<uint64_t> taken_ = 0;  ///< since the last look
  mutable std::mutex mutex_;         // guards what follows
  double over_ = 0;                  ///< bytes that nobody has taken
  TimePoint looked_{};
};

}  // namespace baton::net
