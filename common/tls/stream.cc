#include "common/tls/stream.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "common/errno_text.h"
#include "common/net/descriptor_passing.h"
#include "common/status.h"
#include "common/tls/context.h"
#include "common/tls/kernel_tls.h"

namespace baton::tls {
namespace {

constexpr size_t kMostAtOnce = 128 << 10;  ///< taken, or received, in one call
constexpr char kBelieved = '+';            ///< from who was dialled, when the handshake is done
/// What plain text hears from us: TLS's alert "protocol version", which no frame of ours begins like.
constexpr std::string_view kAlert("\x15\x03\x03\x00\x02\x02\x46", 7);

absl::Status Broken(std::string_view what) { return absl::UnavailableError(StrCat(what, ": ", ErrnoText())); }
absl::Status Closed() { return absl::UnavailableError("the peer closed the connection"); }
bool NotNow() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

absl::Status CheckPlain(char first) {
  if (!BeginsAsTls(static_cast<unsigned char>(first)) && first != kAlert[0]) return absl::OkStatus();
  return absl::UnauthenticatedError("the peer speaks TLS, this process plain text");
}

Stream::Stream(int socket, std::shared_ptr<const Context> context)
    : socket_(socket),
      dials_(context != nullptr && context->peer() == PeerRole::kServer),
      context_(std::move(context)),
      session_(context_ == nullptr ? nullptr : std::make_unique<Session>(context_)),
      ready_(session_ == nullptr) {}

Stream::~Stream() {
  if (kept_ >= 0) close(kept_);
}

absl::StatusOr<size_t> Stream::WritePlain(std::span<const iovec> pieces) {
  msghdr message{.msg_iov = const_cast<iovec*>(pieces.data()), .msg_iovlen = pieces.size()};
  PassedDescriptors beside;
  if (attached_ >= 0) beside.Carry(attached_, message);
  const ssize_t sent = sendmsg(socket_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent > 0) attached_ = -1;
  if (sent >= 0) return static_cast<size_t>(sent);
  if (NotNow()) return 0u;
  return Broken("send");
}

absl::StatusOr<size_t> Stream::ReadPlain(void* to, size_t bytes) {
  char nowhere[16 << 10];
  iovec piece{to != nullptr ? to : nowhere, to != nullptr ? bytes : std::min(bytes, sizeof nowhere)};
  msghdr message{.msg_iov = &piece, .msg_iovlen = 1};
  PassedDescriptors beside;
  if (keeps_) beside.Receive(message);
  const ssize_t got = recvmsg(socket_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got >= 0 && keeps_) PassedDescriptors::Keep(message, kept_);
  if (got > 0) return static_cast<size_t>(got);
  if (got == 0) return Closed();
  if (NotNow()) return 0u;
  return Broken("receive");
}

absl::StatusOr<size_t> Stream::Write(std::span<const iovec> pieces) {
  if (session_ == nullptr) return WritePlain(pieces);
  BATON_RETURN_IF_ERROR(Flush());
  if (!ready_ || unsent()) return 0u;
  if (key_) return WriteInKernel(pieces);
  size_t taken = 0;
  for (const iovec& piece : pieces) {
    const size_t part = std::min(piece.iov_len, kMostAtOnce - taken);
    if (part == 0) break;
    BATON_RETURN_IF_ERROR(session_->Write({static_cast<const char*>(piece.iov_base), part}));
    taken += part;
    if (part < piece.iov_len) break;
  }
  BATON_RETURN_IF_ERROR(Flush());
  return taken;
}

absl::StatusOr<size_t> Stream::WriteInKernel(std::span<const iovec> pieces) {
  KernelTls& kernel = *context_->kernel();
  if (under_key_ >= kernel.bytes_of_a_key()) {
    WriteKey next = key_->Next();
    BATON_ASSIGN_OR_RETURN(const bool renewed, kernel.Renew(socket_, next));
    if (!renewed) return 0u;
    key_ = std::move(next);
    under_key_ = 0;
  }
  BATON_ASSIGN_OR_RETURN(const size_t sent, kernel.Send(socket_, pieces));
  under_key_ += sent;
  return sent;
}

/// All that the session wrote is sent: the kernel takes over here, or never.
void Stream::HandOver() {
  if (!ready_ || std::exchange(handed_over_, true) || context_->kernel() == nullptr) return;
  std::optional<WriteKey> key = session_->GiveWriteKey();
  if (key && context_->kernel()->Take(socket_, *key).ok()) key_ = std::move(key);
}

absl::Status Stream::Flush() {
  if (session_ == nullptr || key_) return absl::OkStatus();  // what a session still says then is under a key of before
  for (;;) {
    if (!unsent()) {
      wire_.clear();
      session_->TakeWire(wire_);
      sent_ = 0;
      if (wire_.empty()) {
        HandOver();
        return absl::OkStatus();
      }
    }
    const iovec rest{wire_.data() + sent_, wire_.size() - sent_};
    BATON_ASSIGN_OR_RETURN(const size_t sent, WritePlain({&rest, 1}));
    if (sent == 0) return absl::OkStatus();
    sent_ += sent;
  }
}

/// The peer should hear it, and what it hears first may be all that it hears.
absl::Status Stream::Refused(absl::Status why) {
  Flush().IgnoreError();
  if (session_->refusal() == Refusal::kPlaintext) {
    const iovec alert{const_cast<char*>(kAlert.data()), kAlert.size()};
    WritePlain({&alert, 1}).IgnoreError();
  }
  return why;
}

absl::StatusOr<size_t> Stream::Read(void* to, size_t bytes) {
  if (session_ == nullptr) return ReadPlain(to, bytes);
  if (!holds()) BATON_RETURN_IF_ERROR(Fetch());
  const size_t part = std::min(bytes, plain_.size() - given_);
  if (to != nullptr) std::memcpy(to, plain_.data() + given_, part);
  given_ += part;
  return part;
}

absl::Status Stream::Fetch() {
  thread_local std::string wire(kMostAtOnce, '\0');
  const absl::StatusOr<size_t> got = ReadPlain(wire.data(), wire.size());
  BATON_RETURN_IF_ERROR(got.status());
  if (*got == 0) return Flush();
  if (absl::Status fed = session_->Feed(std::string_view(wire).substr(0, *got)); !fed.ok()) return Refused(fed);
  plain_ = session_->TakePlain();
  given_ = 0;
  BATON_RETURN_IF_ERROR(Settle());
  if (session_->peer_closed() && !holds()) return Closed();
  return Flush();
}

/// The handshake is done on our side: what makes both sides sure.
absl::Status Stream::Settle() {
  if (ready_ || !session_->established()) return absl::OkStatus();
  if (!dials_) {
    ready_ = true;
    return session_->Write({&kBelieved, 1});
  }
  if (!holds()) return absl::OkStatus();
  if (plain_[given_++] != kBelieved) return absl::InvalidArgumentError("the peer speaks TLS, but not as Baton does");
  ready_ = true;
  return absl::OkStatus();
}

}  // namespace baton::tls
