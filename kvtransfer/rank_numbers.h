// Numbers that say which rank of a worker they belong to: each rank of several processes has connections and landing
// memories of its own, and rank 0, which decides, tells them apart by number. Those of rank 0 are small.
#pragma once

#include <cstdint>

#include "kvtransfer/lane_messages.h"

namespace baton {

/// The rank in the highest 16 bits.
inline constexpr int kRankShift = 48;
/// A landing memory's number: its rank, then 12 bits that count its memories.
inline constexpr int kMemoryBits = 12;
/// A writer's number: its memory, then 36 bits of its transport's.
inline constexpr int kPeerBits = kRankShift - kMemoryBits;

/// Of a writer's number, or of a way's from a rank of ours to a rank of a decode worker.
constexpr int RankOf(uint64_t number) { return static_cast<int>(number >> kRankShift); }
constexpr uint64_t InRank(int rank, uint64_t number) { return (static_cast<uint64_t>(rank) << kRankShift) | number; }

constexpr int RankOfMemory(uint32_t memory) { return static_cast<int>(memory >> kMemoryBits); }
constexpr uint32_t FirstMemoryOf(int rank) { return static_cast<uint32_t>(rank) << kMemoryBits; }
constexpr uint32_t MemoryOfWriter(WriterId writer) { return static_cast<uint32_t>(writer >> kPeerBits); }
constexpr WriterId WriterIn(uint32_t memory, uint64_t peer) { return (WriterId{memory} << kPeerBits) | peer; }
constexpr uint64_t PeerOfWriter(WriterId writer) { return writer & ((WriterId{1} << kPeerBits) - 1); }

}  // namespace baton
