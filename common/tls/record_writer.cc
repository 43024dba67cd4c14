#include "common/tls/record_writer.h"

#include <array>
#include <utility>

#include "common/check.h"

namespace baton::tls {
namespace {

constexpr size_t kHeadBytes = 5, kTagBytes = 16, kNonceBytes = 12;

unsigned char* At(std::string& wire, size_t at) { return reinterpret_cast<unsigned char*>(wire.data()) + at; }

/// Searched for by name, once.
const EVP_CIPHER* CipherOf(const SSL_CIPHER* cipher) {
  static const EVP_CIPHER* const aes128 = EVP_CIPHER_fetch(nullptr, "AES-128-GCM", nullptr);
  static const EVP_CIPHER* const aes256 = EVP_CIPHER_fetch(nullptr, "AES-256-GCM", nullptr);
  static const EVP_CIPHER* const chacha = EVP_CIPHER_fetch(nullptr, "ChaCha20-Poly1305", nullptr);
  switch (SSL_CIPHER_get_protocol_id(cipher)) {
    case 0x1301: return aes128;
    case 0x1302: return aes256;
    default: return chacha;
  }
}

/// What the wire says outside of what is sealed: text, of TLS 1.2, and how many bytes.
std::array<char, kHeadBytes> HeadOf(size_t sealed) {
  return {23, 3, 3, static_cast<char>(sealed >> 8), static_cast<char>(sealed & 0xff)};
}

/// The number of a record, over the end of the key's own twelve bytes (section 5.3).
std::array<unsigned char, kNonceBytes> NonceOf(const WriteKey& key) {
  std::array<unsigned char, kNonceBytes> out;
  for (size_t i = 0; i < kNonceBytes; ++i) {
    const size_t from_end = kNonceBytes - 1 - i;
    const auto number = from_end < 8 ? static_cast<unsigned char>(key.records >> (8 * from_end)) : 0;
    out[i] = static_cast<unsigned char>(static_cast<unsigned char>(key.iv[i]) ^ number);
  }
  return out;
}

}  // namespace

RecordWriter::RecordWriter(WriteKey key) : key_(std::move(key)), cipher_(EVP_CIPHER_CTX_new()) { Use(); }

void RecordWriter::Use() {
  const EVP_CIPHER* const cipher = CipherOf(key_.cipher);
  BATON_CHECK(cipher_ != nullptr && cipher != nullptr &&
              EVP_EncryptInit_ex2(cipher_.get(), cipher, reinterpret_cast<const unsigned char*>(key_.key.data()),
                                  nullptr, nullptr) == 1);
}

void RecordWriter::Seal(Content content, std::string_view text, std::string& wire) {
  BATON_CHECK(text.size() <= SSL3_RT_MAX_PLAIN_LENGTH);
  const size_t begin = wire.size(), inner = text.size() + 1;
  const auto head = HeadOf(inner + kTagBytes);
  wire.append(head.data(), head.size()).append(text);
  wire += static_cast<char>(content);
  wire.append(kTagBytes, '\0');
  unsigned char* const body = At(wire, begin + kHeadBytes);
  const auto nonce = NonceOf(key_);
  ++key_.records;
  int bytes = 0, rest = 0;
  EVP_CIPHER_CTX* const c = cipher_.get();
  BATON_CHECK(EVP_EncryptInit_ex2(c, nullptr, nullptr, nonce.data(), nullptr) == 1 &&
              EVP_EncryptUpdate(c, nullptr, &bytes, At(wire, begin), kHeadBytes) == 1 &&
              EVP_EncryptUpdate(c, body, &bytes, body, static_cast<int>(inner)) == 1 &&
              EVP_EncryptFinal_ex(c, body + bytes, &rest) == 1 &&
              EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, kTagBytes, body + inner) == 1);
}

void RecordWriter::TakeNextKey() {
  key_ = key_.Next();
  Use();
}

}  // namespace baton::tls
