#include "common/tls/context.h"

#include <openssl/err.h>

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/status.h"
#include "common/tls/traffic_secret.h"

namespace baton::tls {
namespace {

constexpr size_t kMostUnsentBytes = 1 << 20;  // written before the handshake is done
constexpr size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;

std::string OnWire(const std::vector<std::string>& protocols) {
  std::string out;
  for (const std::string& one : protocols) {
    BATON_CHECK(!one.empty() && one.size() < 256);
    out += static_cast<char>(one.size());
    out += one;
  }
  return out;
}

int ChooseAlpn(SSL*, const unsigned char** out, unsigned char* out_bytes, const unsigned char* offered,
               unsigned int offered_bytes, void* arg) {
  const std::string& ours = static_cast<const Context*>(arg)->alpn();
  unsigned char* chosen = nullptr;
  const int how = SSL_select_next_proto(&chosen, out_bytes, reinterpret_cast<const unsigned char*>(ours.data()),
                                        static_cast<unsigned>(ours.size()), offered, offered_bytes);
  *out = chosen;
  return how == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

// The alert that the peer is told.
int AlertOf(Refusal refusal) {
  switch (refusal) {
    case Refusal::kExpired:
    case Refusal::kNotYetValid: return X509_V_ERR_CERT_HAS_EXPIRED;
    case Refusal::kUnknownAuthority: return X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY;
    case Refusal::kWrongName: return X509_V_ERR_HOSTNAME_MISMATCH;
    default: return X509_V_ERR_CERT_REJECTED;
  }
}

int AppendToText(BIO* bio, const char* bytes, int count) {
  if (auto* text = static_cast<std::string*>(BIO_get_data(bio))) text->append(bytes, static_cast<size_t>(count));
  return count;
}

long AnswerFlush(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

/// A BIO whose bytes go to the end of `text`, which outlives it; nowhere, once it has none.
BIO* BioInto(std::string& text) {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "text");
    BATON_CHECK(made != nullptr && BIO_meth_set_write(made, AppendToText) == 1 &&
                BIO_meth_set_ctrl(made, AnswerFlush) == 1);
    return made;
  }();
  BIO* out = BIO_new(method);
  BATON_CHECK(out != nullptr);
  BIO_set_data(out, &text);
  BIO_set_init(out, 1);
  return out;
}

// What OpenSSL says. An alert that came is the peer's word.
std::string WhyBroken() {
  const bool theirs = ERR_GET_REASON(ERR_peek_error()) >= SSL_AD_REASON_OFFSET;
  return StrCat(theirs ? "the peer refuses our certificate or handshake: " : "", OpenSslError());
}

}  // namespace

// Called by OpenSSL with what the peer sent.
int CheckChain(X509_STORE_CTX* chain, void* context) {
  const Context& ours = *static_cast<const Context*>(context);
  const PeerCheck check = CheckPeer(X509_STORE_CTX_get0_cert(chain), X509_STORE_CTX_get0_untrusted(chain),
                                    ours.identity(), ours.names(), ours.peer(), WallSeconds());
  if (!check.refusal) return 1;
  auto* ssl = static_cast<SSL*>(X509_STORE_CTX_get_ex_data(chain, SSL_get_ex_data_X509_STORE_CTX_idx()));
  if (auto* session = static_cast<Session*>(SSL_get_app_data(ssl))) {
    session->refusal_ = check.refusal;
    session->peer_fault_ = check.message;
  }
  X509_STORE_CTX_set_error(chain, AlertOf(*check.refusal));
  return 0;
}

// Called by OpenSSL with what it reads and writes beside text, in the clear, and with the head of each record. Once
// another writes its records, an alert, or a new key that the peer has asked for, is sealed here.
void HearWritten(int written, int /*version*/, int kind, const void* said, size_t bytes, SSL*, void* to) {
  if (written == 0) return;
  auto& session = *static_cast<Session*>(to);
  const std::string_view message(static_cast<const char*>(said), bytes);
  if (!session.writer_) return session.openssl_.Wrote(kind, message);
  if (kind != SSL3_RT_ALERT && kind != SSL3_RT_HANDSHAKE) return;
  session.writer_->Seal(static_cast<RecordWriter::Content>(kind), message, session.wire_);
  if (kind == SSL3_RT_HANDSHAKE && message[0] == SSL3_MT_KEY_UPDATE) session.writer_->TakeNextKey();
}

// Called by OpenSSL whenever its handshake moves or an alert goes.
void CountTurn(const SSL* ssl, int /*where*/, int /*value*/) {
  auto* session = static_cast<Session*>(SSL_get_app_data(ssl));
  if (session != nullptr && session->reads_) ++session->turns_;
}

Context::Context(std::shared_ptr<const Identity> identity, PeerRole peer)
    : identity_(std::move(identity)), peer_(peer), context_(ContextWithSecrets()) {
  BATON_CHECK(context_ != nullptr);
  SSL_CTX_set_min_proto_version(get(), TLS1_2_VERSION);
  SSL_CTX_set_cipher_list(get(), "ECDHE+AESGCM:ECDHE+CHACHA20");
  SSL_CTX_set_options(
      get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_NO_TICKET | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_num_tickets(get(), 0);
  SSL_CTX_set_session_cache_mode(get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_info_callback(get(), CountTurn);
  SSL_CTX_set_mode(get(),
                   SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
}

absl::Status Context::Use() {
  if (identity_->has_certificate()) {
    bool used =
        SSL_CTX_use_certificate(get(), identity_->leaf()) == 1 && SSL_CTX_use_PrivateKey(get(), identity_->key()) == 1;
    for (const CertificatePtr& one : identity_->chain()) used = used && SSL_CTX_add1_chain_cert(get(), one.get()) == 1;
    if (!used) return absl::FailedPreconditionError(StrCat(identity_->files().cert, ": ", OpenSslError()));
  }
  if (identity_->has_authority()) SSL_CTX_set_cert_verify_callback(get(), CheckChain, this);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Context>> Context::ForServer(std::shared_ptr<const Identity> identity,
                                                                  ServerWish wish) {
  if (!identity->has_certificate()) return absl::FailedPreconditionError("a TLS port needs --tls-cert and --tls-key");
  if (wish.ask_client && !identity->has_authority())
    return absl::FailedPreconditionError("a TLS port for our own processes needs --tls-ca");
  std::shared_ptr<Context> context(new Context(std::move(identity), PeerRole::kClient));
  BATON_RETURN_IF_ERROR(context->Use());
  if (wish.ask_client) SSL_CTX_set_verify(context->get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  context->alpn_ = OnWire(wish.alpn);
  if (!wish.alpn.empty()) SSL_CTX_set_alpn_select_cb(context->get(), ChooseAlpn, context.get());
  context->kernel_ = std::move(wish.kernel);
  return std::shared_ptr<const Context>(std::move(context));
}

absl::StatusOr<std::shared_ptr<const Context>> Context::ForClient(std::shared_ptr<const Identity> identity,
                                                                  ClientWish wish) {
  if (!identity->has_authority()) return absl::FailedPreconditionError("dialling a TLS port needs --tls-ca");
  std::shared_ptr<Context> context(new Context(std::move(identity), PeerRole::kServer));
  BATON_RETURN_IF_ERROR(context->Use());
  SSL_CTX_set_verify(context->get(), SSL_VERIFY_PEER, nullptr);
  context->alpn_ = OnWire(wish.alpn);
  if (!wish.alpn.empty()) {
    SSL_CTX_set_alpn_protos(context->get(), reinterpret_cast<const unsigned char*>(context->alpn_.data()),
                            static_cast<unsigned>(context->alpn_.size()));
  }
  context->kernel_ = std::move(wish.kernel);
  context->client_ = std::move(wish);
  return std::shared_ptr<const Context>(std::move(context));
}

Session::Session(std::shared_ptr<const Context> context, uint64_t bytes_of_a_key)
    : context_(std::move(context)),
      ssl_(SSL_new(context_->get())),
      in_(BIO_new(BIO_s_mem())),
      out_(BioInto(wire_)),
      bytes_of_a_key_(bytes_of_a_key) {
  BATON_CHECK(ssl_ && in_ != nullptr);
  SSL_set_bio(ssl_.get(), in_, out_);
  SSL_set_app_data(ssl_.get(), this);
  SSL_set_msg_callback(ssl_.get(), HearWritten);
  SSL_set_msg_callback_arg(ssl_.get(), this);
  if (context_->peer() == PeerRole::kClient) {
    SSL_set_accept_state(ssl_.get());
    return;
  }
  SSL_set_connect_state(ssl_.get());
  if (!context_->sni().empty()) SSL_set_tlsext_host_name(ssl_.get(), context_->sni().c_str());
  Go().IgnoreError();  // the first message; nothing can be refused yet
}

Session::~Session() = default;

absl::Status Session::Fail(Refusal refusal, std::string message) {
  if (!refusal_) refusal_ = refusal;
  return absl::UnauthenticatedError(message);
}

int Session::Shake() {
  const auto hears = [](void* session, std::string_view secret) {
    static_cast<Session*>(session)->openssl_.Begin(secret);
  };
  const auto end = context_->peer() == PeerRole::kClient ? SecretHeard::End::kServer : SecretHeard::End::kClient;
  const SecretHeard heard(end, hears, this);
  return SSL_do_handshake(ssl_.get());
}

// The handshake as far as it goes, then what was held back, then what has come.
absl::Status Session::Go() {
  ERR_clear_error();
  if (!established_) {
    const int done = Shake();
    const int why = SSL_get_error(ssl_.get(), done);
    if (done != 1 && why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE) {
      if (!peer_fault_.empty()) return Fail(*refusal_, peer_fault_);
      const unsigned long code = ERR_peek_error();
      const bool none = ERR_GET_REASON(code) == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE;
      return Fail(none ? Refusal::kNoCertificate : Refusal::kHandshake,
                  StrCat("the TLS handshake failed: ", WhyBroken()));
    }
    if (done != 1) return absl::OkStatus();
    established_ = true;
  }
  if (!unsent_.empty()) {
    const std::string now = std::exchange(unsent_, "");
    BATON_RETURN_IF_ERROR(Write(now));
  }
  char piece[16 << 10];
  for (;;) {
    reads_ = true;
    const int bytes = SSL_read(ssl_.get(), piece, sizeof piece);
    reads_ = false;
    if (turns_ > kMostTurns + read_ / kBytesOfATurn)
      return Fail(Refusal::kHandshake, StrCat("the peer changes its keys, or handshakes, without end: ", turns_,
                                              " turns with ", read_, " bytes of text"));
    if (bytes > 0) {
      plain_.append(piece, static_cast<size_t>(bytes));
      read_ += static_cast<uint64_t>(bytes);
      continue;
    }
    const int why = SSL_get_error(ssl_.get(), bytes);
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) return absl::OkStatus();
    if (why == SSL_ERROR_ZERO_RETURN) {
      peer_closed_ = true;
      return absl::OkStatus();
    }
    return Fail(Refusal::kHandshake, StrCat("the peer broke the TLS session: ", WhyBroken()));
  }
}

/// From now on records are written here, if the latest of OpenSSL's, whose text is `latest`, is bit for bit the one
/// that this session makes of it under the key and the number that it knows: then they are the right ones. Else never.
/// OpenSSL goes on reading; what it says goes nowhere by itself.
void Session::TakeOver(std::string_view latest) {
  std::optional<WriteKey> key = openssl_.Key(SSL_get_current_cipher(ssl_.get()));
  openssl_.Forget();
  if (!key) return;
  --key->records;
  RecordWriter writer(*std::move(key));
  std::string same;
  writer.Seal(RecordWriter::Content::kText, latest, same);
  if (!wire_.ends_with(same)) return;
  writer_ = std::move(writer);
  BIO_set_data(out_, nullptr);
  SSL_free_buffers(ssl_.get());
}

absl::Status Session::WriteByOpenSsl(std::string_view piece) {
  ERR_clear_error();
  const int bytes = SSL_write(ssl_.get(), piece.data(), static_cast<int>(piece.size()));
  if (bytes != static_cast<int>(piece.size()))
    return Fail(Refusal::kHandshake, StrCat("the TLS session is broken: ", OpenSslError()));
  if (openssl_.count() >= kOpenSslRecords) TakeOver(piece);
  return absl::OkStatus();
}

absl::Status Session::Feed(std::string_view wire) {
  if (wire.empty()) return absl::OkStatus();
  if (!std::exchange(begun_, true) && !BeginsAsTls(static_cast<unsigned char>(wire[0])) &&
      !(context_->peer() == PeerRole::kServer && wire[0] == 0x15)) {  // a server may refuse at once, with an alert
    return Fail(Refusal::kPlaintext, context_->peer() == PeerRole::kClient ? "plain text came to a TLS port"
                                                                           : "the peer answers in plain text, not TLS");
  }
  BATON_CHECK(BIO_write(in_, wire.data(), static_cast<int>(wire.size())) == static_cast<int>(wire.size()));
  return Go();
}

absl::Status Session::Write(std::string_view plain) {
  if (!established()) {
    if (unsent_.size() + plain.size() > kMostUnsentBytes) {
      return absl::ResourceExhaustedError(
          StrCat(unsent_.size() + plain.size(), " bytes wait for the TLS handshake, at most ", kMostUnsentBytes));
    }
    unsent_ += plain;
    return absl::OkStatus();
  }
  while (!plain.empty()) {
    const std::string_view piece = plain.substr(0, kRecordBytes);
    if (under_key_ >= bytes_of_a_key_ && SSL_version(ssl_.get()) == TLS1_3_VERSION) TellNextKey();
    if (writer_) {
      writer_->Seal(RecordWriter::Content::kText, piece, wire_);
    } else {
      BATON_RETURN_IF_ERROR(WriteByOpenSsl(piece));
    }
    plain.remove_prefix(piece.size());
    under_key_ += piece.size();
  }
  return absl::OkStatus();
}

void Session::TellNextKey() {
  if (writer_) {
    constexpr std::string_view kKeyUpdate("\x18\0\0\1\0", 5);  // of this end alone
    writer_->Seal(RecordWriter::Content::kHandshake, kKeyUpdate, wire_);
    writer_->TakeNextKey();
  } else if (SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) != 1) {  // else it goes before the next record
    return;
  }
  under_key_ = 0;
  ++keys_taken_;
}

void Session::KeepBuffers(bool keep) {
  if (keep) {
    SSL_clear_mode(ssl_.get(), SSL_MODE_RELEASE_BUFFERS);
  } else {
    SSL_set_mode(ssl_.get(), SSL_MODE_RELEASE_BUFFERS);
    SSL_free_buffers(ssl_.get());  // refuses while they hold something; then they are freed once they do not
  }
}

void Session::Close() {
  if (!established() || refusal_) return;
  ERR_clear_error();
  SSL_shutdown(ssl_.get());
  ERR_clear_error();
}

std::string Session::TakeWire() { return std::exchange(wire_, ""); }

void Session::TakeWire(std::string& to) {
  if (to.empty()) {
    to.swap(wire_);
  } else {
    to += wire_;
  }
  wire_.clear();
}

std::string Session::TakePlain() { return std::exchange(plain_, ""); }

std::optional<WriteKey> Session::GiveWriteKey() const {
  if (!established_ || keys_taken_ > 0) return std::nullopt;
  return writer_ ? std::optional(writer_->key()) : openssl_.Key(SSL_get_current_cipher(ssl_.get()));
}

std::string Session::alpn() const {
  const unsigned char* chosen = nullptr;
  unsigned bytes = 0;
  SSL_get0_alpn_selected(ssl_.get(), &chosen, &bytes);
  return std::string(reinterpret_cast<const char*>(chosen), bytes);
}

}  // namespace baton::tls
