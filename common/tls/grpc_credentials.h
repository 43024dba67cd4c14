// GrpcTls: a LiveIdentity as gRPC takes it, for servers and channels. gRPC reads files only; it is given files in
// memory that hold what has been read and checked here, so that a broken file on disk never reaches it. Peers are
// judged by CheckPeer alone: gRPC is told to verify nothing itself, because it would not say which fact differs.
// Thread-safe; credentials that were made keep what they need.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tls/live_identity.h"
#include "common/tls/refusals.h"

namespace baton::tls {

class GrpcTls {
 public:
  /// Both outlive everything that is made from it. Unavailable: no memory file.
  static absl::StatusOr<std::unique_ptr<GrpcTls>> Make(LiveIdentity& live, Refusals& refusals);
  ~GrpcTls();

  /// `port`: as in Refusals::Note. `ask_client`: clients must show a certificate of the authority.
  std::shared_ptr<grpc::ServerCredentials> ForServer(const std::string& port, bool ask_client);
  /// `names`: what the server's certificate must be valid for (NamesToProve).
  std::shared_ptr<grpc::ChannelCredentials> ForClient(std::vector<std::string> names);

 private:
  struct Shared;
  explicit GrpcTls(std::shared_ptr<Shared> shared);
  const std::shared_ptr<Shared> shared_;
};

/// What gRPC says of a failed connection, with the fact that differs said first where OpenSSL's words are known: a port
/// that does not speak TLS, one that closes because it wants TLS or another certificate. Else the text as it is.
std::string ExplainGrpc(const std::string& message, bool with_tls);

}  // namespace baton::tls
