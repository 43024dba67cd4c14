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

void AccessCounter::Finish(Counters& counters, const std::vector<int>& lanes_of_warp) {
  std::map<Site, uint64_t> extra_of_site;
  for (const auto& [key, accesses] : requests_) {
    uint64_t bytes = 0;
    for (const Access& a : accesses) bytes += static_cast<uint64_t>(a.bytes);
    uint64_t extra = 0;
    if (key.shared) {
      // A wavefront serves one word per bank: 128 bytes. 16-byte accesses go in quarter-warps, 8-byte in halves.
      const int lanes_per_pass = std::max<int>(1, 128 / std::max(4, accesses.front().bytes));
      uint64_t wavefronts = 0, ideal = 0;
      for (int first = 0; first < 32; first += lanes_per_pass) {
        std::set<uint64_t> words;
        for (const Access& a : accesses) {
          if (a.bytes == 0 || a.lane < first || a.lane >= first + lanes_per_pass) continue;
          for (uint64_t w = a.address / kBankBytes; w <= (a.address + a.bytes - 1) / kBankBytes; ++w) words.insert(w);
        }
        if (words.empty()) continue;
        int per_bank[kBanks] = {};
        for (uint64_t w : words) ++per_bank[w % kBanks];
        wavefronts += *std::max_element(per_bank, per_bank + kBanks);
        ideal += (words.size() + kBanks - 1) / kBanks;
      }
      ++counters.shared_requests;
      extra = wavefronts - ideal;
      counters.bank_conflicts += extra;
    } else {
      std::set<uint64_t> sectors;
      for (const Access& a : accesses)
        for (uint64_t s = a.address / kSectorBytes; a.bytes > 0 && s <= (a.address + a.bytes - 1) / kSectorBytes; ++s)
          sectors.insert(s);
      const uint64_t ideal = (bytes + kSectorBytes - 1) / kSectorBytes;
      ++counters.global_requests;
      counters.global_sectors += sectors.size();
      counters.global_ideal_sectors += std::min<uint64_t>(ideal, sectors.size());
      extra = sectors.size() > ideal ? sectors.size() - ideal : 0;
    }
    if (static_cast<int>(accesses.size()) < lanes_of_warp[key.warp]) ++counters.divergent_requests;
    extra_of_site[key.site] += extra;
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
