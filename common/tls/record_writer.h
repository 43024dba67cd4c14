// RecordWriter: seals the records that one end of a TLS 1.3 connection writes (RFC 8446, section 5.2). A small record
// takes it half of the time that OpenSSL's record layer takes, with the same ciphers of OpenSSL. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/tls/openssl.h"
#include "common/tls/write_key.h"

namespace baton::tls {

class RecordWriter {
 public:
  /// What a record carries, as the wire says it.
  enum class Content : uint8_t { kAlert = 21, kHandshake = 22, kText = 23 };

  explicit RecordWriter(WriteKey key);

  /// Appends a record with all of `text`, at most 16 KiB, to `wire`.
  void Seal(Content content, std::string_view text, std::string& wire);
  /// The peer was told (KeyUpdate): the next record is under the next key.
  void TakeNextKey();
  /// Under which the next record is sealed, with its number.
  const WriteKey& key() const { return key_; }

 private:
  void Use();

  WriteKey key_;
  std::unique_ptr<EVP_CIPHER_CTX, FreedBy<EVP_CIPHER_CTX_free>> cipher_;  ///< of key_
};

}  // namespace baton::tls
