#include "router/outbound/http2_call.h"

#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "common/check.h"
#include "common/foreign_text.h"
#include "common/str_cat.h"
#include "router/percent_text.h"

namespace baton::router {
namespace {

constexpr size_t kPrefixBytes = 5;  ///< of a message: a flag, and its length in four bytes
constexpr int32_t kStreamWindow = 4 << 20, kConnectionWindow = 8 << 20;
constexpr size_t kMostHeadBytes = 64 << 10;  ///< of everything that an answer says beside its messages
constexpr size_t kMostReset = 300, kMostKept = 1 << 20;
constexpr uint32_t kMostFrameBytes = 256 << 10;  ///< of DATA, where the server takes such frames

std::string_view TextOf(const uint8_t* bytes, size_t size) { return {reinterpret_cast<const char*>(bytes), size}; }

nghttp2_nv Field(std::string_view name, std::string_view value) {
  const auto bytes = [](std::string_view text) {
    return const_cast<uint8_t*>(reinterpret_cast<const uint8_t*>(text.data()));
  };
  return {bytes(name), bytes(value), name.size(), value.size(), NGHTTP2_NV_FLAG_NONE};
}

/// What a stream that was reset means, as gRPC has it.
absl::Status OfReset(uint32_t code, const std::string& fault) {
  const std::string text =
      StrCat("the worker reset the stream with ", nghttp2_http2_strerror(code), fault.empty() ? "" : ": ", fault);
  switch (code) {
    case NGHTTP2_CANCEL: return absl::CancelledError(text);
    case NGHTTP2_REFUSED_STREAM: return absl::UnavailableError(text);
    case NGHTTP2_ENHANCE_YOUR_CALM: return absl::ResourceExhaustedError(text);
    case NGHTTP2_INADEQUATE_SECURITY: return absl::PermissionDeniedError(text);
    default: return absl::InternalError(text);
  }
}

/// What an answer without a gRPC status means, as gRPC has it.
absl::Status OfHttp(int http_status) {
  const std::string text = StrCat("the answer has HTTP status ", http_status, " and no gRPC status");
  switch (http_status) {
    case 400: return absl::InternalError(text);
    case 401: return absl::UnauthenticatedError(text);
    case 403: return absl::PermissionDeniedError(text);
    case 404: return absl::UnimplementedError(text);
    case 429:
    case 502:
    case 503:
    case 504: return absl::UnavailableError(text);
    default: return absl::UnknownError(text);
  }
}

std::optional<int> Number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

}  // namespace

// nghttp2's words, for the call that is its user data.
struct Http2Callbacks {
  static Http2Call& Of(void* user) { return *static_cast<Http2Call*>(user); }

  static int OnHeader(nghttp2_session*, const nghttp2_frame*, const uint8_t* name, size_t name_bytes,
                      const uint8_t* value, size_t value_bytes, uint8_t, void* user) {
    Of(user).TakeHead(TextOf(name, name_bytes), TextOf(value, value_bytes));
    return 0;
  }
  static int OnFrame(nghttp2_session*, const nghttp2_frame* frame, void* user) {
    if (frame->hd.type == NGHTTP2_GOAWAY) {
      const nghttp2_goaway& bye = frame->goaway;
      Of(user).fault_ = StrCat("the worker closes the connection with ", nghttp2_http2_strerror(bye.error_code),
                               bye.opaque_data_len > 0 ? ": " : "",
                               Printable(TextOf(bye.opaque_data, bye.opaque_data_len), kMostReset));
    } else if (frame->hd.stream_id == Of(user).stream_) {
      Of(user).TakeFrame(frame->hd.type, frame->hd.flags);
    }
    return 0;
  }
  static int OnData(nghttp2_session*, uint8_t, int32_t, const uint8_t* bytes, size_t size, void* user) {
    Of(user).TakeData(TextOf(bytes, size));
    return 0;
  }
  static int OnClose(nghttp2_session*, int32_t, uint32_t code, void* user) {
    Of(user).End(OfReset(code, Of(user).fault_));
    return 0;
  }
  static int OnFault(nghttp2_session*, int, const char* text, size_t size, void* user) {
    if (Of(user).fault_.empty()) Of(user).fault_ = Printable({text, size}, kMostReset);
    return 0;
  }
  /// nghttp2's own limit is 16 KiB, whatever the server takes.
  static ssize_t LongestFrame(nghttp2_session*, uint8_t, int32_t, int32_t, int32_t, uint32_t servers_most, void*) {
    return std::min(servers_most, kMostFrameBytes);
  }
  static ssize_t Ask(nghttp2_session*, int32_t, uint8_t*, size_t most, uint32_t* flags, nghttp2_data_source*,
                     void* user) {
    const size_t bytes = std::min(most, Of(user).unsent_.size());
    if (bytes == 0) return NGHTTP2_ERR_DEFERRED;
    *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
    return static_cast<ssize_t>(bytes);
  }
  static int Give(nghttp2_session*, nghttp2_frame*, const uint8_t* head, size_t bytes, nghttp2_data_source*,
                  void* user) {
    constexpr size_t kFrameHeadBytes = 9;
    absl::Cord &out = *Of(user).out_, &unsent = Of(user).unsent_;
    out.Append(AbslView(TextOf(head, kFrameHeadBytes)));
    out.Append(unsent.Subcord(0, bytes));
    unsent.RemovePrefix(bytes);
    return 0;
  }

