// Certificates of a private authority, for a trial and for tests: EC P-256, signed with SHA-256. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tls/openssl.h"

namespace baton::tls {

struct CertAndKey {
  CertificatePtr certificate;
  KeyPtr key;

  std::string CertificatePem() const;
  std::string KeyPem() const;
};

struct CertWish {
  std::string name;                ///< the common name
  std::vector<std::string> hosts;  ///< DNS names and IP addresses; none: a client that is nobody's server
  int64_t not_before_s = 0, not_after_s = 0;
};

/// A new authority.
CertAndKey MakeAuthority(const CertWish& wish);
/// A certificate that `authority` answers for. InvalidArgument: a host that is neither name nor address.
absl::StatusOr<CertAndKey> MakeCertificate(const CertAndKey& authority, const CertWish& wish);

/// As an earlier run wrote them. FailedPrecondition says which file is wrong.
absl::StatusOr<CertAndKey> ReadAuthority(const std::string& cert_path, const std::string& key_path);

}  // namespace baton::tls
