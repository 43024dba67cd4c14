// When a session begins to write its records itself, in OpenSSL's place: the next record has the next number under the
// same key, whatever OpenSSL has written before; else OpenSSL goes on.
#include <random>

#include "common/str_cat.h"
#include "common/tls/openssl_records.h"
#include "tests/common/written_records.h"

namespace baton::tls {
namespace {

constexpr uint64_t kFirst = Session::kOpenSslRecords;
const std::string kHead("\x17\x03\x03\x00\x20", 5);

class Takeover : public WrittenRecords {
 protected:
  void ExpectRead(size_t bytes, const std::string& what) {
    const std::string text(bytes, static_cast<char>('a' + said_++ % 26));
    ASSERT_EQ(AfterWriting(text), text) << what;
  }
  /// The client says something, and asks for another key of the server's first.
  void AskForAKey() {
    ASSERT_EQ(SSL_key_update(client_.get(), SSL_KEY_UPDATE_REQUESTED), 1);
    ASSERT_EQ(SSL_write(client_.get(), "more", 4), 4);
    Carry();
    ASSERT_TRUE(fed_.ok()) << fed_;
    EXPECT_EQ(server_->TakePlain(), "more");
  }
  int said_ = 0;
};

TEST_F(Takeover, ComesAfterSoManyRecordsOfAnySizeAndCipher) {
  for (const char* cipher : kCiphers) {
    for (const size_t bytes : {1u, 300u, 16384u}) {
      Meet({.cipher = cipher});
      for (uint64_t i = 1; i < kFirst + 40; ++i) {
        ExpectRead(bytes, StrCat(cipher, ", ", bytes, " bytes, record ", i));
        ASSERT_EQ(server_->seals(), i >= kFirst) << cipher << ", record " << i;
      }
    }
  }
}

TEST_F(Takeover, OfALongTextComesInItsMiddle) {
  Meet({});
  ExpectRead(40 * 16384 + 1, "in one write");
  EXPECT_TRUE(server_->seals());
  ExpectRead(300, "after it");
}

TEST_F(Takeover, CountsTicketsThatOpenSslHasWritten) {
  for (const size_t tickets : {1u, 2u, 5u, 20u}) {
    Meet({.tickets = tickets});
    for (uint64_t i = 1; i <= kFirst; ++i) ExpectRead(100, StrCat(tickets, " tickets, record ", i));
    EXPECT_TRUE(server_->seals()) << tickets;
    ExpectRead(100, "after it");
  }
}

TEST_F(Takeover, GoesOnUnderTheKeyThatTheClientHasAskedForBeforeItAtItAndAfterIt) {
  for (uint64_t asked = 0; asked < kFirst + 3; ++asked) {
    Meet({});
    for (uint64_t i = 0; i < 3 * kFirst; ++i) {
      if (i == asked || i == asked + 1) AskForAKey();
      ExpectRead(50, StrCat("asked before record ", asked, ", at ", i));
    }
    EXPECT_TRUE(server_->seals()) << asked;
  }
}

TEST_F(Takeover, GoesOnUnderTheKeyThatThisEndHasTakenBefore) {
  for (const uint64_t bytes : {uint64_t{100}, 100 * kFirst - 1, 100 * kFirst, 100 * kFirst + 1}) {
    Meet({.bytes_of_a_key = bytes});
    for (int i = 0; i < 60; ++i) ExpectRead(100, StrCat("a key each ", bytes, " bytes, record ", i));
    EXPECT_GE(server_->keys_taken(), 2) << bytes;
    EXPECT_EQ(server_->seals(), bytes > 100 * (kFirst - 1)) << bytes;
  }
}

TEST_F(Takeover, LeavesAlertsWhatTheyWere) {
  for (uint64_t written = 0; written < kFirst + 3; ++written) {
    Meet({});
    for (uint64_t i = 0; i < written; ++i) ExpectRead(10, StrCat(written));
    server_->Close();
    Carry();
    EXPECT_EQ(WhyNothing(), SSL_ERROR_ZERO_RETURN) << written;
    Meet({});
    for (uint64_t i = 0; i < written; ++i) ExpectRead(10, StrCat(written));
    EXPECT_FALSE(server_->Feed(std::string("\x17\x03\x03\0\x20", 5) + std::string(32, 'n')).ok());
    Carry();
    EXPECT_EQ(WhyNothing(), SSL_ERROR_SSL);
    EXPECT_EQ(ERR_GET_REASON(ERR_peek_error()), SSL_R_SSLV3_ALERT_BAD_RECORD_MAC) << written;
  }
}

TEST_F(Takeover, ComesToAClientThatWritesNoMore) {
  for (const uint64_t before : {uint64_t{0}, kFirst - 1, kFirst, kFirst + 1}) {
    Meet({});
    for (uint64_t i = 0; i < before; ++i) ExpectRead(10, StrCat(before));
    SSL_shutdown(client_.get());
    Carry();
    EXPECT_TRUE(fed_.ok() && server_->peer_closed());
    for (uint64_t i = 0; i < 2 * kFirst; ++i) ExpectRead(10, StrCat(before, ", then ", i));
    EXPECT_TRUE(server_->seals());
  }
}

TEST_F(Takeover, IsNoneWhereOpenSslWritesOtherRecordsThanThisSessionWould) {
  Meet({.padded_to = 64});
  for (uint64_t i = 0; i < 3 * kFirst; ++i) ExpectRead(10, StrCat(i));
  EXPECT_FALSE(server_->seals());
  AskForAKey();
  ExpectRead(10, "under another key");
}

TEST_F(Takeover, OfAnotherWriterHasTheNumberOfTheNextRecord) {
  for (const size_t tickets : {0u, 2u}) {
    for (const uint64_t written : {uint64_t{0}, uint64_t{1}, kFirst, kFirst + 5}) {
      Meet({.tickets = tickets});
      for (uint64_t i = 0; i < written; ++i) ExpectRead(10, StrCat(written));
      std::optional<WriteKey> key = server_->GiveWriteKey();
      ASSERT_TRUE(key);
      EXPECT_EQ(key->records, tickets + written);
      RecordWriter other(*std::move(key));
      std::string wire;
      for (int i = 0; i < 3; ++i) other.Seal(RecordWriter::Content::kText, "of the other", wire);
      BIO_write(in_, wire.data(), static_cast<int>(wire.size()));
      EXPECT_EQ(Read(), "of the otherof the otherof the other") << tickets << " tickets, " << written;
    }
  }
}

TEST_F(Takeover, AtRandomOfAllOfThat) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const auto upto = [&](unsigned most) { return random() % (most + 1); };
    Meet({.cipher = kCiphers[upto(2)], .bytes_of_a_key = 2000 + upto(20000), .tickets = upto(3)});
    for (int i = 0; i < 60; ++i) {
      const std::string what = StrCat("seed ", seed, ", ", i);
      if (upto(20) == 0) AskForAKey();
      if (upto(10) == 0) {
        ASSERT_EQ(SSL_write(client_.get(), "up", 2), 2);
        Carry();
        EXPECT_EQ(server_->TakePlain(), "up") << what;
      }
      server_->KeepBuffers(upto(1) == 0);
      ExpectRead(1 + upto(upto(5) == 0 ? 40000 : 300), what);
    }
  }
}

