// A session of ours as a server, and a client as OpenSSL makes one, which knows nothing of who writes the records.
#pragma once

#include <gtest/gtest.h>
#include <openssl/err.h>

#include <memory>
#include <string>

#include "common/tls/context.h"
#include "tests/common/tls_fixture.h"

namespace baton::tls {

inline constexpr const char* kAes256 = "TLS_AES_256_GCM_SHA384";
inline constexpr const char* kCiphers[] = {"TLS_AES_128_GCM_SHA256", kAes256, "TLS_CHACHA20_POLY1305_SHA256"};

class WrittenRecords : public ::testing::Test {
 protected:
  struct Options {
    const char* cipher = kAes256;
    int version = TLS1_3_VERSION;
    uint64_t bytes_of_a_key = Session::kBytesOfAKey;
    size_t tickets = 0;
    size_t padded_to = 0;  ///< what OpenSSL writes
  };
  void Meet(const Options& options) {
    const TlsFiles files = dir_.Make(TestAuthority("authority"), "worker", {"baton-worker"});
    const auto context = Context::ForServer(MustLoad(files), {.ask_client = false});
    ASSERT_TRUE(context.ok());
    SSL_CTX* const openssl = (*context)->get();
    if (options.tickets > 0) SSL_CTX_clear_options(openssl, SSL_OP_NO_TICKET);
    SSL_CTX_set_num_tickets(openssl, options.tickets);
    if (options.padded_to > 0) SSL_CTX_set_block_padding(openssl, options.padded_to);
    server_ = std::make_unique<Session>(*context, options.bytes_of_a_key);
    made_.reset(SSL_CTX_new(TLS_client_method()));
    SSL_CTX_set_max_proto_version(made_.get(), options.version);
    ASSERT_EQ(SSL_CTX_set_ciphersuites(made_.get(), options.cipher), 1);
    client_.reset(SSL_new(made_.get()));
    in_ = BIO_new(BIO_s_mem());
    out_ = BIO_new(BIO_s_mem());
    SSL_set_bio(client_.get(), in_, out_);
    SSL_set_connect_state(client_.get());
    for (int i = 0; i < 4; ++i) {
      SSL_do_handshake(client_.get());
      Carry();
    }
    ASSERT_TRUE(server_->established());
  }
  /// What either end has said comes to the other one.
  void Carry() {
    char bytes[1 << 16];
    const int up = BIO_read(out_, bytes, sizeof bytes);
    if (up > 0) fed_ = server_->Feed({bytes, static_cast<size_t>(up)});
    const std::string down = server_->TakeWire();
    BIO_write(in_, down.data(), static_cast<int>(down.size()));
  }
  std::string Read() {
    std::string out;
    char bytes[1 << 14];
    for (int got = 0; (got = SSL_read(client_.get(), bytes, sizeof bytes)) > 0;)
      out.append(bytes, static_cast<size_t>(got));
    return out;
  }
  std::string AfterWriting(const std::string& text) {
    EXPECT_TRUE(server_->Write(text).ok());
    Carry();
    return Read();
  }
  /// Until the session writes the records; false: it never does.
  bool TakenOver() {
    for (uint64_t i = 0; !server_->seals() && i <= Session::kOpenSslRecords; ++i)
      if (AfterWriting("x") != "x") return false;
    return server_->seals();
  }
  int WhyNothing() {
    ERR_clear_error();
    char byte = 0;
    const int got = SSL_read(client_.get(), &byte, 1);
    return SSL_get_error(client_.get(), got);
  }

  CertDir dir_;
  std::unique_ptr<Session> server_;
  ContextPtr made_;
  SessionPtr client_;
  BIO *in_ = nullptr, *out_ = nullptr;
  absl::Status fed_;
};

}  // namespace baton::tls
