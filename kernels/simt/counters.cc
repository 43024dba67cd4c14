#include "kernels/simt/counters.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>

namespace baton::simt {
namespace {

constexpr uint64_t kSectorBytes = 32;
constexpr int kBanks = 32;
constexpr uint64_t kBankBytes = 4;

}  // namespace

void AccessCounter::Add(bool shared, int warp, int lane, uint64_t address, int bytes,
                        const std::source_location& where) {
  const Site site{where.file_name(), where.line(), where.column()};
  const uint32_t occurrence = occurrences_[{site, warp, lane, shared}]++;
  requests_[Key{shared, site, warp, occurrence}].push_back({lane, bytes, address});
}

/// Shared memory: wavefronts, and how few could have served the same words.
AccessCounter::Cost AccessCounter::SharedCost(const std::vector<Access>& accesses) {
  // A wavefront serves one word per bank: 128 bytes. 16-byte accesses go in quarter-warps, 8-byte in halves.
  const int lanes_per_pass = std::max<int>(1, 128 / std::max(4, accesses.front().bytes));
  Cost cost;
  for (int first = 0; first < 32; first += lanes_per_pass) {
    std::set<uint64_t> words;
    for (const Access& a : accesses) {
      if (a.bytes == 0 || a.lane < first || a.lane >= first + lanes_per_pass) continue;
      for (uint64_t w = a.address / kBankBytes; w <= (a.address + a.bytes - 1) / kBankBytes; ++w) words.insert(w);
    }
    if (words.empty()) continue;
    int per_bank[kBanks] = {};
    for (uint64_t w : words) ++per_bank[w % kBanks];
    cost.paid += *std::max_element(per_bank, per_bank + kBanks);
    cost.ideal += (words.size() + kBanks - 1) / kBanks;
  }
  return cost;
}

/// Global memory: sectors touched, and how few could have held the same bytes.
AccessCounter::Cost AccessCounter::GlobalCost(std::vector<Access> accesses) {
  std::sort(accesses.begin(), accesses.end(), [](const Access& a, const Access& b) { return a.address < b.address; });
  uint64_t bytes = 0, covered = 0, sectors = 0, next_sector = 0;  // everything below `covered` has been counted
  for (const Access& a : accesses) {
    if (a.bytes == 0) continue;
    const uint64_t end = a.address + static_cast<uint64_t>(a.bytes);
    if (end > covered) bytes += end - std::max(a.address, covered);
    covered = std::max(covered, end);
    const uint64_t first = std::max(next_sector, a.address / kSectorBytes), last = (end - 1) / kSectorBytes;
    if (last >= first) {
      sectors += last - first + 1;
      next_sector = last + 1;
    }
  }
  return {sectors, (bytes + kSectorBytes - 1) / kSectorBytes};
}

void AccessCounter::Finish(Counters& counters, const std::vector<int>& lanes_of_warp) {
  std::map<Site, uint64_t> extra_of_site;
  for (const auto& [key, accesses] : requests_) {
    const Cost cost = key.shared ? SharedCost(accesses) : GlobalCost(accesses);
    if (key.shared) {
      ++counters.shared_requests;
      counters.bank_conflicts += cost.paid - cost.ideal;
    } else {
      ++counters.global_requests;
      counters.global_sectors += cost.paid;
      counters.global_ideal_sectors += cost.ideal;
    }
    if (static_cast<int>(accesses.size()) < lanes_of_warp[key.warp]) ++counters.divergent_requests;
    extra_of_site[key.site] += cost.paid - cost.ideal;
  }
  for (const auto& [site, extra] : extra_of_site) {
    if (extra <= counters.worst_extra) continue;
    counters.worst_extra = extra;
    const char* file = std::get<0>(site);
    const char* slash = std::strrchr(file, '/');
    counters.worst_site = std::string(slash ? slash + 1 : file) + ":" + std::to_string(std::get<1>(site));
  }
  requests_.clear();
  occurrences_.clear();
}

}  // namespace baton::simt
