// What a client of https believes.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace baton::load {

using TlsContext = std::shared_ptr<boost::asio::ssl::context>;

/// `ca`: a file of certificates in PEM; empty: the system's authorities. `insecure`: any certificate is believed.
/// InvalidArgument: the file cannot be read as certificates.
absl::StatusOr<TlsContext> MakeTls(const std::string& ca, bool insecure);

}  // namespace baton::load
