#include "common/tls/write_key.h"

#include <openssl/core_names.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <utility>

#include "common/check.h"
#include "common/tls/openssl.h"

namespace baton::tls {
namespace {

constexpr size_t kIvBytes = 12;

/// 0: none of ours.
size_t KeyBytes(const SSL_CIPHER* cipher) {
  switch (SSL_CIPHER_get_protocol_id(cipher)) {
    case 0x1301: return 16;  // TLS_AES_128_GCM_SHA256
    case 0x1302:             // TLS_AES_256_GCM_SHA384
    case 0x1303: return 32;  // TLS_CHACHA20_POLY1305_SHA256
    default: return 0;
  }
}

OSSL_PARAM Octets(const char* name, const std::string& value) {
  return OSSL_PARAM_construct_octet_string(name, const_cast<char*>(value.data()), value.size());
}

/// HKDF-Expand-Label of `secret` without a context.
std::string Expand(const EVP_MD* hash, const std::string& secret, const std::string& label, size_t bytes) {
  static const std::string kPrefix = "tls13 ";
  int mode = EVP_KDF_HKDF_MODE_EXPAND_ONLY;
  const OSSL_PARAM how[] = {
      OSSL_PARAM_construct_int(OSSL_KDF_PARAM_MODE, &mode),
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, const_cast<char*>(EVP_MD_get0_name(hash)), 0),
      Octets(OSSL_KDF_PARAM_KEY, secret),
      Octets(OSSL_KDF_PARAM_PREFIX, kPrefix),
      Octets(OSSL_KDF_PARAM_LABEL, label),
      OSSL_PARAM_construct_end()};
  static EVP_KDF* const kdf = EVP_KDF_fetch(nullptr, OSSL_KDF_NAME_TLS1_3_KDF, nullptr);  // a search by name
  BATON_CHECK(kdf != nullptr);
  std::unique_ptr<EVP_KDF_CTX, FreedBy<EVP_KDF_CTX_free>> context(EVP_KDF_CTX_new(kdf));
  std::string out(bytes, '\0');
  BATON_CHECK(context != nullptr &&
              EVP_KDF_derive(context.get(), reinterpret_cast<unsigned char*>(out.data()), bytes, how) == 1);
  return out;
}

}  // namespace

WriteKey::~WriteKey() {
  for (std::string* part : {&secret, &key, &iv}) OPENSSL_cleanse(part->data(), part->size());
}

std::optional<WriteKey> WriteKey::Of(const SSL_CIPHER* cipher, std::string secret) {
  const size_t bytes = cipher == nullptr ? 0 : KeyBytes(cipher);
  const EVP_MD* const hash = bytes == 0 ? nullptr : SSL_CIPHER_get_handshake_digest(cipher);
  if (hash == nullptr || secret.size() != static_cast<size_t>(EVP_MD_get_size(hash))) return std::nullopt;
  std::string key = Expand(hash, secret, "key", bytes), iv = Expand(hash, secret, "iv", kIvBytes);
  return WriteKey{cipher, std::move(secret), std::move(key), std::move(iv), 0};
}

WriteKey WriteKey::Next() const {
  return *Of(cipher, Expand(SSL_CIPHER_get_handshake_digest(cipher), secret, "traffic upd", secret.size()));
}

}  // namespace baton::tls
