// TlsFiles: which files a process was given for TLS. No OpenSSL here: config structs include it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace baton::tls {

/// PEM files. `cert` holds the certificate and then those between it and the authority; `ca` those that are believed.
struct TlsFiles {
  std::string cert, key, ca;
  const char* ca_flag = "tls-ca";  ///< for messages: which flag gave `ca`, `cert` and `key`
  const char* cert_flag = "tls-cert";
  const char* key_flag = "tls-key";

  bool given() const { return !cert.empty() || !key.empty() || !ca.empty(); }
  /// Every file that there is.
  std::vector<std::string> paths() const;
};

/// The flags (common/config_fields.h), the same on every process.
template <class Visitor>
void VisitFields(TlsFiles& c, Visitor&& field) {
  field("tls-cert", c.cert, "", "this process's certificate, PEM: its ports speak TLS");
  field("tls-key", c.key, "", "the certificate's key, PEM");
  field("tls-ca", c.ca, "", "authorities, PEM: TLS between our processes, each shows a certificate of one of them");
}

enum class Needs {
  kNothing,
  kCertificate,
  kBoth
};  ///< of a process that was given any file; kBoth: the authority, too

/// InvalidArgument names the flag that is missing beside one that is given. OK where nothing is given.
absl::Status CheckFlags(const TlsFiles& files, Needs needs);

}  // namespace baton::tls
