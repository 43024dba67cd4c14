// A rank's sender, as rank 0 orders it.
#include <utility>

#include "common/check.h"
#include "common/log.h"
#include "common/status.h"
#include "kvtransfer/rank_codec.h"
#include "kvtransfer/transports/transports.h"
#include "prefill_worker/rank_senders.h"
#include "worker/ranks/rank_news_line.h"

namespace baton::prefill_worker {
namespace {

class RankSender final : public worker::KvCarrier, private SenderEvents {
 public:
  RankSender(const worker::CarrierContext& context, DialOptions dial, size_t slot_bytes)
      : rank_(context.rank),
        news_(context.tell),
        sender_(std::move(dial), slot_bytes, context.pool,
                LaneHello{.protocol = context.kv_protocol,
                          .incarnation = context.incarnation,
                          .model_digest = context.model_digest,
                          .numerics_id = context.numerics_id,
                          .side = context.side},
                context.clock, context.thread, static_cast<SenderEvents&>(*this)) {}

 private:
  void Obey(const v1::RankOrder& order) override {
    switch (order.kind_case()) {
      case v1::RankOrder::kConnect: return sender_.Connect(order.connect().peer(), order.connect().landing_address());
      case v1::RankOrder::kSend: return Send(order.send());
      case v1::RankOrder::kFlush: return sender_.Flush(order.flush().peer(), DecodeLaneKey(order.flush().lane()));
      case v1::RankOrder::kCut: return sender_.Cut(order.cut());
      case v1::RankOrder::kTick: return Tick();
      default: LogError("rank {}: an order that is no sender's", rank_);
    }
  }

  void Send(const v1::RankOrder::Send& order) {
    const absl::StatusOr<LaneMessage> message = DecodeLaneMessage(order.message());
    BATON_CHECK(message.ok() && std::holds_alternative<ToDecode>(*message), message.status().ToString());
    sender_.Send(order.peer(), std::get<ToDecode>(*message));
  }

  void Work(const SlotOrder& order, absl::StatusOr<SlotWork> work) override {
    if (work.ok() && work->plan->lanes()[work->lane.lane].source_rank != rank_)
      work = absl::InternalError(StrCat("a lane of rank ", work->plan->lanes()[work->lane.lane].source_rank));
    if (!work.ok())
      return TellWorked({order.peer, order.lane, order.slot, absl::DataLossError(work.status().message())});
    sender_.Write({work->peer, work->lane, work->slot, std::move(work->segments), std::move(work->plan),
                   std::move(work->tables), work->tell, work->may_wait});
  }

  void Tick() {
    sender_.Tick();
    v1::RankNews news;
    *news.mutable_figures() = EncodeFigures(sender_.Figures());
    news_.Tell(news);
  }

  void TellWorked(const prefill::Written& written) {
    SlotWorked worked{written.peer, written.lane, written.slot, written.status, written.told};
    if (written.may_wait && written.told) return news_.Keep(std::move(worked));  // its answer will be told
    news_.Tell(worked);
  }

  void TellFlushed(prefill::PeerId peer, const LaneKey& lane, bool drained, bool ok) {
    v1::RankNews news;
    v1::RankNews::Flushed& flushed = *news.mutable_flushed();
    flushed.set_peer(peer);
    *flushed.mutable_lane() = EncodeLaneKey(lane);
    flushed.set_drained(drained);
    flushed.set_ok(ok);
    if (drained) return news_.Keep(std::move(news));  // the flush ends soon
    news_.Tell(news);
  }

  void OnPush(const prefill::Event& event) override {
    v1::RankNews news;
    if (const auto* heard = std::get_if<prefill::FromDecode>(&event)) {
      if (const auto* free = std::get_if<SlotFree>(&heard->message)) return news_.Tell(SlotHeard{heard->peer, *free});
      news.mutable_from_peer()->set_peer(heard->peer);
      news.mutable_from_peer()->set_message(EncodeLaneMessage(heard->message));
      news_.Tell(news);
    } else if (const auto* written = std::get_if<prefill::Written>(&event)) {
      TellWorked(*written);
    } else if (const auto* drained = std::get_if<prefill::Drained>(&event)) {
      TellFlushed(drained->peer, drained->lane, true, false);
    } else if (const auto* flushed = std::get_if<prefill::Flushed>(&event)) {
      TellFlushed(flushed->peer, flushed->lane, false, flushed->ok);
    } else if (const auto* lost = std::get_if<prefill::PeerLost>(&event)) {
      news.set_lost(lost->peer);
      news.set_why(lost->why);
      news_.Tell(news);
    }
  }

  const int rank_;
  worker::RankNewsLine news_;
  Sender sender_;  ///< last: it calls back
};

}  // namespace

absl::StatusOr<std::unique_ptr<worker::KvCarrier>> MakeRankSender(const worker::CarrierContext& context) {
  const worker::WorkerConfig& config = context.config;
  const auto slot_bytes = static_cast<size_t>(config.LandingSlotBytes());
  if (context.make) {
    DialOptions dial{.host = config.host, .kinds = {"sim"}, .make = context.make, .self_test = false};
    return std::make_unique<RankSender>(context, std::move(dial), slot_bytes);
  }
  BATON_ASSIGN_OR_RETURN(std::vector<std::string> kinds,
                         TransportKinds(config.transport, config.require_rdma, config.kv_by_ucx()));
  DialOptions dial{config.host, std::move(kinds), config.test_kv_fault_rate, config.test_failing_transport};
  dial.trust = context.kv_trust;
  return std::make_unique<RankSender>(context, std::move(dial), slot_bytes);
}

}  // namespace baton::prefill_worker
