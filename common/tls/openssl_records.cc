#include "common/tls/openssl_records.h"

namespace baton::tls {

void OpenSslRecords::Begin(std::string_view secret) {
  const bool again = !secret_.empty();
  Forget();
  if (!again) secret_ = secret;
}

void OpenSslRecords::Wrote(int kind, std::string_view said) {
  if (secret_.empty()) return;
  if (kind == SSL3_RT_HEADER) {
    const bool sealed = said.size() == SSL3_RT_HEADER_LENGTH && said[0] == SSL3_RT_APPLICATION_DATA;
    return sealed ? void(++count_) : Forget();
  }
  if (kind != SSL3_RT_HANDSHAKE || said.empty() || said[0] != SSL3_MT_KEY_UPDATE) return;
  ++updates_;  // the record that says so was the last under its key
  count_ = 0;
}

std::optional<WriteKey> OpenSslRecords::Key(const SSL_CIPHER* cipher) const {
  if (secret_.empty()) return std::nullopt;
  std::optional<WriteKey> key = WriteKey::Of(cipher, secret_);
  for (uint64_t i = 0; key && i < updates_; ++i) key = key->Next();
  if (key) key->records = count_;
  return key;
}

void OpenSslRecords::Forget() {
  OPENSSL_cleanse(secret_.data(), secret_.size());
  secret_.clear();
  count_ = updates_ = 0;
}

}  // namespace baton::tls
