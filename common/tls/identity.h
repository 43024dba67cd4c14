// Identity: what this process proves to others and whom it believes, as read from three files and checked. Immutable,
// any thread. Times are wall-clock seconds since 1970, because certificates speak of those.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tls/openssl.h"
#include "common/tls/tls_files.h"

namespace baton::tls {

class Identity {
 public:
  /// Reads and checks: every file is there, the certificate fits the key, nothing is expired or not yet valid.
  /// FailedPrecondition names the file and both facts.
  static absl::StatusOr<std::shared_ptr<const Identity>> Load(const TlsFiles& files, int64_t now_s);

  const TlsFiles& files() const { return files_; }
  bool has_certificate() const { return leaf_ != nullptr; }
  bool has_authority() const { return authorities_ != nullptr; }

  X509* leaf() const { return leaf_.get(); }                           ///< null: none
  const std::vector<CertificatePtr>& chain() const { return chain_; }  ///< without the leaf
  EVP_PKEY* key() const { return key_.get(); }
  X509_STORE* authorities() const { return authorities_.get(); }
  const std::string& authority_names() const { return authority_names_; }  ///< "a", "b" and 3 more

  /// Certificates, then the key; and the authorities: as gRPC reads them.
  const std::string& cert_and_key_pem() const { return cert_and_key_pem_; }
  const std::string& ca_pem() const { return ca_pem_; }

  /// When the certificate expires; 0 without one.
  int64_t not_after_s() const { return not_after_s_; }
  /// The certificate in words: "baton-worker", issued by "…", valid until ….
  std::string text() const;

 private:
  Identity() = default;
  absl::Status LoadCertificate(int64_t now_s);
  absl::Status LoadAuthorities(int64_t now_s);

  TlsFiles files_;
  CertificatePtr leaf_;
  std::vector<CertificatePtr> chain_;
  KeyPtr key_;
  StorePtr authorities_;
  std::string authority_names_, cert_and_key_pem_, ca_pem_;
  int64_t not_after_s_ = 0;
};

/// The file of the authorities that this system believes; SSL_CERT_FILE names another one.
std::string SystemAuthorities();
int64_t WallSeconds();
/// "2026-11-23 08:35 UTC"
std::string UtcText(int64_t s);
int64_t NotBefore(const X509* certificate);
int64_t NotAfter(const X509* certificate);
/// The common name of whom it was made for, and of who issued it; printable.
std::string SubjectOf(const X509* certificate);
std::string IssuerOf(const X509* certificate);
/// What it is valid for: DNS names and addresses, "localhost, 127.0.0.1".
std::string NamesOf(const X509* certificate);
/// "baton-worker", issued by "…", valid until …
std::string Describe(const X509* certificate);

}  // namespace baton::tls
