// What rank 0 of a worker and another rank say to each other about handoffs: proto/ranks.proto's messages, and for what
// every slot costs plain fields. Between two slots a transfer thread goes over megabytes, and Protobuf's code and
// tables come from memory again: a message took 11 to 22 us to make or to read, plain fields take 1 to 3
// (bench/results). All ranks of a worker speak one form (worker/ranks/group_terms.cc). Values; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "kvtransfer/lane_messages.h"
#include "proto/ranks.pb.h"

namespace baton {

/// Raised by whoever changes what is said here or in proto/ranks.proto.
inline constexpr int kRankLineForm = 2;

/// Consecutive entries of a sequence's block table.
struct BlockRun {
  uint32_t group = 0;           ///< of KV layers
  uint32_t first = 0;           ///< index in the table
  std::vector<int32_t> blocks;  ///< numbers in the pool, alike on all ranks
  bool operator==(const BlockRun&) const = default;
};

/// From rank 0: a slot to be gathered and written, or verified and scattered.
struct SlotOrder {
  uint64_t peer = 0;  ///< to whom it is written
  LaneKey lane;
  SlotTurn slot;
  uint64_t plan = 0;      ///< digest of the lane's, which was told before
  bool tell = false;      ///< the peer at once, where it goes well: prefill: that it is full; decode: that it is free
  bool may_wait = false;  ///< where it goes well, its answer goes with the rank's next news, which come soon
  std::vector<uint32_t> segments;  ///< of the lane
  std::vector<BlockRun> tables;    ///< of the blocks that the segments lie in
  bool operator==(const SlotOrder&) const = default;
};

/// To rank 0: answers a SlotOrder.
struct SlotWorked {
  uint64_t peer = 0;  ///< as in the order
  LaneKey lane;
  SlotTurn slot;
  absl::Status status;
  bool told = false;  ///< the peer, as the order says
  bool operator==(const SlotWorked&) const = default;
};

/// To rank 0: a peer says that a slot is full, or free.
struct SlotHeard {
  uint64_t peer = 0;
  std::variant<SlotFull, SlotFree> said;
};

using RankOrder = std::variant<SlotOrder, v1::RankOrder>;
using RankNews = std::variant<SlotWorked, SlotHeard, v1::RankNews>;

std::string EncodeRankOrder(const RankOrder& order);
std::string EncodeRankNews(const RankNews& news);
/// InvalidArgument: not such a message.
absl::StatusOr<RankOrder> DecodeRankOrder(std::string_view bytes);
absl::StatusOr<RankNews> DecodeRankNews(std::string_view bytes);

}  // namespace baton
