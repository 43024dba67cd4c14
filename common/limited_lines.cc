#include "common/limited_lines.h"

namespace baton {
namespace {

constexpr Duration kBetween = std::chrono::seconds(1);
constexpr int kMostInSecond = 16;
constexpr size_t kMostAddressesASecond = 256;

}  // namespace

bool LimitedLines::May(std::string_view address) {
  const TimePoint now = clock_.Now();
  if (now >= second_ + kBetween) {
    second_ = now;
    in_second_ = 0;
  }
  std::erase_if(lines_, [&](const auto& line) { return now >= line.second + kBetween; });
  if (in_second_ >= kMostInSecond || lines_.size() >= kMostAddressesASecond) return false;
  if (!lines_.try_emplace(std::string(address), now).second) return false;
  ++in_second_;
  return true;
}

}  // namespace baton
