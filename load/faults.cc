#include "load/faults.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton::load {
namespace {

constexpr double kOver = 0.95;
constexpr size_t kSecond = std::chrono::seconds(1) / kWindow;  // windows
constexpr size_t kBefore = 10 * kSecond;

// "30s", "500ms", "2m".
std::optional<Duration> TimeOf(absl::string_view text) {
  double unit = 0;
  if (absl::ConsumeSuffix(&text, "ms")) {
    unit = 1e6;
  } else if (absl::ConsumeSuffix(&text, "s")) {
    unit = 1e9;
  } else if (absl::ConsumeSuffix(&text, "m")) {
    unit = 60e9;
  }
  double count = 0;
  if (unit == 0 || !absl::SimpleAtod(text, &count) || !(count >= 0 && count * unit < 9e18)) return std::nullopt;
  return Duration(static_cast<int64_t>(count * unit));
}

double Mean(const std::vector<double>& rates, size_t from, size_t to) {
  return from < to ? std::accumulate(rates.begin() + static_cast<ptrdiff_t>(from),
                                     rates.begin() + static_cast<ptrdiff_t>(to), 0.0) /
                         static_cast<double>(to - from)
                   : 0;
}

}  // namespace

absl::StatusOr<KillWish> ParseKill(const std::string& text) {
  const size_t at = text.rfind('@');
  const std::optional<Duration> time = at == std::string::npos ? std::nullopt : TimeOf(text.substr(at + 1));
  if (!time || at == 0)
    return absl::InvalidArgumentError(StrCat("--kill: \"", text, "\" is not WORKER@TIME, such as decode@30s"));
  return KillWish{text.substr(0, at), *time};
}

absl::StatusOr<CommandWish> ParseCommand(const std::string& text) {
  const size_t equals = text.find('=');
  const std::optional<Duration> time = equals == std::string::npos ? std::nullopt : TimeOf(text.substr(0, equals));
  if (!time || equals + 1 == text.size())
    return absl::InvalidArgumentError(StrCat("--at: \"", text, "\" is not TIME=COMMAND, such as 30s=systemctl stop x"));
  return CommandWish{*time, text.substr(equals + 1)};
}

std::vector<double> TokenRates(const std::vector<Outcome>& outcomes, Duration duration) {
  std::vector<double> out(static_cast<size_t>(duration / kWindow) + 1);
  for (const Outcome& o : outcomes) {
    if (o.arrivals.empty()) continue;
    // Of a broken answer the server counted nothing: its chunks are its tokens.
    const double tokens = static_cast<double>(o.answer.counted ? o.OutputTokens() : std::ssize(o.arrivals));
    const double each = tokens / static_cast<double>(o.arrivals.size()) / Seconds(kWindow);
    for (const Duration at : o.arrivals) out[std::min(static_cast<size_t>(at / kWindow), out.size() - 1)] += each;
  }
  return out;
}

std::optional<Dip> FindDip(const std::vector<Outcome>& outcomes, Duration duration, const FaultSeen& fault) {
  Dip dip{.fault = fault};
  Duration last_sent{};
  for (const Outcome& o : outcomes) {
    last_sent = std::max(last_sent, o.sent);
    if (o.sent > fault.at || o.end <= fault.at || o.end == Duration::zero()) continue;
    dip.running.push_back(o.index);
    dip.failed += o.ok() ? 0 : 1;
  }
  const std::vector<double> rates = TokenRates(outcomes, duration);
  const auto hit = static_cast<size_t>(fault.at / kWindow);
  // While requests still come: after that the rate falls because the load ends.
  const size_t end = std::min(rates.size(), static_cast<size_t>(last_sent / kWindow));
  if (hit == 0 || hit + kSecond > end) return std::nullopt;
  dip.before = Mean(rates, hit > kBefore ? hit - kBefore : 0, hit);
  size_t over = hit;  // the first window of a second that is as good as before
  while (over + kSecond <= end && Mean(rates, over, over + kSecond) < kOver * dip.before) ++over;
  const bool seen = over + kSecond <= end;
  if (seen) dip.over_after_s = Seconds(std::max(Duration::zero(), kWindow * static_cast<int64_t>(over) - fault.at));
  const size_t until = seen ? std::max(over, hit + 1) : end;
  dip.least = *std::ranges::min_element(rates.begin() + static_cast<ptrdiff_t>(hit),
                                        rates.begin() + static_cast<ptrdiff_t>(until));
  return dip;
}

std::vector<Dip> FindDips(const std::vector<Outcome>& outcomes, Duration duration,
                          const std::vector<FaultSeen>& faults) {
  std::vector<Dip> out;
  for (const FaultSeen& fault : faults) {
    const std::optional<Dip> dip = FindDip(outcomes, duration, fault);
    if (dip && fault.error.empty()) out.push_back(*dip);
  }
  return out;
}

}  // namespace baton::load
