#include "decode_worker/rank_landings.h"

#include <utility>

#include "common/status.h"
#include "kvtransfer/rank_codec.h"
#include "kvtransfer/rank_numbers.h"

namespace baton::decode_worker {

RankLandings::RankLandings(Landing& own, const KvSide& side, worker::RankLines& lines, LandingEvents& events)
    : own_(own),
      events_(events),
      addresses_{side.tensor_parallel_size, side.stage_layers,
                 std::vector<std::string>(static_cast<size_t>(lines.ranks()))},
      ranks_(lines, [this](int rank, const RankNews& news) { OnNews(rank, news); }) {}

void RankLandings::Send(WriterId writer, const ToPrefill& message) {
  if (RankOf(writer) == 0) return own_.Send(writer, message);
  v1::RankOrder order;
  order.mutable_send()->set_peer(writer);
  order.mutable_send()->set_message(EncodeLaneMessage(message));
  ranks_.Send(RankOf(writer), order);
}

void RankLandings::Place(const ScatterOrder& order) {
  const int rank = order.plan->lanes()[order.lane.lane].target_rank;
  if (rank == 0) {
    ScatterOrder own = order;
    own.tell = true;
    return own_.Place(own);
  }
  ranks_.SendWork(rank,
                  {.lane = order.lane,
                   .slot = order.slot,
                   .segments = order.wanted,
                   .plan = order.plan,
                   .tables = *order.tables,
                   .tell = true,
                   .may_wait = order.may_wait},
                  TransferEnd::kTarget);
}

void RankLandings::Cut(WriterId writer) {
  if (RankOf(writer) == 0) return own_.Cut(writer);
  v1::RankOrder order;
  order.set_cut(writer);
  ranks_.Send(RankOf(writer), order);
}

void RankLandings::Release(WriterId writer) {
  if (RankOf(writer) == 0) return own_.Release(writer);
  {
    std::lock_guard lock(mutex_);
    fences_.erase(writer);
  }
  v1::RankOrder order;
  order.set_release(writer);
  ranks_.Send(RankOf(writer), order);
}

void RankLandings::Replace(uint32_t memory) {
  if (RankOfMemory(memory) == 0) return own_.Replace(memory);
  v1::RankOrder order;
  order.set_replace(memory);
  ranks_.Send(RankOfMemory(memory), order);
}

void RankLandings::Drop(uint32_t memory) {
  if (RankOfMemory(memory) == 0) return own_.Drop(memory);
  {
    std::lock_guard lock(mutex_);
    std::erase_if(fences_, [memory](const auto& writer) { return MemoryOfWriter(writer.first) == memory; });
  }
  v1::RankOrder order;
  order.set_drop(memory);
  ranks_.Send(RankOfMemory(memory), order);
}

FenceKind RankLandings::FenceOf(WriterId writer) const {
  if (RankOf(writer) == 0) return own_.FenceOf(writer);
  std::lock_guard lock(mutex_);
  const auto known = fences_.find(writer);
  return known == fences_.end() ? FenceKind::kPeerExit : known->second;
}

std::string RankLandings::address() const {
  std::lock_guard lock(mutex_);
  RankAddresses all = addresses_;
  all.ranks[0] = own_.address();
  return all.Pack();
}

void RankLandings::OnNews(int rank, const RankNews& news) {
  if (const auto* worked = std::get_if<SlotWorked>(&news)) {
    events_.OnScattered({worked->lane, worked->slot, worked->status.ok(), worked->told});
  } else if (const auto* heard = std::get_if<SlotHeard>(&news)) {
    if (const auto* full = std::get_if<SlotFull>(&heard->said)) events_.OnLane(heard->peer, *full);
  } else {
    OnOtherNews(rank, std::get<v1::RankNews>(news));
  }
}

void RankLandings::OnOtherNews(int rank, const v1::RankNews& news) {
  switch (news.kind_case()) {
    case v1::RankNews::kFromPeer: return OnPeerMessage(news);
    case v1::RankNews::kLost: return events_.OnWriterLost(news.lost());
    case v1::RankNews::kFenced: {
      std::lock_guard lock(mutex_);
      fences_.erase(news.fenced());
      break;
    }
    case v1::RankNews::kLanding: {
      std::lock_guard lock(mutex_);
      addresses_.ranks.at(static_cast<size_t>(rank)) = news.landing().address();
      return;
    }
    default: return;
  }
  events_.OnWriterFenced(news.fenced());
}

void RankLandings::OnPeerMessage(const v1::RankNews& news) {
  const v1::RankNews::FromPeer& from = news.from_peer();
  absl::StatusOr<LaneMessage> message = DecodeLaneMessage(from.message());
  if (!message.ok()) return;  // the rank has decoded it once
  if (auto* hello = std::get_if<LaneHello>(&*message)) {
    {
      std::lock_guard lock(mutex_);
      fences_[from.peer()] = static_cast<FenceKind>(from.fence());
    }
    return events_.OnHello(from.peer(), std::move(*hello));
  }
  if (auto* lane = std::get_if<ToDecode>(&*message)) events_.OnLane(from.peer(), std::move(*lane));
}

}  // namespace baton::decode_worker
