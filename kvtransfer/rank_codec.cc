#include "kvtransfer/rank_codec.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/status.h"
#include "kvtransfer/layout_codec.h"

namespace baton {
namespace {

constexpr size_t kShelf = 64;
constexpr uint32_t kMostTokens = 1 << 24;

void EncodeSide(const KvSide& side, v1::KvSide& out) {
  *out.mutable_layout() = EncodeLayout(side.layout);
  out.set_tensor_parallel_size(static_cast<uint32_t>(side.tensor_parallel_size));
  for (const int layer : side.stage_layers) out.add_stage_layers(static_cast<uint32_t>(layer));
}

absl::StatusOr<KvSide> DecodeSide(const v1::KvSide& in) {
  KvSide side;
  BATON_ASSIGN_OR_RETURN(side.layout, DecodeLayout(in.layout()));
  side.tensor_parallel_size = static_cast<int>(in.tensor_parallel_size());
  side.stage_layers.assign(in.stage_layers().begin(), in.stage_layers().end());
  return side;
}

/// Entries of a table that hold all positions of a plan, in the blocks of either side.
uint64_t EntriesOf(const TransferPlan& plan, size_t group) {
  const int block = std::min(plan.source().layout.groups[group].tokens_per_block,
                             plan.target().layout.groups[group].tokens_per_block);
  return static_cast<uint64_t>(plan.tokens().end / block) + 1;
}

/// By group: the indices of the table that the segments lie in.
std::map<int, IntRange> BlocksOf(const SlotWork& work, TransferEnd end) {
  const LanePlan& lane = work.plan->lanes()[work.lane.lane];
  const KvSide& side = end == TransferEnd::kSource ? work.plan->source() : work.plan->target();
  std::map<int, IntRange> out;
  for (const uint32_t segment : work.segments) {
    const Segment s = work.plan->SegmentAt(lane, static_cast<int>(segment));
    const int block = side.layout.groups[static_cast<size_t>(s.cut->group)].tokens_per_block;
    const IntRange blocks{s.tokens.begin / block, (s.tokens.end - 1) / block + 1};
    const auto [range, fresh] = out.try_emplace(s.cut->group, blocks);
    if (!fresh) range->second = {std::min(range->second.begin, blocks.begin), std::max(range->second.end, blocks.end)};
  }
  return out;
}

}  // namespace

bool ToldPlans::Knows(uint64_t digest) {
  const auto known = std::ranges::find(digests_, digest);
  if (known != digests_.end()) {
    std::rotate(digests_.begin(), known, known + 1);
    return true;
  }
  if (digests_.size() == kShelf) digests_.pop_back();
  digests_.push_front(digest);
  return false;
}

v1::TransferTerms EncodeTerms(const TransferPlan& plan) {
  v1::TransferTerms out;
  EncodeSide(plan.source(), *out.mutable_source());
  EncodeSide(plan.target(), *out.mutable_target());
  out.set_first_token(static_cast<uint32_t>(plan.tokens().begin));
  out.set_end_token(static_cast<uint32_t>(plan.tokens().end));
  out.set_piece_tokens(static_cast<uint32_t>(plan.piece_tokens()));
  out.set_digest(plan.digest());
  return out;
}

SlotOrder EncodeSlotWork(const SlotWork& work, TransferEnd end) {
  SlotOrder out{.peer = work.peer,
                .lane = work.lane,
                .slot = work.slot,
                .plan = work.plan->digest(),
                .tell = work.tell,
                .may_wait = work.may_wait,
                .segments = work.segments};
  for (const auto& [group, wanted] : BlocksOf(work, end)) {
    const std::vector<int32_t>& table = work.tables[static_cast<size_t>(group)];
    const IntRange have = Intersect(wanted, {0, static_cast<int>(table.size())});
    if (have.size() == 0) continue;
    out.tables.push_back({static_cast<uint32_t>(group),
                          static_cast<uint32_t>(have.begin),
                          {table.begin() + have.begin, table.begin() + have.end}});
  }
  return out;
}

absl::Status PlanShelf::Add(const v1::TransferTerms& terms) {
  if (terms.end_token() > kMostTokens || terms.piece_tokens() > kMostTokens)
    return absl::InvalidArgumentError(
        StrCat("a transfer of ", terms.end_token(), " tokens, a piece of ", terms.piece_tokens()));
  BATON_ASSIGN_OR_RETURN(KvSide source, DecodeSide(terms.source()));
  BATON_ASSIGN_OR_RETURN(KvSide target, DecodeSide(terms.target()));
  const IntRange tokens{static_cast<int>(terms.first_token()), static_cast<int>(terms.end_token())};
  BATON_ASSIGN_OR_RETURN(TransferPlan plan, TransferPlan::Make(std::move(source), std::move(target), tokens,
                                                               static_cast<int>(terms.piece_tokens())));
  if (plan.digest() != terms.digest())
    return absl::InvalidArgumentError("the transfer plan differs from rank 0's: another version of this program?");
  if (plans_.size() == kShelf) plans_.pop_back();
  plans_.push_front(std::make_shared<const TransferPlan>(std::move(plan)));
  return absl::OkStatus();
}

std::shared_ptr<const TransferPlan> PlanShelf::Find(uint64_t digest) {
  const auto known = std::ranges::find_if(plans_, [&](const auto& plan) { return plan->digest() == digest; });
  if (known == plans_.end()) return nullptr;
  std::rotate(plans_.begin(), known, known + 1);
  return plans_.front();
}

absl::StatusOr<SlotWork> DecodeSlotWork(const SlotOrder& in, PlanShelf& plans) {
  SlotWork work{.peer = in.peer, .lane = in.lane, .slot = in.slot, .tell = in.tell, .may_wait = in.may_wait};
  work.plan = plans.Find(in.plan);
  if (work.plan == nullptr) return absl::InvalidArgumentError("a transfer plan that rank 0 has not told");
  if (work.lane.lane >= work.plan->lanes().size())
    return absl::InvalidArgumentError(StrCat("lane ", work.lane.lane, " of ", work.plan->lanes().size()));
  const int segments = work.plan->lanes()[work.lane.lane].segments;
  for (const uint32_t segment : in.segments) {
    if (segment >= static_cast<uint32_t>(segments))
      return absl::InvalidArgumentError(StrCat("segment ", segment, " of ", segments));
  }
  work.segments = in.segments;
  work.tables.resize(work.plan->source().layout.groups.size());
  for (const BlockRun& run : in.tables) {
    if (run.group >= work.tables.size())
      return absl::InvalidArgumentError(StrCat("blocks of group ", run.group, " of ", work.tables.size()));
    const uint64_t entries = EntriesOf(*work.plan, run.group), end = uint64_t{run.first} + run.blocks.size();
    if (end > entries)
      return absl::InvalidArgumentError(
          StrCat("blocks up to entry ", end, " of a table of ", entries, " entries, of group ", run.group));
    std::vector<int32_t>& table = work.tables[run.group];
    table.reserve(end);
    table.assign(run.first, -1);
    table.insert(table.end(), run.blocks.begin(), run.blocks.end());
  }
  return work;
}

v1::RankNews::Figures EncodeFigures(const RankFigures& figures) {
  v1::RankNews::Figures out;
  out.set_bytes(figures.bytes);
  out.set_slots(figures.slots);
  out.set_nanoseconds(figures.nanoseconds);
  out.set_waiting(figures.waiting);
  out.set_peers_lost(figures.peers_lost);
  out.set_refused(figures.refused);
  out.set_digest_mismatches(figures.digest_mismatches);
  out.set_unreadable_slots(figures.unreadable_slots);
  out.set_self_tests_failed(figures.self_tests_failed);
  for (const RankWay& way : figures.ways) {
    v1::RankNews::PeerWay& one = *out.add_ways();
    one.set_incarnation(way.incarnation);
    one.set_transport(way.transport);
    one.set_path(way.path);
    one.set_gigabytes_per_second(way.gigabytes_per_second);
  }
  return out;
}

RankFigures DecodeFigures(const v1::RankNews::Figures& in) {
  RankFigures out{.bytes = in.bytes(),
                  .slots = in.slots(),
                  .nanoseconds = in.nanoseconds(),
                  .waiting = in.waiting(),
                  .peers_lost = in.peers_lost(),
                  .refused = in.refused(),
                  .digest_mismatches = in.digest_mismatches(),
                  .unreadable_slots = in.unreadable_slots(),
                  .self_tests_failed = in.self_tests_failed()};
  for (const v1::RankNews::PeerWay& way : in.ways())
    out.ways.push_back({way.incarnation(), way.transport(), way.path(), way.gigabytes_per_second()});
  return out;
}

v1::LaneKey EncodeLaneKey(const LaneKey& key) {
  v1::LaneKey out;
  out.set_ticket(key.ticket);
  out.set_epoch(key.epoch);
  out.set_lane(key.lane);
  return out;
}

LaneKey DecodeLaneKey(const v1::LaneKey& key) { return {key.ticket(), key.epoch(), key.lane()}; }

v1::Error EncodeRankError(const absl::Status& status) {
  v1::Error out;
  out.set_code(static_cast<int>(status.code()));
  out.set_message(std::string(View(status.message())));
  return out;
}

absl::Status DecodeRankError(const v1::Error& error) {
  return absl::Status(static_cast<absl::StatusCode>(error.code()), error.message());
}

}  // namespace baton
