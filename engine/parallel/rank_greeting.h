// What two ranks say to each other before the first step: the greeting (common/trust/greeting.h), then, in TLS where
// the group has it, who the dialling one is, then whether it may stay. Nothing is kept for who has not greeted.
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
#include "common/tls/stream.h"
#include "common/trust/peer_trust.h"

namespace baton::engine {

inline constexpr Duration kGreetWithin = std::chrono::seconds(2);
/// All ranks have greeted rank 0: how long they may take to reach one another.
inline constexpr Duration kKnowEachOtherWithin = std::chrono::seconds(30);

/// What a connection between two ranks is for.
enum class RankLine : uint16_t { kSteps, kPulse };

/// The group as one of its ranks was told of it.
struct RankGroup {
  trust::PeerTrust trust;  ///< the same secret on all ranks; TLS on all or none
  int rank = 0;
  int size = 1;
  Duration patience = std::chrono::seconds(60);  ///< until all have met
  RankLine line = RankLine::kSteps;
};

/// A descriptor with an owner, and its bytes: as they are, until they are to be in TLS.
class RankSocket {
 public:
  explicit RankSocket(int fd = -1) : fd_(fd) {
    if (fd >= 0) stream_ = std::make_unique<tls::Stream>(fd);
  }
  RankSocket(RankSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)), stream_(std::move(other.stream_)) {}
  RankSocket& operator=(RankSocket&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~RankSocket() {
    stream_.reset();
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  tls::Stream& stream() const { return *stream_; }
  void Encrypt(std::shared_ptr<const tls::Context> context) {
    stream_ = std::make_unique<tls::Stream>(fd_, std::move(context));
  }

 private:
  int fd_;
  std::unique_ptr<tls::Stream> stream_;
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
/// Small messages, within `patience`. `who` is the other end, for the error. Unavailable: it is gone; DeadlineExceeded:
/// it is silent; Unauthenticated: TLS refuses one of the two.
absl::Status SendToRank(const RankSocket& socket, const void* data, size_t bytes, std::string_view who,
                        Duration patience);
absl::Status RecvFromRank(const RankSocket& socket, void* data, size_t bytes, std::string_view who, Duration patience);

/// One attempt to reach rank `peer` at `where` and to be let in. Unavailable, DeadlineExceeded (silent for 2 s):
/// another attempt may do better. Else a refusal: PermissionDenied has another secret, AlreadyExists another rank of
/// our index, Unauthenticated no certificate that is believed.
absl::StatusOr<RankSocket> DialRank(const net::SocketAddress& where, int peer, const RankGroup& group,
                                    const RankHello& hello);

}  // namespace baton::engine
