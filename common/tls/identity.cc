#include "common/tls/identity.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "common/errno_text.h"
#include "common/status.h"

namespace baton::tls {
namespace {

constexpr std::streamsize kMostBytes = 1 << 20;

absl::StatusOr<std::string> ReadPem(const std::string& path, const char* flag) {
  std::ifstream in(path, std::ios::binary);
  std::string text(kMostBytes, '\0');
  if (!in || !(in.read(text.data(), kMostBytes) || in.eof())) {
    return absl::FailedPreconditionError(StrCat("cannot read ", path, ": ", ErrnoText(), " (--", flag, ")"));
  }
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

BioPtr Reader(const std::string& pem) { return BioPtr(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()))); }

std::vector<CertificatePtr> ReadCertificates(const std::string& pem) {
  std::vector<CertificatePtr> out;
  const BioPtr bio = Reader(pem);
  while (X509* one = PEM_read_bio_X509(bio.get(), nullptr, NoPassword, nullptr)) out.emplace_back(one);
  ERR_clear_error();
  return out;
}

// The system's bundle has well over a hundred, and all of them stand in no line of a log.
std::string NamesOfSome(const std::vector<CertificatePtr>& all) {
  constexpr size_t kMostNames = 4;
  std::string text;
  for (size_t i = 0; i < std::min(all.size(), kMostNames); ++i) text += (i == 0 ? "" : ", ") + SubjectOf(all[i].get());
  return all.size() <= kMostNames ? text : StrCat(text, " and ", all.size() - kMostNames, " more");
}

absl::Status CheckTime(const X509* certificate, const std::string& path, int64_t now_s) {
  if (NotAfter(certificate) < now_s) {
    return absl::FailedPreconditionError(StrCat(path, ": the certificate of ", SubjectOf(certificate), " expired at ",
                                                UtcText(NotAfter(certificate)), ", it is ", UtcText(now_s)));
  }
  if (NotBefore(certificate) > now_s) {
    return absl::FailedPreconditionError(StrCat(path, ": the certificate of ", SubjectOf(certificate),
                                                " is valid from ", UtcText(NotBefore(certificate)), " on, it is ",
                                                UtcText(now_s)));
  }
  return absl::OkStatus();
}

}  // namespace

std::string SystemAuthorities() {
  static constexpr const char* kBundles[] = {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                                             "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"};
  if (const char* given = std::getenv("SSL_CERT_FILE"); given != nullptr) return given;
  for (const char* bundle : kBundles) {
    if (access(bundle, R_OK) == 0) return bundle;
  }
  return kBundles[0];
}

std::vector<std::string> TlsFiles::paths() const {
  std::vector<std::string> out;
  for (const std::string& path : {cert, key, ca}) {
    if (!path.empty()) out.push_back(path);
  }
  return out;
}

absl::Status CheckFlags(const TlsFiles& files, Needs needs) {
  if (!files.given()) return absl::OkStatus();
  const std::string cert = StrCat("--", files.cert_flag), key = StrCat("--", files.key_flag);
  if (files.cert.empty() != files.key.empty()) {
    return absl::InvalidArgumentError(files.cert.empty() ? StrCat(key, " ", files.key, " needs ", cert)
                                                         : StrCat(cert, " ", files.cert, " needs ", key));
  }
  if (needs != Needs::kNothing && files.cert.empty())
    return absl::InvalidArgumentError(StrCat("--", files.ca_flag, " ", files.ca, " needs ", cert, " and ", key));
  if (needs == Needs::kBoth && files.ca.empty()) {
    return absl::InvalidArgumentError(
        StrCat(cert, " ", files.cert, " needs --", files.ca_flag, ": peers must show a certificate of it"));
  }
  return absl::OkStatus();
}

absl::Status Identity::LoadCertificate(int64_t now_s) {
  BATON_ASSIGN_OR_RETURN(const std::string cert, ReadPem(files_.cert, files_.cert_flag));
  BATON_ASSIGN_OR_RETURN(const std::string key, ReadPem(files_.key, files_.key_flag));
  chain_ = ReadCertificates(cert);
  if (chain_.empty())
    return absl::FailedPreconditionError(StrCat(files_.cert, " has no certificate in PEM (--", files_.cert_flag, ")"));
  leaf_ = std::move(chain_.front());
  chain_.erase(chain_.begin());
  key_.reset(PEM_read_bio_PrivateKey(Reader(key).get(), nullptr, NoPassword, nullptr));
  if (!key_) {
    return absl::FailedPreconditionError(StrCat(files_.key, " has no private key in PEM without a password (--",
                                                files_.key_flag, "): ", OpenSslError()));
  }
  if (X509_check_private_key(leaf_.get(), key_.get()) != 1) {
    ERR_clear_error();
    return absl::FailedPreconditionError(StrCat("the certificate ", files_.cert, " (", Describe(leaf_.get()),
                                                ") does not belong to the key ", files_.key));
  }
  BATON_RETURN_IF_ERROR(CheckTime(leaf_.get(), files_.cert, now_s));
  not_after_s_ = NotAfter(leaf_.get());
  cert_and_key_pem_ = StrCat(cert, "\n", key);
  return absl::OkStatus();
}

absl::Status Identity::LoadAuthorities(int64_t now_s) {
  BATON_ASSIGN_OR_RETURN(ca_pem_, ReadPem(files_.ca, files_.ca_flag));
  const std::vector<CertificatePtr> all = ReadCertificates(ca_pem_);
  if (all.empty())
    return absl::FailedPreconditionError(StrCat(files_.ca, " has no certificate in PEM (--", files_.ca_flag, ")"));
  authorities_.reset(X509_STORE_new());
  absl::Status expired;
  size_t valid = 0;
  for (const CertificatePtr& one : all) {
    if (absl::Status status = CheckTime(one.get(), files_.ca, now_s); status.ok()) {
      ++valid;
    } else {
      expired = std::move(status);
    }
    X509_STORE_add_cert(authorities_.get(), one.get());
  }
  authority_names_ = NamesOfSome(all);
  return valid > 0 ? absl::OkStatus() : expired;  // a bundle may hold an old one beside its successor
}

absl::StatusOr<std::shared_ptr<const Identity>> Identity::Load(const TlsFiles& files, int64_t now_s) {
  ERR_clear_error();
  BATON_RETURN_IF_ERROR(CheckFlags(files, Needs::kNothing));
  auto identity = std::shared_ptr<Identity>(new Identity);
  identity->files_ = files;
  if (!files.cert.empty()) BATON_RETURN_IF_ERROR(identity->LoadCertificate(now_s));
  if (!files.ca.empty()) BATON_RETURN_IF_ERROR(identity->LoadAuthorities(now_s));
  return std::shared_ptr<const Identity>(std::move(identity));
}

std::string Identity::text() const { return leaf_ ? Describe(leaf_.get()) : "no certificate"; }

}  // namespace baton::tls
