#include "common/tls/kernel_tls.h"

#include <errno.h>
#include <linux/tls.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/errno_text.h"
#include "common/net/socket_address.h"
#include "common/status.h"
#include "common/tls/context.h"

namespace baton::tls {
namespace {

constexpr int kLevelOfTls = 282;  // SOL_TLS, which C libraries do not name
constexpr unsigned char kHandshakeRecord = 22;
/// A message of the handshake: KeyUpdate, its length of 3 bytes, and that the peer need not do the same.
constexpr char kKeyUpdate[] = {24, 0, 0, 1, 0};

absl::Status Lost(std::string_view what) { return absl::UnavailableError(StrCat(what, ": ", ErrnoText())); }
bool Later() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

/// The kernel's words for a key: `Info` has the cipher's salt and iv one after the other, which are TLS 1.3's iv.
template <class Info>
bool Give(int socket, const WriteKey& key, uint16_t cipher) {
  Info info{};
  info.info.version = TLS_1_3_VERSION;
  info.info.cipher_type = cipher;
  const size_t salt_bytes = key.iv.size() - sizeof(info.iv);
  memcpy(info.iv, key.iv.data() + salt_bytes, sizeof(info.iv));
  if constexpr (requires { info.salt[0]; }) memcpy(info.salt, key.iv.data(), salt_bytes);
  memcpy(info.key, key.key.data(), sizeof(info.key));
  for (size_t i = 0; i < sizeof(info.rec_seq); ++i)
    info.rec_seq[i] = static_cast<unsigned char>(key.records >> (8 * (sizeof(info.rec_seq) - 1 - i)));
  const bool taken = setsockopt(socket, kLevelOfTls, TLS_TX, &info, sizeof(info)) == 0;
  explicit_bzero(&info, sizeof(info));
  return taken;
}

bool GiveKey(int socket, const WriteKey& key) {
  switch (SSL_CIPHER_get_protocol_id(key.cipher)) {
    case 0x1301: return Give<tls12_crypto_info_aes_gcm_128>(socket, key, TLS_CIPHER_AES_GCM_128);
    case 0x1302: return Give<tls12_crypto_info_aes_gcm_256>(socket, key, TLS_CIPHER_AES_GCM_256);
    default: return Give<tls12_crypto_info_chacha20_poly1305>(socket, key, TLS_CIPHER_CHACHA20_POLY1305);
  }
}

class LinuxTls final : public KernelTls {
 public:
  absl::Status Take(int socket, const WriteKey& key) override {
    if (setsockopt(socket, IPPROTO_TCP, TCP_ULP, "tls", sizeof("tls")) != 0) {
      return absl::UnimplementedError(errno == ENOENT
                                          ? "its module tls is not there"
                                          : StrCat("it takes no TLS on a connection (TCP_ULP: ", ErrnoText(), ")"));
    }
    if (GiveKey(socket, key)) return absl::OkStatus();  // else all is sent as before: the module does nothing yet
    return absl::UnimplementedError(
        StrCat("it does not know ", SSL_CIPHER_get_name(key.cipher), " (TLS_TX: ", ErrnoText(), ")"));
  }

  absl::StatusOr<bool> Renew(int socket, const WriteKey& next) override {
    iovec piece{const_cast<char*>(kKeyUpdate), sizeof(kKeyUpdate)};
    alignas(cmsghdr) char beside[CMSG_SPACE(1)] = {};
    msghdr message{.msg_iov = &piece, .msg_iovlen = 1, .msg_control = beside, .msg_controllen = sizeof(beside)};
    cmsghdr* const kind = CMSG_FIRSTHDR(&message);
    kind->cmsg_level = kLevelOfTls;
    kind->cmsg_type = TLS_SET_RECORD_TYPE;
    kind->cmsg_len = CMSG_LEN(1);
    *CMSG_DATA(kind) = kHandshakeRecord;
    if (sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
      if (Later()) return false;
      return Lost("send");
    }
    if (GiveKey(socket, next)) return true;
    return Lost("the kernel takes no further key");
  }

