// What two ranks say to each other before the first step: the greeting (common/trust/greeting.h), then who the dialling
// one is, then whether it may stay. Nothing is kept for who has not greeted.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/net/socket_address.h"
#include "common/trust/cluster_secret.h"

namespace baton::engine {

inline constexpr Duration kGreetWithin = std::chrono::seconds(2);

/// What a connection between two ranks is for.
enum class RankLine : uint16_t { kSteps, kPulse };

/// The group as one of its ranks was told of it.
struct RankGroup {
  std::shared_ptr<const trust::ClusterSecret> secret;  ///< the same on all ranks
  int rank = 0;
  int size = 1;
  Duration patience = std::chrono::seconds(60);  ///< until all have met
  RankLine line = RankLine::kSteps;
};

/// A descriptor with an owner.
class RankSocket {
 public:
  explicit RankSocket(int fd = -1) : fd_(fd) {}
  RankSocket(RankSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  RankSocket& operator=(RankSocket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~RankSocket() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

/// The rank that dials says who it is. On the wire as it stands here.
struct RankHello {
  int32_t rank = 0;
  int32_t size = 0;   ///< of its group
  uint16_t port = 0;  ///< where it listens
  RankLine line = RankLine::kSteps;
};

/// The answer to it: no text, welcome; else why not.
struct RankVerdict {
  uint8_t code = 0;  ///< of absl::StatusCode
  uint8_t length = 0;
  char text[158] = {};

  static RankVerdict Of(const absl::Status& status);
  absl::Status status() const;
};

/// Whether a call on a socket that does not block has only nothing to do.
bool WouldBlock();
/// Nagle's delay is off; sends and receives give up after `patience`.
void PrepareRankSocket(int socket, Duration patience);
/// Small messages, with the patience that the socket has. `who` is the other end, for the error. Unavailable: it is
/// gone; DeadlineExceeded: it is silent.
absl::Status SendToRank(int socket, const void* data, size_t bytes, std::string_view who);
absl::Status RecvFromRank(int socket, void* data, size_t bytes, std::string_view who);

/// One attempt to reach rank `peer` at `where` and to be let in. Unavailable, DeadlineExceeded (silent for 2 s):
/// another attempt may do better. Else a refusal: PermissionDenied has another secret, AlreadyExists another rank of
/// our index.
absl::StatusOr<RankSocket> DialRank(const net::SocketAddress& where, int peer, const RankGroup& group,
                                    const RankHello& hello);

}  // namespace baton::engine
