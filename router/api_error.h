// ApiError: a failure as clients see it, in OpenAI's terms, and the same in gRPC's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace baton::router {

/// The numbers that a full queue tells its client (design "overload UX").
struct Overload {
  int64_t queue_length = 0;
  int64_t predicted_wait_ms = 0;
  std::string flag;  ///< the flag that sets the limit
};

struct ApiError {
  int32_t http_status = 500;
  std::string type;   ///< "invalid_request_error" …
  std::string code;   ///< "context_length_exceeded" …; empty = null
  std::string param;  ///< field of the request; empty = null
  std::string message;
  int64_t retry_after_ms = 0;  ///< 0 = none
  std::optional<Overload> overload;
  absl::StatusCode grpc_code = absl::StatusCode::kInternal;
};

ApiError BadRequest(std::string message, std::string param = "", std::string code = "");
ApiError NotBuilt(const std::string& field, const std::string& what);
/// `served`: the models that a client can ask for instead.
ApiError ModelNotFound(const std::string& model, const std::vector<std::string>& served);
ApiError Unauthorized();
ApiError Overloaded(const std::string& what, Overload overload);
ApiError Draining();
/// A failure between router and worker. `streaming_began` does not matter: the caller chooses how to send it.
ApiError FromStatus(const absl::Status& status, int64_t retry_after_ms = 0, int64_t queue_ms = 0);

/// {"error":{"message":…,"type":…,"param":…,"code":…}}
std::string ErrorJson(const ApiError& error);

}  // namespace baton::router
