// A kernel that encrypts, for tests on machines whose own does not: records are sealed in this process, under the key
// that was given, as RFC 8446 (section 5) has them.
#pragma once

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <sys/socket.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "common/tls/kernel_tls.h"
#include "common/tls/openssl.h"

namespace baton::tls {

class FakeKernelTls final : public KernelTls {
 public:
  explicit FakeKernelTls(uint64_t bytes_of_a_key = uint64_t{32} << 30) : bytes_of_a_key_(bytes_of_a_key) {}

  absl::Status Take(int socket, const WriteKey& key) override {
    if (!takes.ok()) return takes;
    sockets_[socket] = {key, ""};
    ++taken;
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Renew(int socket, const WriteKey& next) override {
    if (!renews.ok()) return renews;
    Sealed& to = sockets_[socket];
    if (!Push(socket, to)) return false;
    to.unsent = Record(to.key, kHandshake, std::string("\x18\0\0\1\0", 5));
    to.key = next;
    ++renewed;
    Push(socket, to);
    return true;
  }
  absl::StatusOr<size_t> Send(int socket, std::span<const iovec> pieces) override {
    Sealed& to = sockets_[socket];
    std::string bytes;
    for (const iovec& piece : pieces) {
      const size_t part = std::min(piece.iov_len, kMostAtOnce - bytes.size());
      bytes.append(static_cast<const char*>(piece.iov_base), part);
    }
    size_t taken_of_it = 0;
    while (taken_of_it < bytes.size() && Push(socket, to)) {
      const std::string record = bytes.substr(taken_of_it, kMostInARecord);
      to.unsent = Record(to.key, kData, record);
      taken_of_it += record.size();
    }
    Push(socket, to);
    return taken_of_it;
  }
  uint64_t bytes_of_a_key() const override { return bytes_of_a_key_; }

  /// What a kernel does by itself: sends on what it has taken.
  void Turn() {
    for (auto& [socket, to] : sockets_) Push(socket, to);
  }

  absl::Status takes, renews;  ///< what it answers
  int taken = 0, renewed = 0;  ///< connections, further keys

 private:
  struct Sealed {
    WriteKey key;
    std::string unsent;
  };
  static constexpr size_t kMostInARecord = 16 << 10, kMostAtOnce = 128 << 10;
  static constexpr char kData = 23, kHandshake = 22;

  static bool Push(int socket, Sealed& to) {
    while (!to.unsent.empty()) {
      const ssize_t sent = send(socket, to.unsent.data(), to.unsent.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0) return false;
      to.unsent.erase(0, static_cast<size_t>(sent));
    }
    return true;
  }

  static std::string Record(WriteKey& key, char kind, std::string bytes) {
    bytes += kind;
    const size_t length = bytes.size() + 16;
    std::string head{kData, 3, 3, static_cast<char>(length >> 8), static_cast<char>(length)};
    std::string nonce = key.iv;
    for (size_t i = 0; i < 8; ++i) nonce[nonce.size() - 1 - i] ^= static_cast<char>(key.records >> (8 * i));
    ++key.records;
    return head + SealedBytes(key, nonce, head, bytes);
  }
  static std::string SealedBytes(const WriteKey& key, const std::string& nonce, const std::string& head,
                                 const std::string& bytes) {
    const auto octets = [](const std::string& s) { return reinterpret_cast<const unsigned char*>(s.data()); };
    const EVP_CIPHER* const cipher = SSL_CIPHER_get_protocol_id(key.cipher) == 0x1301   ? EVP_aes_128_gcm()
                                     : SSL_CIPHER_get_protocol_id(key.cipher) == 0x1302 ? EVP_aes_256_gcm()
                                                                                        : EVP_chacha20_poly1305();
    const std::unique_ptr<EVP_CIPHER_CTX, FreedBy<EVP_CIPHER_CTX_free>> context(EVP_CIPHER_CTX_new());
    std::string out(bytes.size() + 16, '\0');
    auto* const to = reinterpret_cast<unsigned char*>(out.data());
    int count = 0;
    const bool done = EVP_EncryptInit_ex(context.get(), cipher, nullptr, octets(key.key), octets(nonce)) == 1 &&
                      EVP_EncryptUpdate(context.get(), nullptr, &count, octets(head), int(head.size())) == 1 &&
                      EVP_EncryptUpdate(context.get(), to, &count, octets(bytes), int(bytes.size())) == 1 &&
                      EVP_EncryptFinal_ex(context.get(), to + bytes.size(), &count) == 1 &&
                      EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_GET_TAG, 16, to + bytes.size()) == 1;
    EXPECT_TRUE(done);
    return out;
  }

  const uint64_t bytes_of_a_key_;
  std::map<int, Sealed> sockets_;
};

/// This machine's, with keys that are used up sooner.
class ShortKeys final : public KernelTls {
 public:
  ShortKeys(std::shared_ptr<KernelTls> kernel, uint64_t bytes_of_a_key)
      : kernel_(std::move(kernel)), bytes_of_a_key_(bytes_of_a_key) {}
  absl::Status Take(int socket, const WriteKey& key) override { return kernel_->Take(socket, key); }
  absl::StatusOr<bool> Renew(int socket, const WriteKey& next) override { return kernel_->Renew(socket, next); }
  absl::StatusOr<size_t> Send(int socket, std::span<const iovec> pieces) override {
    return kernel_->Send(socket, pieces);
  }
  uint64_t bytes_of_a_key() const override { return bytes_of_a_key_; }

 private:
  const std::shared_ptr<KernelTls> kernel_;
  const uint64_t bytes_of_a_key_;
};

}  // namespace baton::tls
