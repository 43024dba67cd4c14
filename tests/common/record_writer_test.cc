// A session writes its records itself; OpenSSL, which knows nothing of that, reads them.
#include "tests/common/written_records.h"

namespace baton::tls {
namespace {

TEST_F(WrittenRecords, OfEachCipherAreRead) {
  for (const char* cipher : kCiphers) {
    Meet({.cipher = cipher});
    ASSERT_TRUE(TakenOver()) << cipher;
    EXPECT_STREQ(SSL_get_cipher(client_.get()), cipher);
    for (const size_t bytes : {1u, 300u, 16384u, 16385u, 50000u})
      EXPECT_EQ(AfterWriting(std::string(bytes, 'x')), std::string(bytes, 'x')) << cipher << ", " << bytes;
    EXPECT_TRUE(server_->Write("").ok());
    EXPECT_EQ(server_->TakeWire(), "");
  }
}

TEST_F(WrittenRecords, OfMoreThan256GoOn) {
  Meet({});
  ASSERT_TRUE(TakenOver());
  for (int i = 0; i < 600; ++i) ASSERT_EQ(AfterWriting(std::to_string(i)), std::to_string(i));
}

TEST_F(WrittenRecords, AreUnderANewKeyOnceTheReaderAsksForOneAndOfItsOwnAccord) {
  for (const char* cipher : {kAes256, "TLS_CHACHA20_POLY1305_SHA256"}) {
    Meet({.cipher = cipher, .bytes_of_a_key = 1000});
    ASSERT_TRUE(TakenOver());
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
  Meet({});
  ASSERT_TRUE(TakenOver());
  EXPECT_EQ(AfterWriting("the last"), "the last");
  EXPECT_EQ(WhyNothing(), SSL_ERROR_WANT_READ);
  server_->Close();
  Carry();
  EXPECT_EQ(WhyNothing(), SSL_ERROR_ZERO_RETURN);
}

TEST_F(WrittenRecords, SayToWhoSendsNoiseThatItIsNone) {
  Meet({});
  ASSERT_TRUE(TakenOver());
  EXPECT_FALSE(server_->Feed(std::string("\x17\x03\x03\0\x20", 5) + std::string(32, 'n')).ok());
  Carry();
  EXPECT_EQ(WhyNothing(), SSL_ERROR_SSL);
  EXPECT_EQ(ERR_GET_REASON(ERR_peek_error()), SSL_R_SSLV3_ALERT_BAD_RECORD_MAC);
}

TEST_F(WrittenRecords, OfTls12AreOpenSslsOwn) {
  Meet({.version = TLS1_2_VERSION});
  EXPECT_FALSE(server_->GiveWriteKey());
  for (int i = 0; i < 40; ++i) ASSERT_EQ(AfterWriting(std::string(40000, 'z')), std::string(40000, 'z'));
  EXPECT_FALSE(server_->seals());
  server_->Close();
  Carry();
  EXPECT_EQ(WhyNothing(), SSL_ERROR_ZERO_RETURN);
}

}  // namespace
}  // namespace baton::tls
