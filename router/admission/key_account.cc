#include "router/admission/key_account.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "common/str_cat.h"

namespace baton::router {
namespace {

constexpr double kMinuteSeconds = 60;

}  // namespace

void KeyAccount::Bucket::Fill(int64_t per_minute, TimePoint now) {
  const auto most = static_cast<double>(per_minute);
  room = filled ? std::min(most, room + most * Seconds(now - *filled) / kMinuteSeconds) : most;
  filled = now;
}

Duration KeyAccount::Bucket::Wait(int64_t per_minute, double amount) const {
  const double seconds = (amount - room) * kMinuteSeconds / static_cast<double>(per_minute);
  return std::chrono::milliseconds(static_cast<int64_t>(std::ceil(seconds * 1000)));
}

ApiError KeyAccount::Refusal(int64_t per_minute, const char* of_what, Duration wait) const {
  ApiError e{429, "rate_limit_error", "rate_limit_exceeded", ""};
  e.message = StrCat("The API key \"", name_, "\" may use ", per_minute, " ", of_what,
                     " per minute. There is room again in ", absl::StrFormat("%.1f", Seconds(wait)), " s.");
  e.retry_after_ms = std::max<int64_t>(1, static_cast<int64_t>(Milliseconds(wait)));
  e.grpc_code = absl::StatusCode::kResourceExhausted;
  return e;
}

std::optional<ApiError> KeyAccount::TakeRequest(TimePoint now) {
  std::lock_guard lock(mutex_);
  if (const int64_t most = limits_.requests_per_minute; most > 0) {
    requests_.Fill(most, now);
    if (requests_.room < 1) {
      ++use_.refused_for_requests;
      return Refusal(most, "requests", requests_.Wait(most, 1));
    }
    requests_.room -= 1;
  }
  ++use_.requests;
  return std::nullopt;
}

std::optional<ApiError> KeyAccount::CheckEver(size_t requests) const {
  const int64_t most = limits_.requests_per_minute;
  if (most == 0 || requests <= static_cast<size_t>(most)) return std::nullopt;
  return BadRequest(StrCat("A list of ", requests, " prompts is ", requests, " requests, and the API key \"", name_,
                           "\" may use ", most, " requests per minute: send at most ", most, " prompts at once."),
                    "prompt");
}

std::optional<ApiError> KeyAccount::TakePrompt(int64_t tokens, TimePoint now) {
  std::lock_guard lock(mutex_);
  if (const int64_t most = limits_.tokens_per_minute; most > 0) {
    tokens_.Fill(most, now);
    const auto needed = static_cast<double>(std::min(tokens, most));
    if (tokens_.room < needed) {
      ++use_.refused_for_tokens;
      return Refusal(most, "tokens", tokens_.Wait(most, needed));
    }
    tokens_.room -= static_cast<double>(tokens);
  }
  use_.prompt_tokens += tokens;
  return std::nullopt;
}

void KeyAccount::TakeCompletion(int64_t tokens, TimePoint now) {
  std::lock_guard lock(mutex_);
  use_.completion_tokens += tokens;
  if (limits_.tokens_per_minute == 0) return;
  tokens_.Fill(limits_.tokens_per_minute, now);
  tokens_.room -= static_cast<double>(tokens);
}

void KeyAccount::RefusedForShare() {
  std::lock_guard lock(mutex_);
  ++use_.refused_for_share;
}

void KeyAccount::EndedUnread() {
  std::lock_guard lock(mutex_);
  ++use_.ended_unread;
}

KeyAccount::Use KeyAccount::use() const {
  std::lock_guard lock(mutex_);
  return use_;
}

}  // namespace baton::router
