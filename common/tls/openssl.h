// OpenSSL's objects with owners, and its errors as text. Included by sources of common/tls and by what drives a TLS
// session; other headers name the types without it.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

namespace baton::tls {

template <auto Free>
struct FreedBy {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};
/// A key that needs a password is an error: nobody is asked on a terminal.
inline int NoPassword(char*, int, int, void*) { return -1; }

inline void FreeCertificates(STACK_OF(X509) * all) { sk_X509_pop_free(all, X509_free); }

using BioPtr = std::unique_ptr<BIO, FreedBy<BIO_free_all>>;
using CertificatePtr = std::unique_ptr<X509, FreedBy<X509_free>>;
using CertificatesPtr = std::unique_ptr<STACK_OF(X509), FreedBy<FreeCertificates>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, FreedBy<EVP_PKEY_free>>;
using StorePtr = std::unique_ptr<X509_STORE, FreedBy<X509_STORE_free>>;
using ContextPtr = std::unique_ptr<SSL_CTX, FreedBy<SSL_CTX_free>>;
using SessionPtr = std::unique_ptr<SSL, FreedBy<SSL_free>>;

/// The oldest error of this thread, and none is left after it: "certificate verify failed".
std::string OpenSslError();

}  // namespace baton::tls
