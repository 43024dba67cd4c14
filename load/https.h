// What a client of https believes.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/tls/tls_files.h"

namespace baton::load {

using TlsContext = std::shared_ptr<boost::asio::ssl::context>;

/// `files.ca`: certificates in PEM; empty: the system's authorities. `insecure`: any certificate is believed.
/// `files.cert`, `files.key`: what a server is shown that asks for it. InvalidArgument names the flag whose file cannot
/// be read.
absl::StatusOr<TlsContext> MakeTls(const tls::TlsFiles& files, bool insecure);

}  // namespace baton::load
