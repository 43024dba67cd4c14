// WriteKey: under what one end of a TLS 1.3 connection writes, and what comes after it (RFC 8446, section 7). A value,
// for whoever writes records in OpenSSL's place.
#pragma once

#include <openssl/ssl.h>

#include <cstdint>
#include <optional>
#include <string>

namespace baton::tls {

struct WriteKey {
  const SSL_CIPHER* cipher = nullptr;  ///< AES-GCM of 128 or 256 bits, or ChaCha20-Poly1305
  std::string secret;                  ///< of this end's traffic: the key, and the next secret, follow from it
  std::string key;                     ///< 16 or 32 bytes
  std::string iv;                      ///< 12 bytes
  uint64_t records = 0;                ///< written under it so far: the number of the next one

  ~WriteKey();  ///< leaves none of it in memory
  /// Null: TLS 1.3 has no such cipher, or another one than those.
  static std::optional<WriteKey> Of(const SSL_CIPHER* cipher, std::string secret);
  /// What both ends take after a KeyUpdate.
  WriteKey Next() const;
};

}  // namespace baton::tls
