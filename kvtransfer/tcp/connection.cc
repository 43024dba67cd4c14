#include "kvtransfer/tcp/connection.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "common/errno_text.h"
#include "common/net/address.h"
#include "common/net/keep_alive.h"
#include "common/net/socket_address.h"
#include "common/status.h"

namespace baton::tcp {
namespace {

constexpr size_t kPiece = 256 << 10;  ///< stored between two questions whether it still may be
constexpr uint64_t kMaxUnsentBytes = 64 << 20;
constexpr size_t kFramesAtOnce = 16;  ///< in one write
constexpr size_t kAhead = 4 << 10;    ///< read with a header: messages are small, and come several at once

absl::Status Broken(std::string_view what) { return absl::UnavailableError(StrCat(what, ": ", ErrnoText())); }

}  // namespace

void Seal(FrameHeader& header) { header.check = XXH3_64bits(&header, offsetof(FrameHeader, check)); }

bool Sealed(const FrameHeader& header) {
  return header.magic == kFrameMagic && header.check == XXH3_64bits(&header, offsetof(FrameHeader, check));
}

Connection::Connection(PeerNumber peer, int socket, bool connecting, std::unique_ptr<trust::Greeting> greeting,
                       std::shared_ptr<const tls::Context> tls)
    : peer_(peer), socket_(socket), connecting_(connecting), greeting_(std::move(greeting)), tls_(std::move(tls)) {
  const int on = 1;
  setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (greeting_ != nullptr) greeting_->Begin(words_);
}

Connection::~Connection() { close(socket_); }

void Connection::Queue(FrameHeader header, std::span<const std::byte> payload, Done done) {
  header.payload_bytes = payload.size();
  Seal(header);
  out_.push_back({header, {}, payload, 0, std::move(done), false});
}

void Connection::QueueOwned(FrameHeader header, std::string payload, Done done) {
  header.payload_bytes = payload.size();
  Seal(header);
  unsent_bytes_ += sizeof(header) + payload.size();
  Out& out = out_.emplace_back(Out{header, std::move(payload), {}, 0, std::move(done), true});
  out.payload = std::as_bytes(std::span(out.owned));
}

void Connection::FailAll(const absl::Status& why) {
  for (Out& out : std::exchange(out_, {})) {
    if (out.done) out.done(why);
  }
}

absl::Status Connection::Pump(Sink& sink, bool& moved) {
  if (connecting_) {
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(socket_, SOL_SOCKET, SO_ERROR, &error, &size);
    errno = error;
    if (error != 0) return Broken("connect");
    sockaddr_storage peer{};
    size = sizeof(peer);
    if (getpeername(socket_, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return absl::OkStatus();
    connecting_ = false;
  }
  BATON_RETURN_IF_ERROR(SendWords(moved));
  if (!proven()) {
    BATON_RETURN_IF_ERROR(PumpGreeting(moved));
    if (!proven()) return absl::OkStatus();
  }
  if (!stream_) {
    stream_.emplace(socket_, std::move(tls_));
    if (exchanges_) stream_->KeepAttached();
    stream_->Attach(given_);
  }
  BATON_RETURN_IF_ERROR(PumpOut(sink, moved));
  return PumpIn(sink, moved);
}

absl::Status Connection::SendWords(bool& moved) {
  while (!words_.empty()) {
    const ssize_t sent = send(socket_, words_.data(), words_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EAGAIN || errno == EINTR) return absl::OkStatus();
      return Broken("send");
    }
    moved = true;
    words_.erase(0, static_cast<size_t>(sent));
  }
  return absl::OkStatus();
}

/// Reads the greeting and not a byte behind it.
absl::Status Connection::PumpGreeting(bool& moved) {
  while (!proven()) {
    char bytes[trust::kMostGreetingBytes];
    const absl::StatusOr<size_t> got = tls::Stream(socket_).Read(bytes, std::min(sizeof(bytes), greeting_->missing()));
    if (!got.ok() && greeting_->answered())
      return absl::PermissionDeniedError("the peer left when it saw our proof: it has another cluster secret");
    BATON_RETURN_IF_ERROR(got.status());
    if (*got == 0) return absl::OkStatus();
    moved = true;
    std::string_view in(bytes, *got);
    BATON_RETURN_IF_ERROR(greeting_->Take(in, words_));
    BATON_RETURN_IF_ERROR(SendWords(moved));
  }
  return absl::OkStatus();
}

absl::Status Connection::PumpOut(Sink& sink, bool& moved) {
  if (!stream_) return absl::OkStatus();
  BATON_RETURN_IF_ERROR(stream_->Flush());
  if (words_.empty()) {
    const absl::Status sent = WriteQueued(moved);
    if (!sent.ok() && !heard_) BATON_RETURN_IF_ERROR(PumpIn(sink, moved));  // a peer that refuses us says why
    BATON_RETURN_IF_ERROR(sent);
  }
  if (unsent_bytes_ <= kMaxUnsentBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      StrCat("the peer does not read: ", unsent_bytes_, " bytes wait for it, at most ", kMaxUnsentBytes));
}

absl::Status Connection::WriteQueued(bool& moved) {
  while (!out_.empty()) {
    iovec pieces[2 * kFramesAtOnce];
    size_t count = 0;
    for (size_t i = 0; i < std::min(out_.size(), kFramesAtOnce); ++i) {
      Out& out = out_[i];
      const uint64_t head = std::min<uint64_t>(out.sent, sizeof(FrameHeader)), body = out.sent - head;
      if (head < sizeof(FrameHeader))
        pieces[count++] = {reinterpret_cast<char*>(&out.header) + head, sizeof(FrameHeader) - head};
      if (body < out.payload.size())
        pieces[count++] = {const_cast<std::byte*>(out.payload.data()) + body, out.payload.size() - body};
    }
    BATON_ASSIGN_OR_RETURN(const size_t sent, stream_->Write({pieces, count}));
    if (sent == 0) return absl::OkStatus();
    moved = true;
    Written(sent);
  }
  return absl::OkStatus();
}

/// So many bytes of what is queued have gone; a Done may queue more.
void Connection::Written(size_t bytes) {
  while (bytes > 0) {
    Out& out = out_.front();
    const uint64_t total = sizeof(FrameHeader) + out.payload.size(), part = std::min(bytes, total - out.sent);
    out.sent += part;
    bytes -= part;
    if (out.sent < total) return;
    Done done = std::move(out.done);
    if (out.owns) unsent_bytes_ -= total;
    out_.pop_front();
    if (done) done(absl::OkStatus());
  }
}

absl::Status Connection::PumpIn(Sink& sink, bool& moved) {
  for (int frames = 0; frames < 64;) {  // others want their turn
    if (payload_left() > 0) {
      bool again = true;
      BATON_RETURN_IF_ERROR(ReadPayload(sink, moved, again));
      if (payload_left() == 0) {
        BATON_RETURN_IF_ERROR(EndFrame(sink));
        ++frames;
      }
      if (!again) return absl::OkStatus();
      continue;
    }
    char ahead[kAhead];  // of a stranger no byte is taken behind his first header
    const size_t most = heard_ ? sizeof(ahead) : sizeof(FrameHeader) - header_bytes_;
    BATON_ASSIGN_OR_RETURN(const size_t got, stream_->Read(ahead, most));
    if (got == 0) return absl::OkStatus();
    if (header_bytes_ == 0 && !stream_->is_tls()) BATON_RETURN_IF_ERROR(tls::CheckPlain(ahead[0]));
    moved = true;
    BATON_RETURN_IF_ERROR(Take(sink, {ahead, got}, frames));
    if (got < most && !stream_->holds()) return absl::OkStatus();  // there was no more
  }
  return absl::OkStatus();
}

/// The next bytes of the stream, at most kAhead.
absl::Status Connection::Take(Sink& sink, std::string_view bytes, int& frames) {
  while (!bytes.empty()) {
    if (header_bytes_ < sizeof(FrameHeader)) {
      const size_t part = std::min(bytes.size(), sizeof(FrameHeader) - header_bytes_);
      std::memcpy(reinterpret_cast<char*>(&in_) + header_bytes_, bytes.data(), part);
      header_bytes_ += part;
      bytes.remove_prefix(part);
      if (header_bytes_ < sizeof(FrameHeader)) return absl::OkStatus();
      BATON_RETURN_IF_ERROR(EndHeader(sink));
    }
    if (const size_t part = std::min<uint64_t>(bytes.size(), payload_left()); part > 0) {
      if (std::byte* to = PayloadPlace(sink, part); to != nullptr) std::memcpy(to, bytes.data(), part);
      payload_bytes_ += part;
      bytes.remove_prefix(part);
    }
    if (payload_left() > 0) return absl::OkStatus();
    BATON_RETURN_IF_ERROR(EndFrame(sink));
    ++frames;
  }
  return absl::OkStatus();
}

absl::Status Connection::EndFrame(Sink& sink) {
  const FrameHeader header = in_;
  const std::string payload = std::exchange(in_payload_, {});
  header_bytes_ = 0;
  payload_bytes_ = 0;
  return header.kind == FrameKind::kWrite ? absl::OkStatus() : sink.OnFrame(*this, header, payload);
}

absl::Status Connection::EndHeader(Sink& sink) {
  if (!Sealed(in_)) return absl::DataLossError("a frame's header is damaged");
  heard_ = true;
  payload_bytes_ = 0;
  return sink.Admit(*this, in_);
}

/// Where the next `piece` bytes of the payload go; null: nowhere.
std::byte* Connection::PayloadPlace(Sink& sink, size_t piece) {
  if (in_.kind != FrameKind::kWrite) {
    in_payload_.resize(payload_bytes_ + piece);  // as it arrives: a header alone takes no memory
    return reinterpret_cast<std::byte*>(in_payload_.data()) + payload_bytes_;
  }
  std::byte* const slot = sink.PlaceFor(*this, in_);
  return slot == nullptr ? nullptr : slot + payload_bytes_;
}

absl::Status Connection::ReadPayload(Sink& sink, bool& moved, bool& again) {
  const size_t piece = std::min<uint64_t>(payload_left(), kPiece);
  BATON_ASSIGN_OR_RETURN(const size_t got, stream_->Read(PayloadPlace(sink, piece), piece));
  payload_bytes_ += got;
  moved |= got > 0;
  again = got > 0;
  return absl::OkStatus();
}

absl::StatusOr<int> Listen(const std::string& host, uint16_t port) {
  BATON_ASSIGN_OR_RETURN(const net::SocketAddress where, net::AddressToBind(host, port));
  return net::ListenAt(where, SOCK_NONBLOCK, 128);
}

std::string LocalAddress(int socket) { return net::SocketAddress::OfSocket(socket).text(); }

absl::StatusOr<int> Dial(const std::string& where) {
  BATON_ASSIGN_OR_RETURN(const net::HostPort place, net::ParseHostPort(where));
  BATON_ASSIGN_OR_RETURN(const net::SocketAddress address, net::SocketAddress::Of(place.host, place.port));
  const int socket = ::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket < 0) return Broken("socket");
  if (connect(socket, address.get(), address.bytes()) != 0 && errno != EINPROGRESS) {
    const absl::Status status = Broken(StrCat("connect to ", where));
    close(socket);
    return status;
  }
  return socket;
}

void NoticeVanishedHost(int socket, bool when_full) {
  net::KeepAlive(socket);
  const int patience_ms = 30000;
  if (when_full) setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &patience_ms, sizeof(patience_ms));
}

int Accept(int listener) { return accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); }

}  // namespace baton::tcp
