#include "router/admission/request_ids.h"

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"

namespace baton::router {

RequestIds::RequestIds() : base_(uint64_t{std::random_device{}()} << 32 | std::random_device{}()) {}

std::string RequestIds::GivenOrNew(std::string_view given) {
  const bool printable = std::all_of(given.begin(), given.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  if (!given.empty() && given.size() <= 128 && printable) return std::string(given);
  const uint64_t n = base_ + 0x9E3779B97F4A7C15ull * ++next_;  // a counter through a bijection
  return absl::StrCat(absl::Hex(base_ ^ (n >> 7), absl::kZeroPad16), absl::Hex(n, absl::kZeroPad16));
}

std::string RequestIds::OnceOnly(const std::string& id) { return absl::StrCat(id, "-", absl::Hex(base_ + ++next_)); }

}  // namespace baton::router
