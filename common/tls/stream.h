// Stream: the bytes of a connected socket between two of our processes, in TLS or as they are, without blocking. The
// one place where our own sockets (KV, ranks) differ by that. In TLS the end that was dialled says one byte when it
// believes the other one, and who dialled says nothing before it: so that whoever is refused hears why, and not that
// the connection was reset. One thread at a time.
#pragma once

#include <sys/uio.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/tls/write_key.h"

namespace baton::tls {

class Context;
class KernelTls;
class Session;

class Stream {
 public:
  /// `socket` stays the caller's. `context`: of the end that this is; null: plain text.
  explicit Stream(int socket, std::shared_ptr<const Context> context = nullptr);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// Bytes of `pieces`, one after the other, that were taken; the caller may forget them. 0: not now.
  /// Unavailable: the connection is broken. Unauthenticated: the peer is not believed, or does not believe us.
  absl::StatusOr<size_t> Write(std::span<const iovec> pieces);
  /// Bytes that have come, at most `bytes`; 0: none now. Without `to` they are thrown away. Errors as Write's, and
  /// Unavailable: the peer has closed.
  absl::StatusOr<size_t> Read(void* to, size_t bytes);
  /// The next bytes that are sent carry `descriptor` with them (SCM_RIGHTS): unix sockets only. It stays the caller's.
  void Attach(int descriptor) { attached_ = descriptor; }
  /// From now on what a peer attached is kept, the first of it; the rest is closed. Unix sockets only.
  void KeepAttached() { keeps_ = true; }
  /// What the peer attached to bytes that have come, for the caller to close; -1: nothing.
  int TakeAttached() { return std::exchange(kept_, -1); }
  /// Sends on what was taken, and the handshake's words.
  absl::Status Flush();

  /// Something was taken and not sent yet: Flush when the socket is writable.
  bool unsent() const { return sent_ < wire_.size(); }
  /// Both ends believe each other; Write takes nothing before. (Read drives the handshake.)
  bool ready() const { return ready_; }
  /// Bytes have come that Read did not give out: no poll tells of them.
  bool holds() const { return given_ < plain_.size(); }
  bool is_tls() const { return session_ != nullptr; }
  /// What is sent is encrypted by the kernel (the context's): from the first byte of the caller's on, or never.
  bool in_kernel() const { return key_.has_value(); }

 private:
  absl::StatusOr<size_t> WritePlain(std::span<const iovec> pieces);
  absl::StatusOr<size_t> ReadPlain(void* to, size_t bytes);
  absl::StatusOr<size_t> WriteInKernel(std::span<const iovec> pieces);
  absl::Status Fetch();
  absl::Status Settle();
  void HandOver();
  absl::Status Refused(absl::Status why);

  const int socket_;
  const bool dials_;
  const std::shared_ptr<const Context> context_;
  const std::unique_ptr<Session> session_;  ///< null: plain text
  bool ready_;
  std::string wire_, plain_;  ///< to be sent, and read by nobody yet
  size_t sent_ = 0, given_ = 0;
  int attached_ = -1, kept_ = -1;
  bool keeps_ = false;
  bool handed_over_ = false;
  std::optional<WriteKey> key_;  ///< that the kernel writes under; none: session_ writes
  uint64_t under_key_ = 0;       ///< bytes that it wrote
};

/// "it speaks TLS, and this process plain text" where the first byte that came from a peer says so; else OK.
absl::Status CheckPlain(char first);

}  // namespace baton::tls
