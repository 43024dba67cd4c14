// bad_words: texts of a request as the tokens that no answer may have in a row. vLLM's rule: a word counts at the
// beginning of a text and behind a space.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "router/api_error.h"
#include "text/tokenizer.h"

namespace baton::router {

/// Adds them to SamplingOptions::bad_words, where clients of gRPC may have given tokens already. The error is a 400
/// that names the field and what is wrong.
std::optional<ApiError> ReadBadWords(const std::vector<std::string>& words, const Tokenizer& tokenizer,
                                     int32_t vocab_size, std::vector<int32_t>& out);

}  // namespace baton::router
