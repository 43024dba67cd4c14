// One byte-stream connection: frames out of a queue, frames in, without blocking. Used by the TCP and the shared-memory
// transport. Not thread-safe; owned by its transport.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "common/tls/stream.h"
#include "common/trust/greeting.h"
#include "kvtransfer/tcp/frame.h"

namespace baton::tcp {

class Connection {
 public:
  using Done = Transport::Done;
  /// Where arriving frames go.
  class Sink {
   public:
    virtual ~Sink() = default;
    /// A header came, before anything is kept for its payload. Error: the connection is given up.
    virtual absl::Status Admit(Connection& from, const FrameHeader& header) = 0;
    /// A frame whose payload is small and complete. Error: the connection is given up.
    virtual absl::Status OnFrame(Connection& from, const FrameHeader& header, std::string_view payload) = 0;
    /// Where the next bytes of a kWrite go; null: they are thrown away. Asked again for every piece.
    virtual std::byte* PlaceFor(Connection& from, const FrameHeader& header) = 0;
  };

  /// Takes the socket over. `connecting`: its connect has not completed. `greeting`: what both ends prove to each other
  /// before anything else goes or comes; null: nothing. `tls`: of this end, what follows is in TLS; null: it is not.
  Connection(PeerNumber peer, int socket, bool connecting, std::unique_ptr<trust::Greeting> greeting = nullptr,
             std::shared_ptr<const tls::Context> tls = nullptr);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  PeerNumber peer() const { return peer_; }
  int socket() const { return socket_; }
  bool wants_write() const {
    if (!words_.empty() || !stream_) return !words_.empty() || proven();  // the turn in which it becomes a stream
    return stream_->unsent() || (stream_->ready() && !out_.empty());
  }
  /// Has come and waits for Pump, though the socket is not readable.
  bool holds() const { return stream_ && stream_->holds(); }

  /// What goes out is encrypted by the kernel.
  bool in_kernel() const { return stream_ && stream_->in_kernel(); }

  /// `payload` must stay until `done`, which is called when the kernel has it all.
  void Queue(FrameHeader header, std::span<const std::byte> payload, Done done);
  /// As Queue, with a payload of its own. A peer that reads none of them is given up by Pump and PumpOut, at
  /// kMaxUnsentBytes.
  void QueueOwned(FrameHeader header, std::string payload, Done done);
  /// Calls every queued Done with `why`.
  void FailAll(const absl::Status& why);

  /// What this end gives the peer with its first bytes behind the greeting, and that it keeps what the peer gives:
  /// unix sockets only. `descriptor` stays the caller's; -1: nothing. Before the first Pump.
  void Exchange(int descriptor) { exchanges_ = true, given_ = descriptor; }
  /// What the peer gave, for the caller to close; -1: nothing.
  int TakeDescriptor() { return stream_ ? stream_->TakeAttached() : -1; }

  /// Reads and writes what is possible now. `moved` is set when something was. Error: the connection is broken.
  absl::Status Pump(Sink& sink, bool& moved);
  /// Pump's half that writes; nothing before the first Pump that found a stream.
  absl::Status PumpOut(Sink& sink, bool& moved);

 private:
  struct Out {
    FrameHeader header;
    std::string owned;
    std::span<const std::byte> payload;
    uint64_t sent = 0;  ///< of header and payload
    Done done;
    bool owns = false;  ///< the payload: `owned`
  };
  /// The peer knows the secret, where there is one.
  bool proven() const { return greeting_ == nullptr || greeting_->done(); }
  absl::Status PumpGreeting(bool& moved);
  absl::Status SendWords(bool& moved);
  absl::Status WriteQueued(bool& moved);
  void Written(size_t bytes);
  absl::Status PumpIn(Sink& sink, bool& moved);
  absl::Status Take(Sink& sink, std::string_view bytes, int& frames);
  absl::Status EndHeader(Sink& sink);
  absl::Status EndFrame(Sink& sink);
  std::byte* PayloadPlace(Sink& sink, size_t piece);
  absl::Status ReadPayload(Sink& sink, bool& moved, bool& again);
  /// Of a header that has come.
  uint64_t payload_left() const {
    return header_bytes_ == sizeof(FrameHeader) ? in_.payload_bytes - payload_bytes_ : 0;
  }
  const PeerNumber peer_;
  const int socket_;
  bool connecting_;
  const std::unique_ptr<trust::Greeting> greeting_;
  std::string words_;  ///< of the greeting, not sent yet
  std::shared_ptr<const tls::Context> tls_;
  std::optional<tls::Stream> stream_;  ///< once the peer has proven that it knows the secret
  bool exchanges_ = false;
  int given_ = -1;
  std::deque<Out> out_;
  FrameHeader in_;
  uint64_t unsent_bytes_ = 0;   ///< queued headers and payloads of our own
  bool heard_ = false;          ///< a header has come
  size_t header_bytes_ = 0;     ///< of in_, received
  uint64_t payload_bytes_ = 0;  ///< received
  std::string in_payload_;
};

/// A listening socket on `host` (an address, or a name of this machine), port 0: any. Nonblocking.
absl::StatusOr<int> Listen(const std::string& host, uint16_t port);
/// "host:port" of a socket's own end.
std::string LocalAddress(int socket);
/// A nonblocking socket that connects to "host:port"; the host is an IP address, for names take time to resolve.
absl::StatusOr<int> Dial(const std::string& address);
/// The connection breaks within half a minute after the other host is gone without a word. `when_full`: also when it
/// takes nothing off us for so long, though it is there (a stopped process).
void NoticeVanishedHost(int socket, bool when_full);
/// The next connection, nonblocking; -1: none, or errno says why not.
int Accept(int listener);

}  // namespace baton::tcp
