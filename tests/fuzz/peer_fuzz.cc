// libFuzzer target of what strangers and peers say to a worker's KV ports: any bytes end the greeting or are refused
// without being kept, nobody who does not know the secret ends it, frames are taken or refused within the sizes that a
// transport lets through, and addresses (of UCX, of a worker's ways and ranks) are read within their bounds or refused
// with words. The first byte says which.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "common/trust/greeting.h"
#include "kvtransfer/kv_side.h"
#include "kvtransfer/tcp/connection.h"
#include "kvtransfer/transports/landing_addresses.h"
#include "kvtransfer/transports/rank_addresses.h"
#include "kvtransfer/ucx/peer_address.h"

namespace {

using baton::tcp::Connection;
using baton::tcp::FrameHeader;
using baton::trust::Greeting;

constexpr uint64_t kSlotBytes = 512, kMostMessage = 1024;

void Expect(bool condition) {
  if (!condition) std::abort();
}

std::shared_ptr<const baton::trust::ClusterSecret> Secret() {
  static const auto secret = baton::trust::ClusterSecret::Of(std::string(64, 's')).value();
  return secret;
}

/// In pieces, as the bytes say. A peer that has heard nothing secret proves nothing.
void Greet(Greeting::Role role, std::string_view bytes) {
  Greeting end(Secret(), role, baton::trust::Purpose::kLanding, baton::trust::Nonce{});
  std::string out;
  end.Begin(out);
  while (!bytes.empty() && end.state() != Greeting::State::kFailed && !end.done()) {
    const size_t piece = 1 + static_cast<uint8_t>(bytes[0]) % bytes.size();
    std::string_view in = bytes.substr(0, piece);
    const absl::Status taken = end.Take(in, out);
    Expect(taken.ok() || end.state() == Greeting::State::kFailed);
    Expect(out.size() <= baton::trust::kMostGreetingBytes);
    if (piece == in.size() && taken.ok()) break;
    bytes.remove_prefix(piece - in.size());
  }
  Expect(!end.done());
}

/// As a transport lets them through.
class Landing final : public Connection::Sink {
 public:
  absl::Status Admit(Connection&, const FrameHeader& header) override {
    const uint64_t most = header.kind == baton::tcp::FrameKind::kWrite ? kSlotBytes : kMostMessage;
    admitted_ = header.payload_bytes;
    return header.payload_bytes <= most ? absl::OkStatus() : absl::InvalidArgumentError("too large");
  }
  absl::Status OnFrame(Connection&, const FrameHeader& header, std::string_view payload) override {
    Expect(payload.size() == admitted_ || header.kind == baton::tcp::FrameKind::kWrite);
    return absl::OkStatus();
  }
  std::byte* PlaceFor(Connection&, const FrameHeader& header) override { return header.slot == 0 ? slot_ : nullptr; }

 private:
  std::byte slot_[kSlotBytes];
  uint64_t admitted_ = 0;
};

/// Frames whose headers the bytes fill in, sealed unless they say otherwise, each with some of the bytes behind it.
std::string Frames(std::string_view bytes) {
  std::string out;
  while (bytes.size() > sizeof(FrameHeader)) {
    const auto how = static_cast<uint8_t>(bytes[0]);
    FrameHeader header;
    std::memcpy(&header, bytes.data() + 1, sizeof(header));
    bytes.remove_prefix(1 + sizeof(header));
    header.magic = baton::tcp::kFrameMagic;
    header.kind = static_cast<baton::tcp::FrameKind>(static_cast<uint32_t>(header.kind) % 8);
    if (how % 4 != 0) header.payload_bytes %= 2048;
    if (how % 32 != 31) baton::tcp::Seal(header);
    out.append(reinterpret_cast<const char*>(&header), sizeof(header));
    const size_t payload = std::min<uint64_t>(header.payload_bytes, bytes.size());
    out.append(bytes.substr(0, payload));
    bytes.remove_prefix(payload);
  }
  return out.append(bytes);
}

void Hear(std::string_view bytes) {
  int ends[2];
  Expect(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  Landing landing;
  {
    Connection connection(1, ends[0], /*connecting=*/false);
    const std::string frames = Frames(bytes);
    size_t sent = 0;
    bool moved = true;
    while (moved || sent < frames.size()) {
      const ssize_t went =
          send(ends[1], frames.data() + sent, std::min<size_t>(frames.size() - sent, 4096), MSG_NOSIGNAL);
      if (went > 0) sent += static_cast<size_t>(went);
      moved = false;
      if (!connection.Pump(landing, moved).ok()) break;
    }
    connection.FailAll(absl::CancelledError("over"));
  }
  close(ends[1]);
}

/// `bytes` as they are, and behind the mark of an address with lengths that fit.
void ReadUcxAddress(std::string_view bytes) {
  const auto read = [](std::string_view text) {
    const auto address = baton::ucx::PeerAddress::Parse(text);
    if (!address.ok()) return Expect(!address.status().message().empty());
    Expect(address->landing.slots <= baton::kMaxLandingSlots);
    Expect(address->landing.slot_bytes <= baton::kMaxLandingSlotBytes);
    Expect(address->Pack() == text);
    Expect(address->WithoutLanding().Pack().size() + address->remote_key.size() == text.size());
  };
  read(bytes);
  std::string framed = baton::ucx::PeerAddress{}.Pack();
  std::memcpy(framed.data() + 8, bytes.data(), std::min(bytes.size(), framed.size() - 8));
  read(framed.append(bytes.substr(std::min(bytes.size(), framed.size() - 8))));
}

void ReadWays(std::string_view text) {
  const auto ways = baton::LandingAddresses::Parse(text);
  if (!ways.ok()) return Expect(!ways.status().message().empty());
  Expect(!ways->addresses.empty() && ways->addresses.size() <= baton::kMostWays && ways->Pack() == text);
  for (const std::string& address : ways->addresses) {
    Expect(address.starts_with(baton::KindOf(address)));
    const std::string told = baton::ToldAs(address, "::1");
    Expect(baton::KindOf(told) == baton::KindOf(address) && !baton::NameToResolve(told).has_value());
  }
}

/// Of one rank, or of several behind their mark.
void ReadRanks(std::string_view text) {
  for (const std::string& whole : {std::string(text), "kvranks1\n" + std::string(text)}) {
    const auto ranks = baton::RankAddresses::Parse(whole);
    if (!ranks.ok()) {
      Expect(!ranks.status().message().empty());
      continue;
    }
    if (ranks->stage_layers.empty()) {
      Expect(ranks->ranks.size() == 1 && ranks->tensor_parallel_size == 1);
    } else {
      Expect(ranks->tensor_parallel_size >= 1 && ranks->tensor_parallel_size <= baton::kMaxTensorParallelSize);
      Expect(ranks->ranks.size() ==
             (ranks->stage_layers.size() - 1) * static_cast<size_t>(ranks->tensor_parallel_size));
    }
    for (const std::string& rank : ranks->ranks) ReadWays(rank);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 6) {
    case 0: Greet(Greeting::Role::kCallee, bytes); break;
    case 1: Greet(Greeting::Role::kCaller, bytes); break;
    case 2: ReadUcxAddress(bytes); break;
    case 3: ReadWays(bytes); break;
    case 4: ReadRanks(bytes); break;
    default: Hear(bytes);
  }
  return 0;
}
