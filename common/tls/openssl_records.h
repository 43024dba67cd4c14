// OpenSslRecords: how many records OpenSSL has written under the present key of one end of a TLS 1.3 connection, so
// that another may write the next one. A number that is used twice under a key gives the text away (RFC 8446, 5.3):
// whatever is not known makes all of it unknown. One thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/tls/openssl.h"
#include "common/tls/write_key.h"

namespace baton::tls {

class OpenSslRecords {
 public:
  OpenSslRecords() = default;
  OpenSslRecords(const OpenSslRecords&) = delete;
  OpenSslRecords& operator=(const OpenSslRecords&) = delete;
  ~OpenSslRecords() { Forget(); }

  /// What is written from now on is under `secret`, the first of this end's text.
  void Begin(std::string_view secret);
  /// Something was written, as OpenSSL's message callback says it: a record's head, then what is in it.
  void Wrote(int kind, std::string_view said);
  /// So many under the present key; 0: not known, too.
  uint64_t count() const { return count_; }
  /// The present key, with the number of the next record. Null: not known.
  std::optional<WriteKey> Key(const SSL_CIPHER* cipher) const;
  /// Nothing is known from now on, and nothing of it is left in memory.
  void Forget();

 private:
  std::string secret_;  ///< the first key's; empty: not known
  uint64_t count_ = 0;
  uint64_t updates_ = 0;  ///< keys after the first
};

}  // namespace baton::tls
