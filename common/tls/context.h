// Context: how TLS sessions of one kind are made, from one identity. Session: one of them over bytes that somebody else
// carries (a socket of Asio, a landing connection, a test): it does no I/O. A Context is immutable, any thread; a
// Session has one thread at a time and keeps its context.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tls/identity.h"
#include "common/tls/openssl_records.h"
#include "common/tls/peer_check.h"
#include "common/tls/record_writer.h"
#include "common/tls/write_key.h"

namespace baton::tls {

class KernelTls;

struct ServerWish {
  bool ask_client = true;           ///< the peer must show a certificate of the authority
  std::vector<std::string> alpn{};  ///< protocols in the order of preference; none: the peer's offer is not looked at
  std::shared_ptr<KernelTls> kernel{};  ///< encrypts what a Stream sends over TCP; null: its Session does
};
struct ClientWish {
  std::vector<std::string> names;  ///< what the server's certificate must be valid for (NamesToProve)
  std::string sni{};               ///< the name sent in the clear; empty: none
  std::vector<std::string> alpn{};
  std::shared_ptr<KernelTls> kernel{};  ///< as ServerWish's
};

/// TLS 1.2 and 1.3, ciphers with forward secrecy; no renegotiation, no compression, no session tickets: a certificate
/// that has expired or was taken back is looked at in every handshake.
class Context {
 public:
  /// FailedPrecondition: the identity lacks what that takes (names the flag).
  static absl::StatusOr<std::shared_ptr<const Context>> ForServer(std::shared_ptr<const Identity> identity,
                                                                  ServerWish wish);
  static absl::StatusOr<std::shared_ptr<const Context>> ForClient(std::shared_ptr<const Identity> identity,
                                                                  ClientWish wish);

  SSL_CTX* get() const { return context_.get(); }
  const Identity& identity() const { return *identity_; }
  PeerRole peer() const { return peer_; }
  const std::vector<std::string>& names() const { return client_.names; }
  const std::string& sni() const { return client_.sni; }
  const std::string& alpn() const { return alpn_; }  ///< as on the wire
  KernelTls* kernel() const { return kernel_.get(); }

 private:
  Context(std::shared_ptr<const Identity> identity, PeerRole peer);
  absl::Status Use();

  const std::shared_ptr<const Identity> identity_;
  const PeerRole peer_;
  ClientWish client_;
  std::string alpn_;
  std::shared_ptr<KernelTls> kernel_;
  ContextPtr context_;
};

/// Whether a connection begins as TLS does: with the byte of a handshake record.
inline bool BeginsAsTls(unsigned char first) { return first == 0x16; }

class Session {
 public:
  /// Bytes under one key of TLS 1.3, after which the writer takes another: below what AES-GCM is trusted with.
  static constexpr uint64_t kBytesOfAKey = uint64_t{32} << 30;
  /// Turns that the peer may give the handshake's machine once it is done (new keys above all, each of which costs more
  /// than it says): so many, and one more for each kBytesOfATurn of text. More end the session.
  static constexpr uint64_t kMostTurns = 256, kBytesOfATurn = 4 << 10;
  /// Records that OpenSSL writes under a key of TLS 1.3 before this session writes them itself. That one saves some
  /// 4,300 instructions, and taking over takes some 70,000: a connection of a short answer does not.
  static constexpr uint64_t kOpenSslRecords = 16;

  explicit Session(std::shared_ptr<const Context> context, uint64_t bytes_of_a_key = kBytesOfAKey);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session();

  /// Bytes that the peer sent. Not OK: the session is over; what `TakeWire` still has (an alert) should be sent.
  absl::Status Feed(std::string_view wire);
  /// Bytes for the peer. Before the handshake is done they wait.
  absl::Status Write(std::string_view plain);
  /// Whether buffers of OpenSSL (some 33 KiB once both directions are used) stay between calls, which saves a writer of
  /// many small records two calls of the allocator for each. False, as at the start: they are freed at once.
  void KeepBuffers(bool keep);
  /// Tells the peer that nothing follows.
  void Close();

  std::string TakeWire();  ///< to be sent
  /// As TakeWire, behind what `to` has. Who gives the same empty string again and again costs no allocation.
  void TakeWire(std::string& to);
  std::string TakePlain();  ///< what the peer wrote
  bool established() const { return established_; }
  int keys_taken() const { return keys_taken_; }      ///< by this end, after the first
  bool seals() const { return writer_.has_value(); }  ///< this session writes the records, and not OpenSSL
  bool peer_closed() const { return peer_closed_; }   ///< the peer has said that nothing follows
  std::string alpn() const;                           ///< the protocol agreed on; empty: none
  /// For who writes in this session's place from now on, when all that TakeWire had is sent. Null: both ends have not
  /// agreed yet, or not on TLS 1.3, or this one has taken another key since, or it is not known what OpenSSL wrote.
  std::optional<WriteKey> GiveWriteKey() const;
  /// Why the peer was refused; null while it was not.
  const std::optional<Refusal>& refusal() const { return refusal_; }

 private:
  friend int CheckChain(X509_STORE_CTX* chain, void* context);
  friend void HearWritten(int written, int version, int kind, const void* said, size_t bytes, SSL* ssl, void* to);
  friend void CountTurn(const SSL* ssl, int where, int value);
  absl::Status Go();
  int Shake();
  absl::Status WriteByOpenSsl(std::string_view piece);
  void TakeOver(std::string_view latest);
  void TellNextKey();
  absl::Status Fail(Refusal refusal, std::string message);

  const std::shared_ptr<const Context> context_;
  std::string wire_;                    ///< to be sent
  SessionPtr ssl_;                      // writes into wire_, as long as there is no writer_
  BIO *in_ = nullptr, *out_ = nullptr;  // owned by ssl_
  OpenSslRecords openssl_;              ///< until there is a writer_
  std::optional<RecordWriter> writer_;  ///< after kOpenSslRecords; never with TLS 1.2
  std::string unsent_, plain_;
  std::string peer_fault_;  ///< what CheckPeer said
  std::optional<Refusal> refusal_;
  bool begun_ = false, established_ = false, peer_closed_ = false;
  bool reads_ = false;  ///< text, and whatever the peer has sent beside it
  const uint64_t bytes_of_a_key_;
  uint64_t under_key_ = 0;  ///< written
  uint64_t turns_ = 0;      ///< of the handshake's machine, while we read
  uint64_t read_ = 0;       ///< bytes of text
  int keys_taken_ = 0;
};

}  // namespace baton::tls
