#include "router/policy/load_share.h"

#include <algorithm>

namespace baton::router {
namespace {

// A key stands for its unit and all before it, so two prompts are equal up to the last place where keys are.
uint32_t CommonUnits(absl::Span<const uint64_t> a, absl::Span<const uint64_t> b) {
  size_t same = 0, end = std::min(a.size(), b.size());
  if (end == 0 || a[0] != b[0]) return 0;
  while (same < end) {
    const size_t middle = same + (end - same) / 2;
    a[middle] == b[middle] ? same = middle + 1 : end = middle;
  }
  return static_cast<uint32_t>(same);
}

}  // namespace

double OutstandingLoad::QueuedTokens(double tokens_per_s) const {
  std::lock_guard lock(mutex_);
  if (prompts_.empty()) return 0;
  const double computed = tokens_per_s * Seconds(clock_.Now() - oldest_since_);
  return static_cast<double>(uncached_tokens_) -
         std::clamp(computed, 0.0, static_cast<double>(prompts_.front().uncached_tokens));
}

int64_t OutstandingLoad::PromptTokens() const {
  std::lock_guard lock(mutex_);
  return tokens_;
}

uint32_t OutstandingLoad::UnitsUnderWay(absl::Span<const uint64_t> keys) const {
  uint32_t most = 0;
  std::lock_guard lock(mutex_);
  for (const Prompt& prompt : prompts_) {
    if (prompt.keys) most = std::max(most, CommonUnits(keys, *prompt.keys));
  }
  return most;
}

OutstandingLoad::Place OutstandingLoad::Begin(Prompt prompt) {
  std::lock_guard lock(mutex_);
  if (prompts_.empty()) oldest_since_ = clock_.Now();
  uncached_tokens_ += prompt.uncached_tokens;
  tokens_ += prompt.tokens;
  return prompts_.insert(prompts_.end(), std::move(prompt));
}

void OutstandingLoad::End(Place place) {
  std::lock_guard lock(mutex_);
  if (place == prompts_.begin()) oldest_since_ = clock_.Now();
  uncached_tokens_ -= place->uncached_tokens;
  tokens_ -= place->tokens;
  prompts_.erase(place);
}

LoadShare::LoadShare(std::shared_ptr<OutstandingLoad> load, int64_t uncached_tokens, int64_t tokens, UnitKeys keys)
    : load_(std::move(load)), prompt_(uncached_tokens > 0) {
  load_->requests_.fetch_add(1, std::memory_order_relaxed);
  if (prompt_) place_ = load_->Begin({uncached_tokens, tokens, std::move(keys)});
}

void LoadShare::PrefillDone() {
  if (std::exchange(prompt_, false)) load_->End(place_);
}

void LoadShare::Release() {
  if (!load_) return;
  PrefillDone();
  load_->requests_.fetch_sub(1, std::memory_order_relaxed);
  load_.reset();
}

}  // namespace baton::router
