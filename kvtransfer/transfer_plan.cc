#include "kvtransfer/transfer_plan.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/status.h"

namespace baton {
namespace {

/// Numbers that are hashed into the plan's digest, in one order on both sides.
void Append(std::vector<int64_t>& words, const KvSide& side) {
  words.push_back(side.tensor_parallel_size);
  words.push_back(side.stages());
  words.insert(words.end(), side.stage_layers.begin(), side.stage_layers.end());
  for (const KvGroup& group : side.layout.groups) {
    words.insert(words.end(), {static_cast<int64_t>(group.kind), group.window_tokens, group.tokens_per_block,
                               static_cast<int64_t>(group.layers.size()), static_cast<int64_t>(group.planes.size())});
    words.insert(words.end(), group.layers.begin(), group.layers.end());
    for (const KvPlane& plane : group.planes) {
      words.insert(words.end(),
                   {static_cast<int64_t>(plane.name), static_cast<int64_t>(plane.dtype), plane.heads, plane.dim});
    }
  }
}

/// Refuses plans whose making or whose counts would be out of bounds, whatever the sides are.
absl::Status CheckSize(const KvSide& source, const KvSide& target, IntRange tokens, int piece_tokens) {
  const int64_t pairs = int64_t{source.ranks()} * target.ranks();
  if (pairs > kMaxRankPairs) {
    return absl::InvalidArgumentError(StrCat("a transfer from ", source.ranks(), " ranks to ", target.ranks(),
                                             ": at most ", kMaxRankPairs, " pairs"));
  }
  int64_t layers = 0;
  for (const KvGroup& group : source.layout.groups) layers += static_cast<int64_t>(group.layers.size());
  if (pairs * layers > kMaxPairLayers) {
    return absl::InvalidArgumentError(StrCat("a transfer of ", layers, " layers between ", pairs,
                                             " pairs of ranks: at most ", kMaxPairLayers, " of both multiplied"));
  }
  const int64_t segments = (int64_t{tokens.size()} / piece_tokens + 2) * layers;
  if (segments > kMaxSegments) {
    return absl::InvalidArgumentError(StrCat("a transfer of ", layers, " layers of ", tokens.size(),
                                             " tokens in pieces of ", piece_tokens, ": ", segments,
                                             " segments, at most ", kMaxSegments));
  }
  return absl::OkStatus();
}

}  // namespace

IntRange VisibleTokens(const KvGroup& group, IntRange tokens) {
  if (group.kind != KvGroupKind::kWindow) return tokens;
  const int first = std::max(0, tokens.end - group.window_tokens + 1) / kUnitTokens * kUnitTokens;
  return {std::max(tokens.begin, first), tokens.end};
}

absl::StatusOr<TransferPlan> TransferPlan::Make(KvSide source, KvSide target, IntRange tokens, int piece_tokens) {
  BATON_RETURN_IF_ERROR(CheckSide(source));
  BATON_RETURN_IF_ERROR(CheckSide(target));
  BATON_RETURN_IF_ERROR(CheckSameMeaning(source.layout, target.layout));
  if (source.stage_layers.back() != target.stage_layers.back()) {
    return absl::InvalidArgumentError(
        StrCat("layers: source ", source.stage_layers.back(), ", target ", target.stage_layers.back()));
  }
  if (piece_tokens <= 0 || piece_tokens % kUnitTokens != 0) {
    return absl::InvalidArgumentError(
        StrCat("a piece of ", piece_tokens, " tokens is not a multiple of ", kUnitTokens));
  }
  if (tokens.begin < 0 || tokens.end < tokens.begin) {
    return absl::InvalidArgumentError(StrCat("tokens [", tokens.begin, ", ", tokens.end, ") are no range"));
  }
  BATON_RETURN_IF_ERROR(CheckSize(source, target, tokens, piece_tokens));
  TransferPlan plan(std::move(source), std::move(target), tokens);
  plan.piece_tokens_ = piece_tokens;
  for (int s = 0; s < plan.source_.ranks(); ++s) {
    for (int t = 0; t < plan.target_.ranks(); ++t) plan.AddLane(s, t, tokens);
  }
  plan.digest_ = plan.ComputeDigest(tokens);
  return plan;
}

void TransferPlan::AddLane(int source_rank, int target_rank, IntRange tokens) {
  LanePlan lane{source_rank, target_rank, {}, 0};
  for (int g = 0; g < static_cast<int>(source_.layout.groups.size()); ++g) {
    GroupCut cut = CutGroup(g, source_rank, target_rank, tokens);
    if (cut.layers.empty() || cut.planes.empty() || cut.tokens.size() == 0) continue;
    cut.first_piece = cut.tokens.begin / piece_tokens_;
    cut.pieces = (cut.tokens.end - 1) / piece_tokens_ + 1 - cut.first_piece;
    cut.first_segment = lane.segments;
    lane.segments += cut.pieces * static_cast<int>(cut.layers.size());
    lane.groups.push_back(std::move(cut));
  }
  if (lane.segments > 0) lanes_.push_back(std::move(lane));
}

GroupCut TransferPlan::CutGroup(int group, int source_rank, int target_rank, IntRange tokens) const {
  const KvGroup& from = source_.layout.groups[static_cast<size_t>(group)];
  GroupCut cut;
  cut.group = group;
  cut.tokens = VisibleTokens(from, tokens);
  const IntRange layers = Intersect(source_.LayersOf(source_rank), target_.LayersOf(target_rank));
  for (int layer : from.layers) {
    if (layer >= layers.begin && layer < layers.end) cut.layers.push_back(layer);
  }
  for (size_t p = 0; p < from.planes.size(); ++p) {
    const KvPlane& plane = from.planes[p];
    // Several source ranks may keep a head: exactly one of them serves each target rank, spread over the targets.
    const int replicas = source_.Replicas(plane);
    if (source_.TpRank(source_rank) % replicas != target_.TpRank(target_rank) % replicas) continue;
    const IntRange have = source_.HeadsOf(source_rank, plane), want = target_.HeadsOf(target_rank, plane);
    const IntRange heads = Intersect(have, want);
    if (heads.size() == 0) continue;
    cut.planes.push_back({static_cast<int>(p), heads, heads.begin - have.begin, heads.begin - want.begin});
  }
  return cut;
}

uint64_t TransferPlan::ComputeDigest(IntRange tokens) const {
  std::vector<int64_t> words = {tokens.begin, tokens.end, piece_tokens_};
  Append(words, source_);
  Append(words, target_);
  return XXH3_64bits(words.data(), words.size() * sizeof(int64_t));
}

Segment TransferPlan::SegmentAt(const LanePlan& lane, int segment) const {
  BATON_CHECK(segment >= 0 && segment < lane.segments, "segment ", segment, " of ", lane.segments);
  size_t g = lane.groups.size() - 1;
  while (segment < lane.groups[g].first_segment) --g;
  const GroupCut& cut = lane.groups[g];
  const int number = segment - cut.first_segment;
  const int piece = cut.first_piece + number % cut.pieces;
  const IntRange tokens = Intersect(cut.tokens, {piece * piece_tokens_, (piece + 1) * piece_tokens_});
  return {&cut, cut.layers[static_cast<size_t>(number / cut.pieces)], tokens};
}

int64_t TransferPlan::SegmentBytes(const LanePlan& lane, int segment) const {
  const Segment s = SegmentAt(lane, segment);
  int64_t bytes = 0;
  for (const PlaneCut& p : s.cut->planes) {
    const KvPlane& plane =
        source_.layout.groups[static_cast<size_t>(s.cut->group)].planes[static_cast<size_t>(p.plane)];
    bytes += plane.BytesPerTokenHead() * p.heads.size() * s.tokens.size();
  }
  return bytes;
}

void TransferPlan::ForEachRun(const LanePlan& lane, int segment, TransferEnd end,
                              const std::function<void(const KvRun&)>& visit) const {
  const Segment s = SegmentAt(lane, segment);
  const bool at_source = end == TransferEnd::kSource;
  const KvSide& side = at_source ? source_ : target_;
  const int rank = at_source ? lane.source_rank : lane.target_rank;
  const auto g = static_cast<size_t>(s.cut->group);
  const int block = side.layout.groups[g].tokens_per_block;
  int64_t plane_bytes = 0;
  for (const PlaneCut& p : s.cut->planes) {
    const KvPlane& plane = source_.layout.groups[g].planes[static_cast<size_t>(p.plane)];
    for (int t = s.tokens.begin; t < s.tokens.end;) {
      const int stop = std::min(s.tokens.end, (t / block + 1) * block);
      KvRun run;
      run.group = s.cut->group;
      run.layer = s.layer;
      run.plane = p.plane;
      run.table_block = t / block;
      run.token_in_block = t % block;
      run.local_head = at_source ? p.source_head : p.target_head;
      run.local_heads = side.HeadsOf(rank, plane).size();
      run.heads = p.heads.size();
      run.tokens = stop - t;
      run.dim = plane.dim;
      run.position = t;
      run.global_head = p.heads.begin;
      run.payload_element = static_cast<int64_t>(t - s.tokens.begin) * run.heads * run.dim;
      run.plane_bytes = plane_bytes;
      visit(run);
      t = stop;
    }
    plane_bytes += plane.BytesPerTokenHead() * p.heads.size() * s.tokens.size();
  }
}

}  // namespace baton
