#include "router/admission/request_ids.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/random_word.h"

namespace baton::router {

std::string RequestIds::GivenOrNew(std::string_view given) {
  const bool printable = std::all_of(given.begin(), given.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  if (!given.empty() && given.size() <= 128 && printable) return std::string(given);
  return absl::StrCat(absl::Hex(RandomWord(), absl::kZeroPad16), absl::Hex(RandomWord(), absl::kZeroPad16));
}

std::string RequestIds::OnceOnly(const std::string& id) {
  return absl::StrCat(id, "-", absl::Hex(RandomWord(), absl::kZeroPad16));
}

}  // namespace baton::router
