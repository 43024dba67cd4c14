#include "load/https.h"

#include <boost/asio/ssl/verify_mode.hpp>

#include "common/status.h"
#include "common/str_cat.h"

namespace baton::load {
namespace ssl = boost::asio::ssl;

absl::StatusOr<TlsContext> MakeTls(const tls::TlsFiles& files, bool insecure) {
  auto context = std::make_shared<ssl::context>(ssl::context::tls_client);
  boost::system::error_code error;
  context->set_options(ssl::context::no_sslv3 | ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1, error);
  if (!files.cert.empty()) {
    context->use_certificate_chain_file(files.cert, error);
    if (error)
      return absl::InvalidArgumentError(StrCat("--tls-cert ", files.cert, ": no certificate: ", error.message()));
    context->use_private_key_file(files.key, ssl::context::pem, error);
    if (error)
      return absl::InvalidArgumentError(
          StrCat("--tls-key ", files.key, ": not the key of --tls-cert ", files.cert, ": ", error.message()));
  }
  if (insecure) {
    context->set_verify_mode(ssl::verify_none, error);
    return context;
  }
  context->set_verify_mode(ssl::verify_peer, error);
  if (files.ca.empty()) {
    context->set_default_verify_paths(error);
  } else {
    context->load_verify_file(files.ca, error);
  }
  if (error) return absl::InvalidArgumentError(StrCat("--tls-ca ", files.ca, ": no certificates: ", error.message()));
  return context;
}

}  // namespace baton::load
