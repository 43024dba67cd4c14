#include "router/telemetry/span_batch.h"

#include <algorithm>
#include <utility>

namespace baton::router {

void SpanBatch::Add(std::vector<Span> spans) {
  if (waiting_.size() + spans.size() > kMostWaiting) {
    counts_.dropped += static_cast<int64_t>(spans.size());
    return;
  }
  std::move(spans.begin(), spans.end(), std::back_inserter(waiting_));
}

std::vector<Span> SpanBatch::Next() {
  if (under_way_ == 0) under_way_ = std::min(waiting_.size(), kMostAtOnce);
  return {waiting_.begin(), waiting_.begin() + static_cast<ptrdiff_t>(under_way_)};
}

void SpanBatch::Sent(TimePoint now, int64_t rejected) {
  rejected = std::min(rejected, static_cast<int64_t>(under_way_));
  Forget(counts_.sent);
  counts_.sent -= rejected;
  counts_.failed += rejected;
  failing_ = false;
  not_before_ = now + kEvery;
}

bool SpanBatch::Failed(TimePoint now) {
  ++tries_;
  not_before_ = now + std::min<Duration>(kLongestPause, kEvery * (1 << std::min(tries_, 10)));
  if (tries_ >= kMostTries) Forget(counts_.failed);
  return !std::exchange(failing_, true);
}

bool SpanBatch::Refused(TimePoint now) {
  Forget(counts_.failed);
  not_before_ = now + kEvery;
  return !std::exchange(failing_, true);
}

void SpanBatch::Forget(int64_t& count) {
  count += static_cast<int64_t>(under_way_);
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<ptrdiff_t>(under_way_));
  under_way_ = 0;
  tries_ = 0;
}

}  // namespace baton::router