TEST(OpenSslRecords, AreNotKnownOnceOneIsNotSealedOrTheFirstKeyComesTwice) {
  const ContextPtr context(SSL_CTX_new(TLS_method()));
  const SessionPtr session(SSL_new(context.get()));
  const unsigned char id[] = {0x13, 0x02};
  const SSL_CIPHER* const cipher = SSL_CIPHER_find(session.get(), id);
  const std::string secret(48, 's');
  const auto number = [&](OpenSslRecords& records) {
    const auto key = records.Key(cipher);
    return key ? static_cast<int64_t>(key->records) : -1;
  };
  OpenSslRecords records;
  records.Wrote(SSL3_RT_HEADER, kHead);
  EXPECT_EQ(number(records), -1) << "of the handshake";
  records.Begin(secret);
  EXPECT_EQ(number(records), 0);
  records.Wrote(SSL3_RT_HEADER, kHead);
  records.Wrote(SSL3_RT_INNER_CONTENT_TYPE, "\x17");
  EXPECT_EQ(number(records), 1);
  records.Wrote(SSL3_RT_HEADER, kHead);
  records.Wrote(SSL3_RT_HANDSHAKE, std::string("\x18\0\0\1\0", 5));
  EXPECT_EQ(number(records), 0) << "under the next key";
  EXPECT_EQ(records.Key(cipher)->key, WriteKey::Of(cipher, secret)->Next().key);
  records.Wrote(SSL3_RT_HEADER, std::string("\x15\x03\x03\0\2", 5));
  EXPECT_EQ(number(records), -1) << "an alert in the clear";
  records.Begin(secret);
  EXPECT_EQ(number(records), 0);
  records.Begin(secret);
  EXPECT_EQ(number(records), -1);
}

}  // namespace
}  // namespace baton::tls
