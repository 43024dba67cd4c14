#include "kvtransfer/faulty_transport.h"

#include <algorithm>

namespace baton {

void FaultyTransport::Write(PeerNumber peer, const LandingPlace& place, std::span<const std::byte> bytes, Done done) {
  const bool hit = place.lane.ticket == 0 ? tests_ : std::uniform_real_distribution<double>(0, 1)(random_) < rate_;
  if (!hit) return inner_->Write(peer, place, bytes, std::move(done));
  const auto damaged = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
  Damage(*damaged);
  inner_->Write(peer, place, *damaged, [damaged, done = std::move(done)](const absl::Status& status) { done(status); });
}

void FaultyTransport::Damage(std::vector<std::byte>& slot) {
  constexpr size_t kLine = 64;
  switch (random_() % 3) {
    case 0: slot[random_() % slot.size()] ^= static_cast<std::byte>(1u << random_() % 8); return;
    case 1: {
      const size_t lines = slot.size() / kLine;
      auto* a = slot.data() + random_() % lines * kLine;
      auto* b = slot.data() + random_() % lines * kLine;
      std::swap_ranges(a, a + (a == b ? 0 : kLine), b);
      return;
    }
    default: slot.resize(1 + random_() % slot.size());
  }
}

}  // namespace baton
