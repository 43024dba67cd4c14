// Which tokens of an answer a client sees that does not want to see its thoughts: those behind them. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "router/request/request_driver.h"

namespace baton::router {

/// Of one choice.
class HiddenThoughts {
 public:
  /// Leaves those tokens of `delta` that may be shown now, with those that were held back before.
  void Take(ChoiceDelta& delta) {
    std::move(delta.token_ids.begin(), delta.token_ids.end(), std::back_inserter(ids_));
    std::move(delta.logprobs.begin(), delta.logprobs.end(), std::back_inserter(logprobs_));
    delta.token_ids.clear();
    delta.logprobs.clear();
    const auto thoughts = static_cast<size_t>(delta.thought_tokens);
    const size_t dropped = std::min(thoughts - std::min(thoughts, taken_), ids_.size());
    ids_.erase(ids_.begin(), ids_.begin() + static_cast<ptrdiff_t>(dropped));
    const size_t with_logprobs = std::min(dropped, logprobs_.size());
    logprobs_.erase(logprobs_.begin(), logprobs_.begin() + static_cast<ptrdiff_t>(with_logprobs));
    taken_ += dropped;
    if (!delta.may_be_thoughts) Show(delta.token_ids, delta.logprobs);
  }

  /// The end of the answer: what was held back is no thought.
  void Show(std::vector<int32_t>& ids, std::vector<PositionLogprobs>& logprobs) {
    taken_ += ids_.size();
    std::move(ids_.begin(), ids_.end(), std::back_inserter(ids));
    std::move(logprobs_.begin(), logprobs_.end(), std::back_inserter(logprobs));
    ids_.clear();
    logprobs_.clear();
  }

 private:
  std::vector<int32_t> ids_;  ///< held back, as the next ones: nothing is known of them
  std::vector<PositionLogprobs> logprobs_;
  size_t taken_ = 0;  ///< tokens before them
};

}  // namespace baton::router
