// What a sampling number may be, whoever gives it: a request or a model's generation_config.json.
#pragma once

#include <optional>

#include "router/api_error.h"
#include "router/request_types.h"

namespace baton::router {

/// Everything that needs neither the vocabulary nor the context: temperature, top_p, penalties, biases … The error is a
/// 400 that names the field, its range and its value.
std::optional<ApiError> CheckSamplingNumbers(const SamplingOptions& sampling);

}  // namespace baton::router
