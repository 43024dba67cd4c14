// The secrets of TLS 1.3 under which ends of connections write their text (RFC 8446, 7.1), heard where OpenSSL derives
// them. It tells them by its key log, too, as text of all five secrets of a handshake, which takes a tenth of the
// handshake. Thread-safe.
#pragma once

#include <string_view>

#include "common/tls/openssl.h"

namespace baton::tls {

/// As SSL_CTX_new: the secrets of its connections can be heard, where this machine's OpenSSL lets a process bring a
/// provider of its own.
ContextPtr ContextWithSecrets();

/// While it lives, `hears` is called on this thread with what OpenSSL derives there for one end of a connection: just
/// before its first record under that secret. One at a time on a thread.
class SecretHeard {
 public:
  enum class End { kServer, kClient };
  using Hears = void (*)(void* whose, std::string_view secret);

  SecretHeard(End end, Hears hears, void* whose);
  ~SecretHeard();
  SecretHeard(const SecretHeard&) = delete;
  SecretHeard& operator=(const SecretHeard&) = delete;
};

}  // namespace baton::tls