  static nghttp2_session* NewSession(Http2Call* call) {
    static const nghttp2_session_callbacks* const callbacks = [] {  // of the process; never freed
      nghttp2_session_callbacks* made = nullptr;
      BATON_CHECK(nghttp2_session_callbacks_new(&made) == 0);
      nghttp2_session_callbacks_set_on_header_callback(made, OnHeader);
      nghttp2_session_callbacks_set_on_frame_recv_callback(made, OnFrame);
      nghttp2_session_callbacks_set_on_data_chunk_recv_callback(made, OnData);
      nghttp2_session_callbacks_set_on_stream_close_callback(made, OnClose);
      nghttp2_session_callbacks_set_error_callback2(made, OnFault);
      nghttp2_session_callbacks_set_data_source_read_length_callback(made, LongestFrame);
      nghttp2_session_callbacks_set_send_data_callback(made, Give);
      return made;
    }();
    nghttp2_session* session = nullptr;
    BATON_CHECK(nghttp2_session_client_new(&session, callbacks, call) == 0);
    return session;
  }
};

Http2Call::Http2Call(const Head& head, size_t most_message_bytes, OnMessage on_message)
    : most_message_bytes_(most_message_bytes),
      on_message_(std::move(on_message)),
      session_(Http2Callbacks::NewSession(this)) {
  const std::array<nghttp2_settings_entry, 3> settings{
      {{NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
       {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, kStreamWindow},
       {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, static_cast<uint32_t>(kMostHeadBytes)}}};
  BATON_CHECK(nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings.data(), settings.size()) == 0);
  BATON_CHECK(nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0, kConnectionWindow) == 0);
  std::vector<nghttp2_nv> fields{
      Field(":method", "POST"),    Field(":scheme", head.scheme), Field(":authority", head.authority),
      Field(":path", head.path),   Field("te", "trailers"),       Field("content-type", "application/grpc"),
      Field("user-agent", "baton")};
  for (const auto& [name, value] : head.metadata) fields.push_back(Field(name, value));
  nghttp2_data_provider messages{};
  messages.read_callback = Http2Callbacks::Ask;
  stream_ = nghttp2_submit_request(session_, nullptr, fields.data(), fields.size(), &messages, nullptr);
  BATON_CHECK(stream_ > 0);
}

Http2Call::~Http2Call() { nghttp2_session_del(session_); }

void Http2Call::Feed(std::string_view bytes) {
  if (over()) return;
  const ssize_t taken =
      nghttp2_session_mem_recv(session_, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  if (taken < 0) Lost(StrCat("it does not speak HTTP/2: ", nghttp2_strerror(static_cast<int>(taken))));
  CheckAlive();
}

void Http2Call::Send(absl::Cord message) {
  if (over()) return;
  const size_t bytes = message.size();
  BATON_CHECK(bytes <= UINT32_MAX, "a message of ", bytes, " bytes; its length has four bytes");
  std::array<char, kPrefixBytes> prefix{};
  for (size_t i = 1; i < kPrefixBytes; ++i) prefix[i] = static_cast<char>(bytes >> (8 * (kPrefixBytes - 1 - i)) & 0xff);
  unsent_.Append(AbslView({prefix.data(), prefix.size()}));
  unsent_.Append(std::move(message));
  nghttp2_session_resume_data(session_, stream_);  // an error means that it was not asked for data yet
}

void Http2Call::Ping() {
  if (!over()) BATON_CHECK(nghttp2_submit_ping(session_, NGHTTP2_FLAG_NONE, nullptr) == 0);
}

void Http2Call::Cancel() { End(absl::CancelledError("cancelled here")); }

void Http2Call::Lost(std::string_view why) {
  End(absl::UnavailableError(StrCat(why, fault_.empty() ? "" : ": ", fault_)));
}

void Http2Call::TakeOutput(absl::Cord& out, size_t most) {
  out_ = &out;
  const size_t enough = out.size() + most;
  while (out.size() < enough) {
    const uint8_t* bytes = nullptr;
    const size_t before = out.size();
    const ssize_t size = nghttp2_session_mem_send(session_, &bytes);
    if (size < 0) Lost(StrCat("HTTP/2: ", nghttp2_strerror(static_cast<int>(size))));
    if (size > 0) out.Append(AbslView(TextOf(bytes, static_cast<size_t>(size))));
    if (size < 0 || out.size() == before) break;
  }
  out_ = nullptr;
  CheckAlive();
}

/// The server made an error of HTTP/2, which it was told.
void Http2Call::CheckAlive() {
  if (over() || nghttp2_session_want_read(session_) != 0 || nghttp2_session_want_write(session_) != 0) return;
  Lost("the HTTP/2 connection is broken");
}

void Http2Call::End(absl::Status status) {
  if (over()) return;
  status_ = std::move(status);
  unsent_.Clear();
  partial_.clear();
  nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, stream_, NGHTTP2_CANCEL);
}

