// The movement of bytes between workers: messages both ways, and writes into a peer's landing slots. One interface, a
// folder per backend, one contract test over all of them (tests/kvtransfer/transport_contract.h). The contract is
// unkind, as the fastest backends are:
//
//   - After Done(error) the bytes of a Write may still land, whole or torn, until the peer is fenced.
//   - A message may overtake writes unless it was sent after their Done, or after a Flush.
//   - Several Dones may come from one Progress; they may come from inside Close, but never from inside Write or Send.
//   - When a connection breaks, every outstanding Done is called with an error, then OnLost, once.
//
// Everything is called on the transfer thread, and calls back on it. Callbacks may call the transport, except Close of
// the peer they speak of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kvtransfer/fence_kind.h"
#include "kvtransfer/lane_messages.h"

namespace baton {

/// A connection to one incarnation of a peer's rank; never used twice by one Transport. 0: none.
using PeerNumber = uint64_t;

/// The landing memory that a peer may claim to have, and the longest message.
inline constexpr uint64_t kMaxLandingSlots = 1 << 16, kMaxLandingSlotBytes = 1 << 30, kMaxMessageBytes = 16 << 20;

/// The receiving side's landing memory: `slots` slots of `slot_bytes`, adjacent.
struct LandingShape {
  uint32_t slots = 0;
  uint64_t slot_bytes = 0;
};

/// Where a Write goes. (lane, turn) travel with the bytes where the receiver writes.
struct LandingPlace {
  LaneKey lane;
  SlotTurn slot;
};

/// The listener of a transport. Must outlive the transport.
class TransportEvents {
 public:
  virtual ~TransportEvents() = default;
  /// A peer connected to us. Comes before its first message.
  virtual void OnConnected(PeerNumber peer) = 0;
  virtual void OnMessage(PeerNumber peer, std::string_view message) = 0;
  virtual void OnLost(PeerNumber peer, const absl::Status& why) = 0;
  /// Instead of OnLost, where a peer connected to us and was turned away before OnConnected. `host`: where it is.
  virtual void OnRefused(PeerNumber peer, std::string_view host, const absl::Status& why) {
    (void)host;
    OnLost(peer, why);
  }
  /// kReceiverWrites only: may these bytes be stored? Asked before every piece of a slot is; a slot changes hands on
  /// this thread alone, so that the answer holds until the piece is stored.
  virtual bool MayLand(PeerNumber peer, const LandingPlace& place) = 0;
};

class Transport {
 public:
  using Done = std::function<void(const absl::Status&)>;
  virtual ~Transport() = default;

  /// "tcp", "shm", "ucx-tcp" …; also the prefix of its addresses.
  virtual std::string_view name() const = 0;
  /// The way that the bytes really take to this peer, where the name does not tell: "posix/memory put".
  virtual std::string path(PeerNumber /*peer*/) const { return std::string(name()); }
  virtual FenceKind fence() const = 0;
  /// The address that peers Connect to; bytes, opaque, valid for this incarnation.
  virtual std::string address() const = 0;
  /// Our landing memory; empty for a pure sender. Lives as long as the transport.
  virtual std::span<std::byte> landing() = 0;

  /// Unavailable when the address is nobody's; InvalidArgument when it is another backend's. Completed by Progress:
  /// writes and messages may be posted at once.
  virtual absl::StatusOr<PeerNumber> Connect(std::string_view address) = 0;
  /// The peer's landing memory; slots 0 until its greeting came.
  virtual LandingShape landing_of(PeerNumber peer) const = 0;
  /// A slot of the peer as memory of ours, where the backend maps it; else empty. Bytes that are packed there need no
  /// copy: Write them from there, into this slot and while it is granted.
  virtual std::span<std::byte> slot_of(PeerNumber /*peer*/, uint32_t /*slot*/) { return {}; }
  /// `bytes` into a slot of the peer, from its start. They must stay until `done`. InvalidArgument (through `done`)
  /// when they do not fit.
  virtual void Write(PeerNumber peer, const LandingPlace& place, std::span<const std::byte> bytes, Done done) = 0;
  virtual void Send(PeerNumber peer, std::string message, Done done) = 0;
  /// `done(ok)`: no write posted before to this peer is in flight any more.
  virtual void Flush(PeerNumber peer, Done done) = 0;
  /// Ends the connection; outstanding Dones get an error. `fenced` is called once the peer can write our landing memory
  /// no more: from inside Close where the backend can enforce it at once, later where that takes a while or only the
  /// peer's exit does. So it is of a peer that was lost, too; Close may be called again.
  virtual void Close(PeerNumber peer, std::function<void()> fenced) = 0;
  /// The fence of a peer that was closed is needed no more, for it held nothing of ours, or what it held has come back:
  /// a `fenced` that still waits is never called, and nothing is kept of the peer. Not to be closed again.
  virtual void Release(PeerNumber /*peer*/) {}

  /// Lets every peer read `memory` of a GPU, by the network's device, while the transport lives, and the memory longer.
  /// What Read names it by. Unimplemented: a transport of this kind knows the host's memory alone; FailedPrecondition:
  /// the reason why this one cannot.
  virtual absl::StatusOr<std::string> Lend(std::span<std::byte> /*memory*/) {
    return absl::UnimplementedError("it carries what is in the host's memory");
  }
  /// Lets Read put into `memory` of a GPU; as Lend.
  virtual absl::Status TakeInto(std::span<std::byte> /*memory*/) {
    return absl::UnimplementedError("it carries what is in the host's memory");
  }
  /// Into `to`, in memory of TakeInto, what the peer has `lent`, from `at` on. It is there when the host asks the GPU
  /// to see it (KvMover::SeeInbox) after Done(ok). InvalidArgument (through `done`): nothing of it was read. After
  /// another error, with which the connection breaks, bytes may still come until the peer is fenced.
  virtual void Read(PeerNumber /*peer*/, std::string_view /*lent*/, uint64_t /*at*/, std::span<std::byte> /*to*/,
                    Done done) {
    done(absl::InvalidArgumentError("it carries what is in the host's memory"));
  }

  /// Moves things; false when there was nothing to do.
  virtual bool Progress() = 0;
  /// Readable when Progress may have something to do, once it has answered false and nothing was asked since; for
  /// poll(). -1: none, call Progress periodically.
  virtual int wait_fd() const = 0;
  /// Progress has nothing to do until wait_fd() is readable, whatever it answered. False: it has, or that is not known.
  virtual bool waits_for_descriptor() const { return false; }
};

}  // namespace baton
