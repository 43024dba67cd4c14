// The versions of the two protocols between processes of a cluster that this build speaks. They are exchanged in the
// handshake of a router with a worker, and two builds work together where they share one: a cluster can be upgraded
// process by process. Pure; any thread.
//
//   worker protocol   proto/worker.proto: between a router and a worker
//   KV protocol       how KV travels from a prefill to a decode worker: greeting and frames of the transports,
//                     proto/lanes.proto, slot_format.h
//
// Whoever changes what is said raises max; whoever forgets how the old was said raises min. A release speaks what the
// one before it spoke, so that the processes between two releases always find each other.
#pragma once

#include <cstdint>
#include <string>

namespace baton {

/// Both ends included.
struct ProtocolVersions {
  uint32_t min = 0, max = 0;

  bool Shares(const ProtocolVersions& other) const { return min <= other.max && other.min <= max; }
  bool operator==(const ProtocolVersions&) const = default;
};

/// "4", or "4..5".
inline std::string Text(const ProtocolVersions& versions) {
  const std::string min = std::to_string(versions.min);
  return versions.min == versions.max ? min : min + ".." + std::to_string(versions.max);
}

// Alone in protocol_versions.cc, which the build of the tests that speaks other versions replaces.
ProtocolVersions WorkerProtocol();
ProtocolVersions KvProtocol();

/// What a worker speaks that does not say which KV protocol it does: it is older than the question.
inline constexpr ProtocolVersions kKvProtocolUnnamed = {4, 4};

}  // namespace baton