  absl::StatusOr<size_t> Send(int socket, std::span<const iovec> pieces) override {
    const msghdr message{.msg_iov = const_cast<iovec*>(pieces.data()), .msg_iovlen = pieces.size()};
    const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return static_cast<size_t>(sent);
    if (Later()) return 0u;
    return Lost("send");
  }
};

/// A connection with itself, on loopback.
class Loop {
 public:
  absl::Status Open() {
    BATON_ASSIGN_OR_RETURN(const net::SocketAddress any, net::SocketAddress::Of(net::LoopbackHost(), 0));
    BATON_ASSIGN_OR_RETURN(listener_, net::ListenAt(any, 0, 1));
    const net::SocketAddress where = net::SocketAddress::OfSocket(listener_);
    dialled_ = socket(where.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (dialled_ < 0 || connect(dialled_, where.get(), where.bytes()) != 0) return Lost("connect");
    return absl::OkStatus();
  }
  ~Loop() {
    if (dialled_ >= 0) close(dialled_);
    if (listener_ >= 0) close(listener_);
  }
  int socket_of_it() const { return dialled_; }

 private:
  int listener_ = -1, dialled_ = -1;
};

/// Any key: nobody reads what is sent.
absl::StatusOr<WriteKey> KeyOfProbe() {
  const ContextPtr context(SSL_CTX_new(TLS_method()));
  const SessionPtr session(context == nullptr ? nullptr : SSL_new(context.get()));
  const unsigned char id[] = {0x13, 0x02};
  const SSL_CIPHER* const cipher = session == nullptr ? nullptr : SSL_CIPHER_find(session.get(), id);
  std::optional<WriteKey> key = WriteKey::Of(cipher, std::string(48, 'p'));
  if (!key) return absl::UnimplementedError("OpenSSL does not know TLS_AES_256_GCM_SHA384");
  return *std::move(key);
}

}  // namespace

uint64_t KernelTls::bytes_of_a_key() const { return Session::kBytesOfAKey; }

std::shared_ptr<KernelTls> LinuxKernelTls() { return std::make_shared<LinuxTls>(); }

absl::Status ProbeKernelTls(KernelTls& kernel) {
  BATON_ASSIGN_OR_RETURN(const WriteKey key, KeyOfProbe());
  Loop loop;
  BATON_RETURN_IF_ERROR(loop.Open());
  BATON_RETURN_IF_ERROR(kernel.Take(loop.socket_of_it(), key));
  char bytes[] = "probe";
  const iovec piece{bytes, sizeof(bytes)};
  BATON_RETURN_IF_ERROR(kernel.Send(loop.socket_of_it(), {&piece, 1}).status());
  if (const auto renewed = kernel.Renew(loop.socket_of_it(), key.Next()); !renewed.ok()) {
    return absl::UnimplementedError(
        StrCat("it takes one key for a connection and none after it, as Linux does from 6.14 on (",
               View(renewed.status().message()), ")"));
  }
  return absl::OkStatus();
}

KernelTlsChoice ChooseKernelTls(std::shared_ptr<KernelTls> kernel, const absl::Status& probed) {
  if (probed.ok()) return {std::move(kernel), "the kernel encrypts what is sent by tcp (kTLS)"};
  return {nullptr, StrCat("this process encrypts, not the kernel: ", View(probed.message()))};
}

KernelTlsChoice ChooseKernelTls(bool wanted) {
  if (!wanted) return {nullptr, "this process encrypts, not the kernel: --no-kv-kernel-tls"};
  std::shared_ptr<KernelTls> kernel = LinuxKernelTls();
  const absl::Status probed = ProbeKernelTls(*kernel);
  return ChooseKernelTls(std::move(kernel), probed);
}

}  // namespace baton::tls
