#include "sim/unkind_transport.h"

#include <utility>

namespace baton::sim {

void Truncate(std::string& bytes, Timeline& time) {
  if (!bytes.empty()) bytes.resize(time.Below(bytes.size()));
}

void FlipBit(std::string& bytes, Timeline& time) {
  if (!bytes.empty()) bytes[time.Below(bytes.size())] ^= static_cast<char>(1 << time.Below(8));
}

void UnkindTransport::Send(PeerNumber peer, std::string message, Done done) {
  if (sent_[peer]++ == 0 || !faults_on_) return inner_->Send(peer, std::move(message), std::move(done));
  if (Happens(faults_.truncate)) {
    ++counters_.truncate;
    Truncate(message, time_);
  }
  if (Happens(faults_.corrupt)) {
    ++counters_.corrupt;
    FlipBit(message, time_);
  }
  if (Happens(faults_.duplicate)) {
    ++counters_.duplicate;
    inner_->Send(peer, message, [](const absl::Status&) {});
  }
  if (Happens(faults_.drop)) {
    ++counters_.drop;
    return late_.push_back({0, "", std::move(done), time_.Now()});
  }
  const bool delay = Happens(faults_.delay), reorder = Happens(faults_.reorder);
  if (!delay && !reorder) return inner_->Send(peer, std::move(message), std::move(done));
  ++(delay ? counters_.delay : counters_.reorder);
  const Duration most = delay ? std::chrono::milliseconds(300) : std::chrono::milliseconds(2);
  late_.push_back(
      {peer, std::move(message), std::move(done), time_.Now() + time_.Between(std::chrono::microseconds(100), most)});
}

void UnkindTransport::Write(PeerNumber peer, const LandingPlace& place, std::span<const std::byte> bytes, Done done) {
  if (bytes.empty() || !Happens(slot_damage_)) return inner_->Write(peer, place, bytes, std::move(done));
  ++counters_.slots;
  auto copy = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
  (*copy)[time_.Below(copy->size())] ^= static_cast<std::byte>(1 << time_.Below(8));
  inner_->Write(peer, place, *copy, [copy, done = std::move(done)](const absl::Status& status) { done(status); });
}

bool UnkindTransport::Progress() {
  std::vector<Late> due;
  for (size_t i = 0; i < late_.size();) {
    if (late_[i].due > time_.Now()) {
      ++i;
      continue;
    }
    due.push_back(std::move(late_[i]));
    late_.erase(late_.begin() + static_cast<ptrdiff_t>(i));
  }
  for (Late& one : due) {
    if (one.peer != 0) {
      inner_->Send(one.peer, std::move(one.message), std::move(one.done));
    } else if (one.done) {
      one.done(absl::OkStatus());  // lost: nobody knows
    }
  }
  return inner_->Progress() || !due.empty();
}

}  // namespace baton::sim