// ---- called by nghttp2, inside Feed and TakeOutput

void Http2Call::TakeHead(std::string_view name, std::string_view value) {
  head_bytes_ += name.size() + value.size();
  if (head_bytes_ > kMostHeadBytes) {
    return End(absl::ResourceExhaustedError(
        StrCat("the answer has ", head_bytes_, " bytes of headers and trailers; the limit is ", kMostHeadBytes)));
  }
  if (name == ":status") http_status_ = Number(value).value_or(0);
  if (name == "content-type") is_grpc_ = value.starts_with("application/grpc");
  if (name == "grpc-status") grpc_status_ = Number(value).value_or(-1);
  if (name == "grpc-message") grpc_message_ = FromPercent(value);
}

void Http2Call::TakeFrame(uint8_t type, uint8_t flags) {
  if (over() || (type != NGHTTP2_HEADERS && type != NGHTTP2_DATA)) return;
  if ((flags & NGHTTP2_FLAG_END_STREAM) != 0) return EndOfAnswer();
  if (type != NGHTTP2_HEADERS || http_status_ < 200) return;  // 1xx: the answer itself comes later
  if (http_status_ != 200) return End(OfHttp(http_status_));
  if (!is_grpc_) End(absl::UnknownError("the answer is not of gRPC: its content-type is another one"));
}

void Http2Call::EndOfAnswer() {
  if (!grpc_status_) return End(OfHttp(http_status_));
  constexpr int kMostStatus = 16;
  const bool known = *grpc_status_ >= 0 && *grpc_status_ <= kMostStatus;
  if (*grpc_status_ == 0 && !partial_.empty())
    return End(absl::InternalError(StrCat("the answer ended inside a message, after ", partial_.size(), " bytes")));
  End(absl::Status(known ? static_cast<absl::StatusCode>(*grpc_status_) : absl::StatusCode::kUnknown, grpc_message_));
}

/// Of a message of which a beginning has come: its bytes with the prefix, or those of the prefix while that is not
/// whole. Ends the call where the message cannot be taken.
size_t Http2Call::WholeBytes(std::string_view begun) {
  if (begun.size() < kPrefixBytes) return kPrefixBytes;
  size_t bytes = 0;
  for (size_t i = 1; i < kPrefixBytes; ++i) bytes = bytes << 8 | static_cast<uint8_t>(begun[i]);
  if (begun[0] != 0)
    End(absl::InternalError(StrCat("a message has the flags ", static_cast<int>(static_cast<uint8_t>(begun[0])),
                                   "; no compression was agreed on")));
  else if (bytes > most_message_bytes_)
    End(absl::ResourceExhaustedError(
        StrCat("a message of ", bytes, " bytes came; the limit is ", most_message_bytes_)));
  return kPrefixBytes + bytes;
}

void Http2Call::TakeData(std::string_view bytes) {
  while (!over() && !bytes.empty()) {
    if (partial_.empty() && bytes.size() >= kPrefixBytes) {
      const size_t whole = WholeBytes(bytes);
      if (over()) return;
      if (bytes.size() >= whole) {  // the usual case: without a copy
        Deliver(bytes.substr(0, whole));
        bytes.remove_prefix(whole);
        continue;
      }
    }
    const size_t part = std::min(WholeBytes(partial_) - partial_.size(), bytes.size());
    partial_.append(bytes.substr(0, part));
    bytes.remove_prefix(part);
    if (partial_.size() < kPrefixBytes || partial_.size() < WholeBytes(partial_) || over()) continue;
    Deliver(partial_);
    if (partial_.capacity() > kMostKept) partial_ = std::string();
    partial_.clear();
  }
}

void Http2Call::Deliver(std::string_view framed) {
  if (absl::Status taken = on_message_(framed.substr(kPrefixBytes)); !taken.ok()) End(std::move(taken));
}

}  // namespace baton::router
