// One conversation turn against a running cluster, over the OpenAI API or over gRPC.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::cli {

struct ChatTurn {
  std::string role;  ///< system, user or assistant
  std::string content;
};

struct ChatOptions {
  std::string model;  ///< empty: the only one served
  std::string api_key;
  double temperature = -1;  ///< < 0: the model's default
  int max_tokens = 0;       ///< 0: up to the context length
  int64_t seed = -1;        ///< < 0: drawn by the server
};

struct ChatStats {
  int prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  double first_token_ms = 0;  ///< from sending the request
  double total_ms = 0;
  std::vector<std::pair<std::string, double>> stages;  ///< name and milliseconds, in the server's order
};

class ChatClient {
 public:
  virtual ~ChatClient() = default;
  /// Streams the answer to `turns` piece by piece to `on_text`.
  virtual absl::StatusOr<ChatStats> Ask(const std::vector<ChatTurn>& turns, const ChatOptions& options,
                                        const std::function<void(std::string_view)>& on_text) = 0;
};

/// `url`: http://host:port.
absl::StatusOr<std::unique_ptr<ChatClient>> MakeHttpChatClient(const std::string& url);
/// `target`: host:port of the gRPC Generation service.
std::unique_ptr<ChatClient> MakeGrpcChatClient(const std::string& target);

}  // namespace baton::cli
