// One conversation turn against a running cluster, over the OpenAI API or over gRPC.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/cancellation.h"
#include "common/clock.h"
#include "common/tls/tls_files.h"

namespace baton::cli {

struct ChatTurn {
  std::string role;  ///< system, user or assistant
  std::string content;
};

struct ChatOptions {
  std::string model;  ///< empty: the only one served
  std::string api_key;
  double temperature = 0.8;
  int top_k = 40;
  double top_p = 0.95, min_p = 0.05;
  int max_tokens = 0;   ///< 0: up to the context length
  int64_t seed = -1;    ///< < 0: drawn by the server
  Duration patience{};  ///< for what is no answer of the model; zero: as long as it takes
};

struct ChatStats {
  bool cut = false;  ///< the answer ended at max_tokens or at the end of the context
  int prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  double first_token_ms = 0;  ///< from sending the request
  double total_ms = 0;
  std::vector<std::pair<std::string, double>> stages;  ///< name and milliseconds, in the server's order
};

class ChatClient {
 public:
  virtual ~ChatClient() = default;
  /// Whether somebody serves there, and the model that is asked for; its name. Failures as of Ask.
  virtual absl::StatusOr<std::string> Greet(const ChatOptions& options, Cancellation& stop) = 0;
  /// Streams the answer to `turns` piece by piece to `on_text`. Unavailable where nobody answers or the answer breaks
  /// off, NotFound for a model that is not served, FailedPrecondition for what the server refuses, Cancelled by `stop`.
  virtual absl::StatusOr<ChatStats> Ask(const std::vector<ChatTurn>& turns, const ChatOptions& options,
                                        const std::function<void(std::string_view)>& on_text, Cancellation& stop) = 0;
  /// Whether the server only ends what it has begun.
  virtual bool Draining(Cancellation& stop) = 0;
};

/// `url`: as ParseHttpUrl takes it. `files`: for https://, whom we believe (empty: the system's) and what we show;
/// `server_name`: whom the certificate must name, where that is not the host of `url`.
absl::StatusOr<std::unique_ptr<ChatClient>> MakeHttpChatClient(const std::string& url, const tls::TlsFiles& files,
                                                               const std::string& server_name = "");
/// `target`: host:port of the gRPC Generation service, after grpcs:// for TLS, which `files` ask for too. As for HTTP.
/// FailedPrecondition: a file.
absl::StatusOr<std::unique_ptr<ChatClient>> MakeGrpcChatClient(const std::string& target, const tls::TlsFiles& files);

}  // namespace baton::cli
