#include "prefill_worker/rank_senders.h"

#include <utility>

#include "common/log.h"
#include "common/status.h"
#include "kvtransfer/rank_codec.h"
#include "kvtransfer/rank_numbers.h"

namespace baton::prefill_worker {

RankSenders::RankSenders(Sender& own, worker::RankLines& lines, SenderEvents& events)
    : own_(own), events_(events), ranks_(lines, [this](int, const RankNews& news) { OnNews(news); }) {}

void RankSenders::Connect(prefill::PeerId peer, const std::string& addresses) {
  if (RankOf(peer) == 0) return own_.Connect(peer, addresses);
  v1::RankOrder order;
  order.mutable_connect()->set_peer(peer);
  order.mutable_connect()->set_landing_address(addresses);
  ranks_.Send(RankOf(peer), order);
}

void RankSenders::Send(prefill::PeerId peer, const ToDecode& message) {
  if (RankOf(peer) == 0) return own_.Send(peer, message);
  v1::RankOrder order;
  order.mutable_send()->set_peer(peer);
  order.mutable_send()->set_message(EncodeLaneMessage(message));
  ranks_.Send(RankOf(peer), order);
}

void RankSenders::Write(WriteOrder order) {
  const int rank = RankOf(order.peer);
  order.tell = true;
  if (rank == 0) return own_.Write(std::move(order));
  ranks_.SendWork(rank,
                  {.peer = order.peer,
                   .lane = order.lane,
                   .slot = order.slot,
                   .segments = std::move(order.segments),
                   .plan = std::move(order.plan),
                   .tables = std::move(order.tables),
                   .tell = order.tell,
                   .may_wait = order.may_wait},
                  TransferEnd::kSource);
}

void RankSenders::Flush(prefill::PeerId peer, const LaneKey& lane) {
  if (RankOf(peer) == 0) return own_.Flush(peer, lane);
  v1::RankOrder order;
  order.mutable_flush()->set_peer(peer);
  *order.mutable_flush()->mutable_lane() = EncodeLaneKey(lane);
  ranks_.Send(RankOf(peer), order);
}

void RankSenders::Cut(prefill::PeerId peer) {
  if (RankOf(peer) == 0) return own_.Cut(peer);
  v1::RankOrder order;
  order.set_cut(peer);
  ranks_.Send(RankOf(peer), order);
}

void RankSenders::Tick() {
  own_.Tick();
  ranks_.Tick();
}

void RankSenders::OnNews(const RankNews& news) {
  if (const auto* worked = std::get_if<SlotWorked>(&news)) {
    events_.OnPush(prefill::Written{worked->peer, worked->lane, worked->slot, worked->status, worked->told});
  } else if (const auto* heard = std::get_if<SlotHeard>(&news)) {
    if (const auto* free = std::get_if<SlotFree>(&heard->said)) events_.OnPush(prefill::FromDecode{heard->peer, *free});
  } else {
    OnOtherNews(std::get<v1::RankNews>(news));
  }
}

void RankSenders::OnOtherNews(const v1::RankNews& news) {
  if (news.has_from_peer()) {
    const absl::StatusOr<LaneMessage> message = DecodeLaneMessage(news.from_peer().message());
    if (message.ok() && std::holds_alternative<ToPrefill>(*message))
      events_.OnPush(prefill::FromDecode{news.from_peer().peer(), std::get<ToPrefill>(*message)});
  } else if (news.has_flushed()) {
    const v1::RankNews::Flushed& flushed = news.flushed();
    const LaneKey lane = DecodeLaneKey(flushed.lane());
    if (flushed.drained()) return events_.OnPush(prefill::Drained{flushed.peer(), lane});
    events_.OnPush(prefill::Flushed{flushed.peer(), lane, flushed.ok()});
  } else if (news.kind_case() == v1::RankNews::kLost) {
    events_.OnPush(prefill::PeerLost{news.lost(), news.why()});
  }
}

}  // namespace baton::prefill_worker
