// The limits of sampling numbers, whether a request or a model's generation_config.json gives them.
#pragma once

#include <optional>
#include <string>

#include "router/api_error.h"
#include "router/request_types.h"

namespace baton::router {

/// Everything that needs neither the vocabulary nor the context: temperature, top_p, penalties, biases … The error is a
/// 400 that names the field, its range and its value.
std::optional<ApiError> CheckSamplingNumbers(const SamplingOptions& sampling);

/// The same of a number that is too great for a float: with the number as it was sent.
ApiError NoFloat(const SamplingField& field, const std::string& number);

}  // namespace baton::router
