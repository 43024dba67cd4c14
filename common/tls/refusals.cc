#include "common/tls/refusals.h"

#include "common/log.h"

namespace baton::tls {

void Refusals::Note(std::string_view port, Refusal refusal, std::string_view address, std::string_view message) {
  bool line = false;
  {
    std::lock_guard lock(mutex_);
    const auto at = counts_.try_emplace(std::string(port)).first;
    ++at->second[static_cast<size_t>(refusal)];
    line = lines_.May(address);
  }
  if (line) {
    LogWarning("TLS: {} port: {} refused ({}): {}", port, address.empty() ? "a connection" : address,
               RefusalName(refusal), message);
  }
}

std::vector<Refusals::Count> Refusals::Counts() const {
  std::lock_guard lock(mutex_);
  std::vector<Count> out;
  for (const auto& [port, by_reason] : counts_) {
    for (int i = 0; i < kRefusals; ++i) {
      const int64_t n = by_reason[static_cast<size_t>(i)];
      if (n > 0) out.push_back({port, RefusalName(static_cast<Refusal>(i)), n});
    }
  }
  return out;
}

int64_t Refusals::total() const {
  int64_t all = 0;
  for (const Count& count : Counts()) all += count.connections;
  return all;
}

}  // namespace baton::tls
