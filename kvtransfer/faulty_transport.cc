#include "kvtransfer/faulty_transport.h"

#include <algorithm>

namespace baton {
namespace {

constexpr size_t kLine = 64, kStale = 1024;

}  // namespace

void FaultyTransport::Write(PeerNumber peer, const LandingPlace& place, std::span<const std::byte> bytes, Done done) {
  const bool hit = place.lane.ticket == 0 ? tests_ : std::uniform_real_distribution<double>(0, 1)(random_) < rate_;
  const auto damaged = hit ? std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end()) : nullptr;
  if (hit) place.lane.ticket == 0 ? FlipBit(*damaged) : Damage(*damaged);  // stale bytes may be the right ones
  if (rate_ > 0)
    before_.assign(bytes.begin() + static_cast<ptrdiff_t>(bytes.size() - std::min(bytes.size(), kStale)), bytes.end());
  if (!hit) return inner_->Write(peer, place, bytes, std::move(done));
  inner_->Write(peer, place, *damaged, [damaged, done = std::move(done)](const absl::Status& status) { done(status); });
}

void FaultyTransport::FlipBit(std::vector<std::byte>& slot) {
  slot[random_() % slot.size()] ^= static_cast<std::byte>(1u << random_() % 8);
}

void FaultyTransport::Damage(std::vector<std::byte>& slot) {
  switch (random_() % 4) {
    case 0: return FlipBit(slot);
    case 1: {
      const size_t lines = slot.size() / kLine;
      auto* a = slot.data() + random_() % lines * kLine;
      auto* b = slot.data() + random_() % lines * kLine;
      std::swap_ranges(a, a + (a == b ? 0 : kLine), b);
      return;
    }
    case 2: slot.resize(1 + random_() % slot.size()); return;
    default: {
      const size_t stale = std::min(before_.size(), slot.size() / 2);
      std::copy(before_.end() - static_cast<ptrdiff_t>(stale), before_.end(),
                slot.end() - static_cast<ptrdiff_t>(stale));
    }
  }
}

}  // namespace baton
