// The transfer plan: which rank of the prefill side sends what to which rank of the decode side. Resharding is one
// generic (layer × head × token) box intersection per plane; both sides derive the same plan from the same inputs and
// compare its digest when a lane opens.
//
// A lane is a pair (source rank, target rank) that has something to send. Its segments are numbered 0…n-1; a segment is
// one layer's tokens of one piece: the token range is cut into pieces of `piece_tokens`, aligned to position 0.
// A segment's packed payload is, plane after plane, [tokens, heads, dim] in the source's element type.
//
// Pure; any thread. Holds no memory addresses: runs name (block of the table, token in it, local head).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "kvtransfer/kv_side.h"

namespace baton {

/// One plane's share of a lane: the heads that travel, in global and in each rank's local numbers.
struct PlaneCut {
  int plane = 0;        ///< index in its group
  IntRange heads;       ///< global
  int source_head = 0;  ///< of heads.begin, in the source rank's memory
  int target_head = 0;  ///< of heads.begin, in the target rank's memory
};

/// One group's share of a lane.
struct GroupCut {
  int group = 0;
  std::vector<int> layers;       ///< global numbers, ascending, never empty
  std::vector<PlaneCut> planes;  ///< never empty
  IntRange tokens;               ///< positions that travel; starts later for a sliding window
  int first_piece = 0;           ///< tokens.begin / piece_tokens
  int pieces = 0;                ///< per layer
  int first_segment = 0;         ///< of the lane
};

struct LanePlan {
  int source_rank = 0;
  int target_rank = 0;
  std::vector<GroupCut> groups;
  int segments = 0;
};

/// The contents of a segment.
struct Segment {
  const GroupCut* cut = nullptr;  ///< in the plan
  int layer = 0;                  ///< global
  IntRange tokens;                ///< positions
};

/// Consecutive tokens inside one block: `tokens` rows of `heads` heads.
struct KvRun {
  int group = 0;
  int layer = 0;  ///< global
  int plane = 0;
  int table_block = 0;  ///< index in the sequence's block table of that group
  int token_in_block = 0;
  int local_head = 0;   ///< of the rank
  int local_heads = 0;  ///< the rank's heads in this plane: the row stride, in heads
  int heads = 0;        ///< that travel
  int tokens = 0;
  int dim = 0;                  ///< elements of a head
  int position = 0;             ///< of the first token
  int global_head = 0;          ///< of local_head
  int64_t payload_element = 0;  ///< first element in the plane's part of the payload
  int64_t plane_bytes = 0;      ///< where the plane's part begins in the payload, bytes of the source's element type
};

enum class TransferEnd : uint8_t { kSource, kTarget };

/// Ranks of the source times ranks of the target, at most.
inline constexpr int64_t kMaxRankPairs = 1 << 16;
/// Such pairs times layers, at most: what making a plan costs.
inline constexpr int64_t kMaxPairLayers = 1 << 26;
/// Segments of one lane, at most.
inline constexpr int64_t kMaxSegments = 1 << 28;

class TransferPlan {
 public:
  /// Positions [tokens.begin, tokens.end) from `source` to `target`. InvalidArgument with both values when the layouts
  /// do not mean the same or a cut is impossible. piece_tokens: a positive multiple of kUnitTokens.
  static absl::StatusOr<TransferPlan> Make(KvSide source, KvSide target, IntRange tokens, int piece_tokens);

  const std::vector<LanePlan>& lanes() const { return lanes_; }
  const KvSide& source() const { return source_; }
  const KvSide& target() const { return target_; }
  IntRange tokens() const { return tokens_; }
  int piece_tokens() const { return piece_tokens_; }
  /// Of everything the plan depends on; equal digests mean equal lanes, segments and payloads.
  uint64_t digest() const { return digest_; }

  Segment SegmentAt(const LanePlan& lane, int segment) const;
  /// Bytes of a segment's payload.
  int64_t SegmentBytes(const LanePlan& lane, int segment) const;
  /// Calls `visit` for each run of a segment, in payload order, in the memory of `end`'s rank.
  void ForEachRun(const LanePlan& lane, int segment, TransferEnd end,
                  const std::function<void(const KvRun&)>& visit) const;

 private:
  TransferPlan(KvSide source, KvSide target, IntRange tokens)
      : source_(std::move(source)), target_(std::move(target)), tokens_(tokens) {}
  void AddLane(int source_rank, int target_rank, IntRange tokens);
  GroupCut CutGroup(int group, int source_rank, int target_rank, IntRange tokens) const;
  uint64_t ComputeDigest(IntRange tokens) const;

  KvSide source_, target_;
  IntRange tokens_;
  int piece_tokens_ = 0;
  std::vector<LanePlan> lanes_;
  uint64_t digest_ = 0;
};

/// The positions of [tokens) that steps from tokens.end on can still read: all, or the window's, from a unit's start.
IntRange VisibleTokens(const KvGroup& group, IntRange tokens);

}  // namespace baton
