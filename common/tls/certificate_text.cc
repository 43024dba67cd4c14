// What a certificate says, in words. What a stranger wrote into it is made printable and short.
#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>

#include <ctime>

#include "absl/strings/str_format.h"
#include "common/foreign_text.h"
#include "common/str_cat.h"
#include "common/tls/identity.h"

namespace baton::tls {
namespace {

constexpr size_t kMostNameBytes = 100;
constexpr int kMostNames = 8;

std::string CommonName(const X509_NAME* name) {
  const int at = X509_NAME_get_index_by_NID(name, NID_commonName, -1);
  if (at < 0) return "a nameless one";
  const ASN1_STRING* text = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(name, at));
  return Quoted(std::string_view(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                                 static_cast<size_t>(ASN1_STRING_length(text))),
                kMostNameBytes);
}

int64_t SecondsOf(const ASN1_TIME* time) {
  tm parts{};
  return ASN1_TIME_to_tm(time, &parts) == 1 ? static_cast<int64_t>(timegm(&parts)) : 0;
}

std::string NameText(const GENERAL_NAME* name) {
  if (name->type == GEN_DNS) {
    return Printable(std::string_view(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.dNSName)),
                                      static_cast<size_t>(ASN1_STRING_length(name->d.dNSName))),
                     kMostNameBytes);
  }
  if (name->type != GEN_IPADD) return "";
  char text[INET6_ADDRSTRLEN] = "";
  const int bytes = ASN1_STRING_length(name->d.iPAddress);
  inet_ntop(bytes == 4 ? AF_INET : AF_INET6, ASN1_STRING_get0_data(name->d.iPAddress), text, sizeof text);
  return bytes == 4 || bytes == 16 ? text : "";
}

}  // namespace

std::string OpenSslError() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  const char* reason = ERR_reason_error_string(code);
  return reason != nullptr ? reason : StrCat("error ", code);
}

int64_t WallSeconds() { return static_cast<int64_t>(std::time(nullptr)); }

std::string UtcText(int64_t s) {
  const std::time_t time = static_cast<std::time_t>(s);
  tm parts{};
  gmtime_r(&time, &parts);
  return absl::StrFormat("%04d-%02d-%02d %02d:%02d UTC", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                         parts.tm_hour, parts.tm_min);
}

int64_t NotBefore(const X509* certificate) { return SecondsOf(X509_get0_notBefore(certificate)); }
int64_t NotAfter(const X509* certificate) { return SecondsOf(X509_get0_notAfter(certificate)); }
std::string SubjectOf(const X509* certificate) { return CommonName(X509_get_subject_name(certificate)); }
std::string IssuerOf(const X509* certificate) { return CommonName(X509_get_issuer_name(certificate)); }

std::string NamesOf(const X509* certificate) {
  auto* names = static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  std::string out;
  const int count = names == nullptr ? 0 : sk_GENERAL_NAME_num(names);
  for (int i = 0; i < count && i < kMostNames; ++i) {
    const std::string name = NameText(sk_GENERAL_NAME_value(names, i));
    if (!name.empty()) out += (out.empty() ? "" : ", ") + name;
  }
  if (count > kMostNames) out += StrCat(", … (", count, " names)");
  GENERAL_NAMES_free(names);
  return out.empty() ? "no name" : out;
}

std::string Describe(const X509* certificate) {
  return StrCat(SubjectOf(certificate), ", issued by ", IssuerOf(certificate), ", valid until ",
                UtcText(NotAfter(certificate)));
}

}  // namespace baton::tls
