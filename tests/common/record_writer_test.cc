// A session writes its records itself; OpenSSL, which knows nothing of that, reads them.
#include <gtest/gtest.h>
#include <openssl/err.h>

#include "common/tls/context.h"
#include "tests/common/tls_fixture.h"

namespace baton::tls {
namespace {

constexpr const char* kAes256 = "TLS_AES_256_GCM_SHA384";

// A client as OpenSSL makes one, and a session of ours as its server.
class WrittenRecords : public ::testing::Test {
 protected:
  void Meet(const char* cipher, int version = TLS1_3_VERSION, uint64_t bytes_of_a_key = Session::kBytesOfAKey) {
    const TlsFiles files = dir_.Make(TestAuthority("authority"), "worker", {"baton-worker"});
    const auto context = Context::ForServer(MustLoad(files), {.ask_client = false});
    ASSERT_TRUE(context.ok());
    server_ = std::make_unique<Session>(*context, bytes_of_a_key);
    made_.reset(SSL_CTX_new(TLS_client_method()));
    SSL_CTX_set_max_proto_version(made_.get(), version);
    ASSERT_EQ(SSL_CTX_set_ciphersuites(made_.get(), cipher), 1);
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

TEST_F(WrittenRecords, OfEachCipherAreRead) {
  for (const char* cipher : {"TLS_AES_128_GCM_SHA256", kAes256, "TLS_CHACHA20_POLY1305_SHA256"}) {
    Meet(cipher);
    EXPECT_STREQ(SSL_get_cipher(client_.get()), cipher);
    for (const size_t bytes : {1u, 300u, 16384u, 16385u, 50000u})
      EXPECT_EQ(AfterWriting(std::string(bytes, 'x')), std::string(bytes, 'x')) << cipher << ", " << bytes;
    EXPECT_TRUE(server_->Write("").ok());
    EXPECT_EQ(server_->TakeWire(), "");
  }
}

TEST_F(WrittenRecords, OfMoreThan256GoOn) {
  Meet(kAes256);
  for (int i = 0; i < 600; ++i) ASSERT_EQ(AfterWriting(std::to_string(i)), std::to_string(i));
}

TEST_F(WrittenRecords, AreUnderANewKeyOnceTheReaderAsksForOneAndOfItsOwnAccord) {
  for (const char* cipher : {kAes256, "TLS_CHACHA20_POLY1305_SHA256"}) {
    Meet(cipher, TLS1_3_VERSION, /*bytes_of_a_key=*/1000);
    for (int i = 0; i < 20; ++i) {
      ASSERT_EQ(SSL_key_update(client_.get(), SSL_KEY_UPDATE_REQUESTED), 1);
      ASSERT_EQ(SSL_write(client_.get(), "more", 4), 4);
      Carry();
      ASSERT_TRUE(fed_.ok()) << fed_;
      EXPECT_EQ(server_->TakePlain(), "more");
      EXPECT_EQ(AfterWriting(std::string(300, 'y')), std::string(300, 'y')) << cipher << ", " << i;
    }
    EXPECT_EQ(server_->keys_taken(), 4);
  }
}

TEST_F(WrittenRecords, EndWithOneThatSaysSo) {
  Meet(kAes256);
  EXPECT_EQ(AfterWriting("the last"), "the last");
  EXPECT_EQ(WhyNothing(), SSL_ERROR_WANT_READ);
  server_->Close();
  Carry();
  EXPECT_EQ(WhyNothing(), SSL_ERROR_ZERO_RETURN);
}

TEST_F(WrittenRecords, SayToWhoSendsNoiseThatItIsNone) {
  Meet(kAes256);
  EXPECT_FALSE(server_->Feed(std::string("\x17\x03\x03\0\x20", 5) + std::string(32, 'n')).ok());
  Carry();
  EXPECT_EQ(WhyNothing(), SSL_ERROR_SSL);
  EXPECT_EQ(ERR_GET_REASON(ERR_peek_error()), SSL_R_SSLV3_ALERT_BAD_RECORD_MAC);
}

TEST_F(WrittenRecords, OfTls12AreOpenSslsOwn) {
  Meet(kAes256, TLS1_2_VERSION);
  EXPECT_FALSE(server_->GiveWriteKey());
  EXPECT_EQ(AfterWriting(std::string(40000, 'z')), std::string(40000, 'z'));
  server_->Close();
  Carry();
  EXPECT_EQ(WhyNothing(), SSL_ERROR_ZERO_RETURN);
}

}  // namespace
}  // namespace baton::tls
