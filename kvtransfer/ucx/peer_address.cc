#include "kvtransfer/ucx/peer_address.h"

#include <cstring>

#include "common/status.h"

namespace baton::ucx {
namespace {

constexpr char kMark[8] = {'b', 't', 'n', 'u', 'c', 'x', '0', '2'};

struct Fixed {
  char mark[8];
  uint64_t incarnation;
  int64_t pid;
  uint64_t memory, slots, slot_bytes;
  uint64_t worker_bytes, key_bytes;
};

}  // namespace

std::string PeerAddress::Pack() const {
  Fixed fixed{{}, incarnation, pid, memory, landing.slots, landing.slot_bytes, worker.size(), remote_key.size()};
  std::memcpy(fixed.mark, kMark, sizeof(kMark));
  return std::string(reinterpret_cast<const char*>(&fixed), sizeof(fixed)) + worker + remote_key;
}

absl::StatusOr<PeerAddress> PeerAddress::Parse(std::string_view bytes) {
  Fixed fixed;
  if (bytes.size() < sizeof(fixed))
    return absl::InvalidArgumentError(StrCat("a UCX address of ", bytes.size(), " bytes"));
  std::memcpy(&fixed, bytes.data(), sizeof(fixed));
  const uint64_t rest = bytes.size() - sizeof(fixed);
  if (std::memcmp(fixed.mark, kMark, sizeof(kMark)) != 0 || fixed.worker_bytes > rest ||
      fixed.key_bytes != rest - fixed.worker_bytes) {
    return absl::InvalidArgumentError("no UCX address");
  }
  if (fixed.slots > kMaxLandingSlots || fixed.slot_bytes > kMaxLandingSlotBytes) {
    return absl::InvalidArgumentError(StrCat("a UCX address of ", fixed.slots, " landing slots of ", fixed.slot_bytes,
                                             " bytes, at most ", kMaxLandingSlots, " of ", kMaxLandingSlotBytes));
  }
  const std::string_view tail = bytes.substr(sizeof(fixed));
  return PeerAddress{fixed.incarnation,
                     fixed.pid,
                     std::string(tail.substr(0, fixed.worker_bytes)),
                     fixed.memory,
                     {static_cast<uint32_t>(fixed.slots), fixed.slot_bytes},
                     std::string(tail.substr(fixed.worker_bytes))};
}

}  // namespace baton::ucx
