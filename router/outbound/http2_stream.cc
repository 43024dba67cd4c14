#include "router/outbound/http2_stream.h"

#include <array>
#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <cstring>
#include <span>
#include <utility>

#include "common/status.h"
#include "common/str_cat.h"
#include "common/tls/context.h"
#include "router/asio_event_loop.h"

namespace baton::router {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr size_t kReadBytes = 64 << 10, kWriteBytes = 256 << 10;

tcp::endpoint EndpointOf(const net::SocketAddress& where) {
  tcp::endpoint out;
  out.resize(where.bytes());
  std::memcpy(out.data(), where.get(), where.bytes());
  return out;
}

class AsioStream final : public Http2Stream, public std::enable_shared_from_this<AsioStream> {
 public:
  AsioStream(EventLoop& loop, Options options, Handlers handlers)
      : loop_(loop),
        options_(std::move(options)),
        handlers_(std::move(handlers)),
        call_(HeadOf(options_), options_.most_message_bytes,
              [this](std::string_view message) { return handlers_.on_message(message); }),
        socket_(AsioContext(loop)) {}

  void Start() {
    loop_.Post([self = shared_from_this()] { self->Connect(); });
  }
  void Wake() override {
    if (woken_.exchange(true)) return;
    loop_.Post([self = shared_from_this()] {
      self->woken_ = false;
      self->Push();
    });
  }
  void Cancel() override {
    loop_.Post([self = shared_from_this()] {
      self->call_.Cancel();
      self->Push();
    });
  }

 private:
  static Http2Call::Head HeadOf(const Options& options) {
    Http2Call::Head head = options.head;
    head.scheme = options.tls ? "https" : "http";
    return head;
  }

  void Connect();
  void Connected();
  void Arm(Duration wait, void (AsioStream::*then)());
  void TooLate();
  void Listen();
  void GiveUp();
  void Read();
  absl::Status Took(std::string_view bytes);
  absl::Status Handshaken();
  std::string_view WhyGone() const;
  void Push();
  void Seal();
  size_t WriteSome(error_code& error);
  bool Flush();
  void Fail(std::string_view what, std::string_view why);
  void Close();

  // ---- of the loop
  EventLoop& loop_;
  const Options options_;
  Handlers handlers_;
  Http2Call call_;
  tcp::socket socket_;
  std::unique_ptr<EventLoopTimer> timer_;
  std::unique_ptr<tls::Session> session_;  // null: plain text
  bool ready_ = false;                     // connected, and the peer is believed
  bool answered_ = false;                  // something came after that
  bool closed_ = false;
  bool waits_ = false;           // until the socket takes bytes
  TimePoint heard_{}, asked_{};  // a sign of life, for one
  std::string plain_;            // of call_, for TLS; kept for its memory
  absl::Cord out_;               // for the socket
  std::unique_ptr<char[]> in_ = std::make_unique_for_overwrite<char[]>(kReadBytes);

