// What comes on the connections of a GrpcAcceptor: how much it is, and whose ends it is.
#include <sys/epoll.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/grpc/acceptor.h"
#include "common/net/held_socket.h"
#include "common/net/received_bytes.h"

namespace baton::net {
namespace {

constexpr const char* kBetweenCalls = "bytes-between-calls";
constexpr uint64_t kBytesOfATry = 8 << 10;
constexpr size_t kMostLargeMessages = 2;
constexpr double kOfOwnBytesEachSecond = 1.0 / 16;
/// What gRPC takes in of a call before its server's threads, which may have to wait for a core, have looked at its
/// headers: its window, which grows with what comes.
constexpr double kOwnBytesAtOnce = 16;
constexpr Duration kServersTurn = std::chrono::seconds(1);
/// Between two looks at how much has come where something has, and of how many connections in one.
constexpr int kLookPauseMs = 20, kMostLooks = 256;

}  // namespace

bool GrpcAcceptor::HasMessageTime() const { return options_.message_time > Duration(); }

/// How long the next look at what has come must wait; none: nobody's bytes count.
std::optional<int> GrpcAcceptor::PauseMs() {
  std::lock_guard lock(mutex_);
  if (in_vain_.empty() && asking_.empty() && (taken_.empty() || !HasMessageTime()))
    return waiting_.empty() ? std::nullopt : std::optional(kLookAtAllMs);
  const auto since = std::chrono::ceil<std::chrono::milliseconds>(clock_.Now() - looked_).count();
  return since >= kLookPauseMs ? 0 : kLookPauseMs - static_cast<int>(since);
}

/// On which something has come since the last look, by number, or which are due.
std::vector<uint64_t> GrpcAcceptor::ToLookAt() {
  std::vector<uint64_t> out;
  looked_ = clock_.Now();
  if (looked_ - looked_at_all_ >= std::chrono::milliseconds(kLookAtAllMs)) {
    looked_at_all_ = looked_;
    for (const auto& [number, end] : in_vain_) out.push_back(number);
    for (const auto& [number, end] : asking_) out.push_back(number);
    return out;
  }
  epoll_event heard[kMostLooks];
  const int count = epoll_wait(heard_, heard, kMostLooks, 0);
  for (int i = 0; i < count; ++i) out.push_back(heard[i].data.u64);
  return out;
}

/// Counts what has come on connections that are not useful yet, and ends those whose addresses have no tries left.
void GrpcAcceptor::CountBytes() {
  std::vector<std::pair<Endpoint, const char*>> ends;
  {
    std::lock_guard lock(mutex_);
    for (const uint64_t number : ToLookAt()) {
      if (const auto known = asking_.find(number); known != asking_.end()) {
        if (FloodsBetweenCalls(*known->second)) ends.emplace_back(known->second->end, kBetweenCalls);
        continue;
      }
      const auto at = in_vain_.find(number);
      if (at == in_vain_.end()) continue;
      Taken& one = *at->second;
      const bool limited = Limited(one.from());
      if (limited ? GoesOn(one) && HasNoneLeft(one) : Floods(one)) ends.emplace_back(one.end, kVainTries);
      if (!CountsCalls()) continue;
      if (const char* why = CountCalls(one)) ends.emplace_back(one.end, why);
    }
    while (const Taken* const many = EndOneOfMany()) ends.emplace_back(many->end, kManyCalls);
    for (auto at = taken_.begin(); looked_at_all_ == looked_ && HasMessageTime() && at != taken_.end(); ++at)
      if (IsUnfinished(*at->second)) ends.emplace_back(at->first, kUnfinished);
  }
  for (const auto& [end, why] : ends) EndRefused(end, why);
}

double GrpcAcceptor::TriesOfBytes(uint64_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(kBytesOfATry);
}

/// Whether more than the bytes of its first try have come on it since the last look, which then were counted.
bool GrpcAcceptor::GoesOn(Taken& one) {
  const uint64_t bytes = one.bytes_come();
  uint64_t counted = std::max(one.bytes, kBytesOfATry);
  if (bytes > counted && MayBringALargeMessage(one)) counted = std::max(counted, options_.message_bytes);
  if (bytes <= counted) return false;
  one.bytes = bytes;
  Count(one, TriesOfBytes(bytes - counted));
  return true;
}

/// Whether a connection of this machine that was no use yet has brought more than anybody needs for that, and is still
/// none after the server's turn. Once.
bool GrpcAcceptor::Floods(Taken& one) {
  if (options_.vain_tries == 0) return false;
  const TimePoint now = clock_.Now();
  const double own = static_cast<double>(options_.own_bytes) * (1 + Seconds(now - one.since) * kOfOwnBytesEachSecond);
  auto bytes = static_cast<double>(one.bytes_come());
  if (bytes > own && options_.message_bytes > 0 && MayBringALargeMessage(one))
    bytes -= static_cast<double>(options_.message_bytes);
  if (bytes <= own) return false;
  if (!one.floods_since) one.floods_since = now;
  if (bytes <= kOwnBytesAtOnce * own && now - *one.floods_since < kServersTurn) return false;
  return !std::exchange(one.ended, true);
}

/// Whether what comes on it may be the one message of a large call: on one connection of an address, and two in all.
bool GrpcAcceptor::MayBringALargeMessage(Taken& one) {
  const TimePoint now = clock_.Now();
  std::erase_if(large_, [&](const LargeMessage& large) {
    const auto at = in_vain_.find(large.number);
    if (at == in_vain_.end()) return true;
    return at->second->ended || at->second->bytes_come() == 0;
  });
  const uint64_t self = one.number;
  if (std::ranges::any_of(large_, [&](const LargeMessage& large) { return large.number == self; })) return true;
  const auto of_it = [&](const LargeMessage& large) { return in_vain_.at(large.number)->from() == one.from(); };
  auto place = std::ranges::find_if(large_, of_it);
  if (place == large_.end() && large_.size() < kMostLargeMessages) {
    large_.push_back({self, now});
    return true;
  }
  if (place == large_.end()) place = std::ranges::min_element(large_, {}, &LargeMessage::since);
  if (now - place->since < options_.large_message_time) return false;
  *place = {self, now};
  return true;
}

/// Whether more has come since its latest call than calls have. Once.
bool GrpcAcceptor::FloodsBetweenCalls(Taken& one) {
  const uint64_t bytes = one.bytes_come();
  if (std::exchange(one.spoke, false)) one.bytes = bytes;
  if (bytes <= one.bytes + options_.bytes_between_calls) return false;
  return !std::exchange(one.ended, true);
}

/// Whether it has had no call for so long that what it may have begun is none. Once.
bool GrpcAcceptor::IsUnfinished(Taken& one) {
  if (one.calls > 0 || one.ended) return false;
  if (!one.silent_bytes) one.silent_bytes = one.bytes_come();
  const Duration silent = clock_.Now() - one.silent_since;
  if (silent < options_.message_time) return false;
  const uint64_t bytes = one.bytes_come();
  const double more = static_cast<double>(bytes - std::min(bytes, *one.silent_bytes)) / kSlowestBytesPerSecond;
  return bytes > 0 && Seconds(silent - options_.message_time) >= more && !std::exchange(one.ended, true);
}

/// That have come; 0: it has ended.
uint64_t GrpcAcceptor::Taken::bytes_come() const {
  const HeldSocket held(fd, inode, spare);
  return held.open() ? ReceivedBytes(held.fd()) : 0;
}

}  // namespace baton::net
