#include "common/tls/certs.h"

#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include "common/check.h"
#include "common/net/address.h"
#include "common/status.h"
#include "common/tls/identity.h"

namespace baton::tls {
namespace {

std::string Written(const BioPtr& bio) {
  char* data = nullptr;
  const long bytes = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(bytes));
}

void AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  BATON_CHECK(extension != nullptr);
  BATON_CHECK(X509_add_ext(certificate, extension, -1) == 1);
  X509_EXTENSION_free(extension);
}

// Everything but who answers for it: a new key, a random number, name and time.
CertAndKey Begin(const CertWish& wish) {
  CertAndKey out{CertificatePtr(X509_new()), KeyPtr(EVP_EC_gen("P-256"))};
  BATON_CHECK(out.certificate && out.key);
  X509* certificate = out.certificate.get();
  X509_set_version(certificate, X509_VERSION_3);
  unsigned char number[16];
  BATON_CHECK(RAND_bytes(number, sizeof number) == 1);
  number[0] = static_cast<unsigned char>((number[0] & 0x3f) | 0x40);  // positive, and of full length
  BIGNUM* serial = BN_bin2bn(number, sizeof number, nullptr);
  BN_to_ASN1_INTEGER(serial, X509_get_serialNumber(certificate));
  BN_free(serial);
  ASN1_TIME_set(X509_getm_notBefore(certificate), static_cast<time_t>(wish.not_before_s));
  ASN1_TIME_set(X509_getm_notAfter(certificate), static_cast<time_t>(wish.not_after_s));
  X509_NAME_add_entry_by_NID(X509_get_subject_name(certificate), NID_commonName, MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(wish.name.data()),
                             static_cast<int>(wish.name.size()), -1, 0);
  X509_set_pubkey(certificate, out.key.get());
  return out;
}

void Sign(X509* certificate, EVP_PKEY* key) { BATON_CHECK(X509_sign(certificate, key, EVP_sha256()) > 0); }

absl::Status AddHosts(X509* certificate, X509* issuer, const std::vector<std::string>& hosts) {
  std::string names;
  for (const std::string& host : hosts) {
    if (absl::Status status = net::CheckHost(host); !status.ok())
      return absl::InvalidArgumentError(StrCat("--host ", host, ": ", View(status.message())));
    if (host.find('%') != std::string::npos)
      return absl::InvalidArgumentError(StrCat("--host ", host, ": a certificate names no interface of a machine"));
    names += StrCat(names.empty() ? "" : ",", net::IsIpAddress(host) ? "IP:" : "DNS:", host);
  }
  if (!names.empty()) AddExtension(certificate, issuer, NID_subject_alt_name, names);
  return absl::OkStatus();
}

BioPtr OpenFile(const std::string& path) { return BioPtr(BIO_new_file(path.c_str(), "r")); }

}  // namespace

std::string CertAndKey::CertificatePem() const {
  const BioPtr bio(BIO_new(BIO_s_mem()));
  BATON_CHECK(PEM_write_bio_X509(bio.get(), certificate.get()) == 1);
  return Written(bio);
}

std::string CertAndKey::KeyPem() const {
  const BioPtr bio(BIO_new(BIO_s_mem()));
  BATON_CHECK(PEM_write_bio_PKCS8PrivateKey(bio.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) == 1);
  return Written(bio);
}

CertAndKey MakeAuthority(const CertWish& wish) {
  CertAndKey out = Begin(wish);
  X509* certificate = out.certificate.get();
  X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
  AddExtension(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  AddExtension(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign");
  AddExtension(certificate, certificate, NID_subject_key_identifier, "hash");
  Sign(certificate, out.key.get());
  return out;
}

absl::StatusOr<CertAndKey> MakeCertificate(const CertAndKey& authority, const CertWish& wish) {
  CertAndKey out = Begin(wish);
  X509 *certificate = out.certificate.get(), *issuer = authority.certificate.get();
  X509_set_issuer_name(certificate, X509_get_subject_name(issuer));
  AddExtension(certificate, issuer, NID_basic_constraints, "critical,CA:FALSE");
  AddExtension(certificate, issuer, NID_key_usage, "critical,digitalSignature");
  AddExtension(certificate, issuer, NID_ext_key_usage, wish.hosts.empty() ? "clientAuth" : "serverAuth,clientAuth");
  AddExtension(certificate, issuer, NID_subject_key_identifier, "hash");
  AddExtension(certificate, issuer, NID_authority_key_identifier, "keyid:always");
  BATON_RETURN_IF_ERROR(AddHosts(certificate, issuer, wish.hosts));
  Sign(certificate, authority.key.get());
  return out;
}

absl::StatusOr<CertAndKey> ReadAuthority(const std::string& cert_path, const std::string& key_path) {
  CertAndKey out;
  if (const BioPtr bio = OpenFile(cert_path))
    out.certificate.reset(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  if (!out.certificate)
    return absl::FailedPreconditionError(StrCat("cannot read a certificate from ", cert_path, ": ", OpenSslError()));
  if (const BioPtr bio = OpenFile(key_path))
    out.key.reset(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassword, nullptr));
  if (!out.key) return absl::FailedPreconditionError(StrCat("cannot read a key from ", key_path, ": ", OpenSslError()));
  if (X509_check_private_key(out.certificate.get(), out.key.get()) != 1) {
    OpenSslError();
    return absl::FailedPreconditionError(StrCat("the certificate ", cert_path, " (", Describe(out.certificate.get()),
                                                ") does not belong to the key ", key_path));
  }
  return out;
}

}  // namespace baton::tls
