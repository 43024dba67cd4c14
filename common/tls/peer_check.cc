#include "common/tls/peer_check.h"

#include <openssl/err.h>
#include <openssl/x509v3.h>

#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/net/address.h"
#include "common/str_cat.h"

namespace baton::tls {
namespace {

constexpr int kMostLinks = 8;  // of a chain; longer ones are not looked at

using StoreContextPtr = std::unique_ptr<X509_STORE_CTX, FreedBy<X509_STORE_CTX_free>>;

PeerCheck Refused(Refusal refusal, std::string message) { return {refusal, std::move(message)}; }

PeerCheck ChainRefused(int error, const X509* at, const X509* leaf, const Identity& ours, int64_t now_s) {
  const X509* named = at != nullptr ? at : leaf;
  switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return Refused(Refusal::kExpired, StrCat("the certificate of ", SubjectOf(named), " expired at ",
                                               UtcText(NotAfter(named)), ", it is ", UtcText(now_s)));
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return Refused(Refusal::kNotYetValid, StrCat("the certificate of ", SubjectOf(named), " is valid from ",
                                                   UtcText(NotBefore(named)), " on, it is ", UtcText(now_s)));
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return Refused(Refusal::kUnknownAuthority,
                     StrCat("the certificate of ", SubjectOf(leaf), " was issued by ", IssuerOf(named), ", but ",
                            ours.files().ca, " has ", ours.authority_names()));
    default:
      return Refused(Refusal::kBadCertificate,
                     StrCat("the certificate of ", SubjectOf(named), ": ", X509_verify_cert_error_string(error)));
  }
}

bool IsValidFor(X509* leaf, const std::string& name) {
  if (net::IsIpAddress(name)) return X509_check_ip_asc(leaf, name.c_str(), 0) == 1;
  return X509_check_host(leaf, name.data(), name.size(), X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS, nullptr) == 1;
}

}  // namespace

std::string_view RefusalName(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNoCertificate: return "no-certificate";
    case Refusal::kUnknownAuthority: return "unknown-ca";
    case Refusal::kExpired: return "expired";
    case Refusal::kNotYetValid: return "not-yet-valid";
    case Refusal::kWrongName: return "wrong-name";
    case Refusal::kBadCertificate: return "bad-certificate";
    case Refusal::kPlaintext: return "plaintext";
    case Refusal::kHandshake: return "handshake";
  }
  return "";
}

PeerCheck CheckPeer(X509* leaf, STACK_OF(X509) * others, const Identity& ours, const std::vector<std::string>& names,
                    PeerRole role, int64_t now_s) {
  BATON_CHECK(ours.has_authority());
  if (leaf == nullptr) return Refused(Refusal::kNoCertificate, "it shows no certificate (--tls-cert, --tls-key)");
  const StoreContextPtr context(X509_STORE_CTX_new());
  BATON_CHECK(X509_STORE_CTX_init(context.get(), ours.authorities(), leaf, others) == 1);
  X509_STORE_CTX_set_default(context.get(), role == PeerRole::kServer ? "ssl_server" : "ssl_client");
  X509_VERIFY_PARAM* rules = X509_STORE_CTX_get0_param(context.get());
  X509_VERIFY_PARAM_set_time(rules, static_cast<time_t>(now_s));
  X509_VERIFY_PARAM_set_depth(rules, kMostLinks);
  X509_VERIFY_PARAM_set_auth_level(rules, 1);
  X509_VERIFY_PARAM_set_flags(rules, X509_V_FLAG_PARTIAL_CHAIN);  // an authority need not have issued itself
  const bool believed = X509_verify_cert(context.get()) == 1;
  ERR_clear_error();
  if (!believed) {
    return ChainRefused(X509_STORE_CTX_get_error(context.get()), X509_STORE_CTX_get_current_cert(context.get()), leaf,
                        ours, now_s);
  }
  for (const std::string& name : names) {
    if (IsValidFor(leaf, name)) return {};
  }
  if (names.empty()) return {};
  return Refused(Refusal::kWrongName, StrCat("the certificate of ", SubjectOf(leaf), " is valid for ", NamesOf(leaf),
                                             ", not for ", absl::StrJoin(names, " or ")));
}

std::vector<std::string> NamesToProve(const std::string& host, const std::string& server_name) {
  if (!net::IsIpAddress(host)) return {host};
  return server_name.empty() ? std::vector<std::string>{host} : std::vector<std::string>{server_name, host};
}

}  // namespace baton::tls
