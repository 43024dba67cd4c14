// Which tokens of an answer are those of its text: /v1/responses shows the logprobs of these alone. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <vector>

#include "router/request_types.h"

namespace baton::router {

class TextPositions {
 public:
  /// What is found in an answer as it is read: of a token that adds nothing to it, the next one that does decides.
  struct Found {
    bool text = false, calls = false;
  };

  /// The next tokens of the answer. `thoughts`: so many of all are thoughts, the first ones. Adds those that are of
  /// text to `out`.
  void Take(std::vector<PositionLogprobs> positions, size_t thoughts, Found found, std::vector<PositionLogprobs>& out) {
    seen_ += positions.size();
    std::move(positions.begin(), positions.end(), std::back_inserter(open_));
    const size_t before = seen_ - open_.size();
    const size_t left_out = std::min(thoughts - std::min(thoughts, before), open_.size());
    open_.erase(open_.begin(), open_.begin() + static_cast<ptrdiff_t>(left_out));
    Decide(found, out);
  }

  /// The end of the answer: what is behind a text, and ended it, is of the text.
  void End(Found found, std::vector<PositionLogprobs>& out) {
    Decide(found, out);
    if (!behind_call_) Decide({true, false}, out);
  }

 private:
  void Decide(Found found, std::vector<PositionLogprobs>& out) {
    if (!found.text && !found.calls) return;
    if (found.text) std::move(open_.begin(), open_.end(), std::back_inserter(out));
    open_.clear();
    behind_call_ = found.calls;
  }

  std::vector<PositionLogprobs> open_;  ///< the last ones, of which nothing is known yet
  size_t seen_ = 0;
  bool behind_call_ = false;
};

}  // namespace baton::router