  std::atomic<bool> woken_ = false;
};

void AsioStream::Connect() {
  if (closed_) return;
  timer_ = loop_.MakeTimer();
  Arm(options_.connect, &AsioStream::TooLate);
  error_code error;
  const tcp::endpoint where = EndpointOf(options_.where);
  socket_.open(where.protocol(), error);
  if (error) return Fail("a socket", error.message());
  socket_.set_option(tcp::no_delay(true), error);
  socket_.non_blocking(true, error);
  socket_.async_connect(where, [self = shared_from_this()](error_code failed) {
    if (self->closed_) return;
    failed ? self->Fail("connecting", failed.message()) : self->Connected();
  });
}

void AsioStream::Connected() {
  heard_ = SteadyClock().Now();
  if (options_.tls) {
    auto context = options_.tls();
    if (!context.ok()) return Fail("TLS", std::string(context.status().message()));
    session_ = std::make_unique<tls::Session>(*std::move(context));
    out_ = absl::Cord(session_->TakeWire());
  } else {
    ready_ = true;
    Listen();
  }
  Push();
  if (!closed_) Read();
}

// ---- time

void AsioStream::Arm(Duration wait, void (AsioStream::*then)()) {
  timer_->ArmAt(SteadyClock().Now() + wait, [weak = weak_from_this(), then] {
    if (const auto self = weak.lock()) (self.get()->*then)();
  });
}

void AsioStream::TooLate() { Fail("connecting", StrCat("not done after ", Seconds(options_.connect), " s")); }

/// Until nothing has come for so long.
void AsioStream::Listen() {
  const Duration quiet = SteadyClock().Now() - heard_;
  if (quiet < options_.silence) return Arm(options_.silence - quiet, &AsioStream::Listen);
  call_.Ping();
  asked_ = SteadyClock().Now();
  Arm(options_.answer, &AsioStream::GiveUp);
  Push();
}

void AsioStream::GiveUp() {
  error_code error;
  if (heard_ >= asked_ || socket_.available(error) > 0) return Listen();  // it may have been us who slept
  Fail("the connection", StrCat("nothing came for ", Seconds(SteadyClock().Now() - heard_), " s"));
}

// ---- bytes that come

void AsioStream::Read() {
  socket_.async_read_some(asio::buffer(in_.get(), kReadBytes), [self = shared_from_this()](error_code error, size_t n) {
    if (self->closed_) return;
    if (error) return self->Fail("the connection", StrCat(self->WhyGone(), error.message()));
    self->heard_ = SteadyClock().Now();
    if (const absl::Status took = self->Took({self->in_.get(), n}); !took.ok()) {
      self->Flush();  // an alert
      return self->Fail("TLS", std::string(took.message()));
    }
    self->Push();
    if (!self->closed_) self->Read();
  });
}

/// What is likely where a connection ends before its first word.
std::string_view AsioStream::WhyGone() const {
  if (answered_) return "";
  return session_ ? "it was closed; the worker's log says whether it refused our certificate; "
                  : "it was closed; does that port speak TLS (--tls-cert, --tls-key, --tls-ca)? ";
}

/// Not OK: TLS is over.
absl::Status AsioStream::Took(std::string_view bytes) {
  answered_ = answered_ || ready_;
  if (!session_) {
    call_.Feed(bytes);
    return absl::OkStatus();
  }
  const absl::Status fed = session_->Feed(bytes);
  out_.Append(session_->TakeWire());
  if (fed.ok() && !ready_ && session_->established()) BATON_RETURN_IF_ERROR(Handshaken());
  if (const std::string plain = session_->TakePlain(); ready_ && !plain.empty()) call_.Feed(plain);
  if (fed.ok() && session_->peer_closed()) call_.Lost("the worker closed the connection");
  return fed;
}

absl::Status AsioStream::Handshaken() {
  if (session_->alpn() != "h2")
    return absl::UnavailableError(StrCat("the peer speaks \"", session_->alpn(), "\" over TLS, not h2"));
  ready_ = true;
  Listen();
  return absl::OkStatus();
}

// ---- bytes that go

/// Sends what there is, as far as the socket takes it, and closes when the call is over.
void AsioStream::Push() {
  while (!closed_) {
    if (!Flush()) {
      if (call_.over()) Close();  // what waits for the socket then is nobody's
      return;
    }
    if (ready_) {
      if (!call_.over() && !call_.unsent()) {
        if (absl::Cord message = handlers_.next(); !message.empty()) call_.Send(std::move(message));
      }
      call_.TakeOutput(out_, kWriteBytes);
      if (session_) Seal();
    }
    if (!out_.empty()) continue;
    if (call_.over()) Close();
    return;
  }
}

/// out_ in TLS.
void AsioStream::Seal() {
  if (out_.empty()) return;
  absl::CopyCordToString(out_, &plain_);
  if (const absl::Status taken = session_->Write(plain_); !taken.ok()) call_.Lost(View(taken.message()));
  out_ = absl::Cord(session_->TakeWire());
}

/// One write of what there is, in the pieces that it is held in.
size_t AsioStream::WriteSome(error_code& error) {
  constexpr size_t kMostPieces = 64;  // that Asio hands on at once
  std::array<asio::const_buffer, kMostPieces> pieces;
  size_t count = 0;
  for (const absl::string_view piece : out_.Chunks()) {
    pieces[count++] = asio::buffer(piece.data(), piece.size());
    if (count == pieces.size()) break;
  }
  return socket_.write_some(std::span(pieces).first(count), error);
}

/// False: the socket takes no more now, or the stream has ended.
bool AsioStream::Flush() {
  if (closed_ || waits_) return false;
  while (!out_.empty()) {
    error_code error;
    out_.RemovePrefix(WriteSome(error));
    if (error == asio::error::would_block || error == asio::error::try_again) {
      waits_ = true;
      socket_.async_wait(tcp::socket::wait_write, [self = shared_from_this()](error_code) {
        self->waits_ = false;
        self->Push();
      });
      return false;
    }
    if (error) {
      call_.Lost(StrCat("the connection: ", error.message()));
      return false;
    }
  }
  return true;
}

// ---- the end

void AsioStream::Fail(std::string_view what, std::string_view why) {
  call_.Lost(StrCat(what, ": ", why));
  Close();
}

void AsioStream::Close() {
  if (std::exchange(closed_, true)) return;
  timer_.reset();
  error_code error;
  if (session_ && ready_ && out_.empty()) {
    session_->Close();
    const std::string bye = session_->TakeWire();
    socket_.write_some(asio::buffer(bye), error);
  }
  socket_.close(error);
  const Handlers handlers = std::exchange(handlers_, {});
  handlers.on_closed(call_.status());
}

}  // namespace

std::shared_ptr<Http2Stream> OpenHttp2Stream(EventLoop& loop, Http2Stream::Options options,
                                             Http2Stream::Handlers handlers) {
  auto stream = std::make_shared<AsioStream>(loop, std::move(options), std::move(handlers));
  stream->Start();
  return stream;
}

}  // namespace baton::router
