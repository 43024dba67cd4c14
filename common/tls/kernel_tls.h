// KernelTls: the kernel as the one that encrypts what this end of a TLS 1.3 connection sends, instead of OpenSSL
// (Linux: kTLS, docs.kernel.org/networking/tls.html). The handshake, and all that comes, stay with OpenSSL.
// Thread-safe.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tls/write_key.h"

namespace baton::tls {

class KernelTls {
 public:
  virtual ~KernelTls() = default;

  /// From now on what Send gives to `socket` leaves it in records under `key`. Not OK: the socket is as it was.
  virtual absl::Status Take(int socket, const WriteKey& key) = 0;
  /// Tells the peer that another key follows (KeyUpdate), and takes it: `next`. False: not now, ask again.
  /// Unavailable: the connection is over.
  virtual absl::StatusOr<bool> Renew(int socket, const WriteKey& next) = 0;
  /// Bytes of `pieces` that were taken. 0: not now. Unavailable: the connection is broken.
  virtual absl::StatusOr<size_t> Send(int socket, std::span<const iovec> pieces) = 0;
  /// Under one key, as Session::kBytesOfAKey.
  virtual uint64_t bytes_of_a_key() const;
};

/// Of Linux, whether or not it can.
std::shared_ptr<KernelTls> LinuxKernelTls();

/// Tries `kernel` on a connection of its own on loopback: OK, or what it cannot do. A kernel that takes no second key
/// on a connection (before Linux 6.14) cannot: KV would outlive the first.
absl::Status ProbeKernelTls(KernelTls& kernel);

/// What a process does with the answer of its probe.
struct KernelTlsChoice {
  std::shared_ptr<KernelTls> kernel;  ///< null: this process encrypts
  std::string text;                   ///< who encrypts, and why not the kernel: a line of the log
};
KernelTlsChoice ChooseKernelTls(std::shared_ptr<KernelTls> kernel, const absl::Status& probed);
/// Of Linux, with its probe. `wanted`: --kv-kernel-tls.
KernelTlsChoice ChooseKernelTls(bool wanted);

}  // namespace baton::tls
