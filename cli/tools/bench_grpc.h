// `baton bench` over Baton's own gRPC API: the figures are those of HTTP, and the server's stages come with them.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "load/asker.h"
#include "load/bench_options.h"

namespace baton::cli {

/// The Generation service of one server.
class BenchGrpc {
 public:
  /// `url`: grpc://host:port or grpcs://host:port; `headers`: of every request. InvalidArgument names the flag that
  /// gRPC has no place for, or whose text is wrong; else a file of --tls-ca.
  static absl::StatusOr<std::unique_ptr<BenchGrpc>> Open(
      const std::string& url, const std::vector<std::pair<std::string, std::string>>& headers,
      const load::BenchOptions& options);
  virtual ~BenchGrpc() = default;

  /// The name of the only model. Unavailable: nobody answers.
  virtual absl::StatusOr<std::string> FindModel(Duration within) = 0;
  /// Keeps what it needs of this, which may go.
  virtual load::MakeAsker Asker(const std::string& model) = 0;
};

}  // namespace baton::cli
