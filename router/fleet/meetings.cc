#include "router/fleet/meetings.h"

#include <algorithm>

namespace baton::router {

bool Meetings::Meet(int32_t prefill, int32_t decode) {
  std::set<int32_t>& met = met_[prefill];
  return met.contains(decode) || (met.size() < kMetAhead && met.insert(decode).second);
}

std::vector<Meetings::Meeting> Meetings::Ready(const Member& self, absl::Span<const Member> others) {
  met_.erase(self.slot);
  std::set<int32_t> there = {self.slot};
  for (const Member& other : others) there.insert(other.slot);
  for (auto& [prefill, met] : met_) std::erase_if(met, [&](int32_t decode) { return !there.contains(decode); });
  std::vector<Member> behind(others.begin(), others.end());
  std::ranges::sort(behind, {}, [&](const Member& m) { return std::pair{m.slot < self.slot, m.slot}; });
  std::vector<Meeting> out;
  for (const Member& other : behind) {
    if (other.slot == self.slot || !other.kv_protocol.Shares(self.kv_protocol)) continue;
    if (self.prefills && other.takes_kv && Meet(self.slot, other.slot)) out.push_back({self.slot, other.slot});
    if (other.prefills && self.takes_kv && Meet(other.slot, self.slot)) out.push_back({other.slot, self.slot});
  }
  return out;
}

}  // namespace baton::router
