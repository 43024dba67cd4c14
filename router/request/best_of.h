// More choices than are answered: best_of draws and answers the likeliest, a beam search looks at so many at once. What
// such a request may ask, and the sink that waits for all choices and passes the best on.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "router/request/request_driver.h"
#include "router/request/request_input.h"

namespace baton::router {

/// Choices that are drawn, or beams. A best_of of 1 asks for nothing: some clients always send it.
int32_t ChoicesDrawn(const SamplingOptions& sampling);

/// The client's mistake, where fields do not go with best_of or use_beam_search, or are too many for --max-choices.
std::optional<ApiError> CheckBestOf(const RequestInput& input, const RouterConfig& config);

/// Passes the `answers` choices of the greatest summed logprob on to `sink`, best first, when all have ended. The usage
/// is of all that were drawn. Without `shows_logprobs` they were only asked for to be summed here.
std::shared_ptr<AnswerSink> KeepLikeliest(std::shared_ptr<AnswerSink> sink, int32_t answers, bool shows_logprobs);

}  // namespace baton::router
