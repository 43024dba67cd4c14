#include "load/https.h"

#include <boost/asio/ssl/verify_mode.hpp>

#include "common/status.h"
#include "common/str_cat.h"

namespace baton::load {
namespace ssl = boost::asio::ssl;

absl::StatusOr<TlsContext> MakeTls(const std::string& ca, bool insecure) {
  auto context = std::make_shared<ssl::context>(ssl::context::tls_client);
  boost::system::error_code error;
  context->set_options(ssl::context::no_sslv3 | ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1, error);
  if (insecure) {
    context->set_verify_mode(ssl::verify_none, error);
    return context;
  }
  context->set_verify_mode(ssl::verify_peer, error);
  if (ca.empty()) {
    context->set_default_verify_paths(error);
  } else {
    context->load_verify_file(ca, error);
  }
  if (error) return absl::InvalidArgumentError(StrCat("--tls-ca ", ca, ": no certificates: ", error.message()));
  return context;
}

}  // namespace baton::load
