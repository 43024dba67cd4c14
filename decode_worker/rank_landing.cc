// A rank's landing, as rank 0 orders it.
#include <utility>

#include "common/check.h"
#include "common/log.h"
#include "common/status.h"
#include "decode_worker/rank_landings.h"
#include "kvtransfer/rank_codec.h"
#include "worker/ranks/rank_news_line.h"

namespace baton::decode_worker {
namespace {

class RankLanding final : public worker::KvCarrier, private LandingEvents {
 public:
  static absl::StatusOr<std::unique_ptr<worker::KvCarrier>> Make(const worker::CarrierContext& context) {
    std::unique_ptr<RankLanding> out(new RankLanding(context));
    worker::WorkerConfig config = context.config;
    config.landing_port = config.LandingPortOf(context.rank);
    BATON_ASSIGN_OR_RETURN(
        out->landing_, Landing::Create(config, context.pool, context.incarnation, context.clock, context.thread, *out,
                                       context.make, context.kv_trust, context.rank));
    LogInfo("rank {}: takes KV at {}", context.rank, out->landing_->address());
    out->TellLanding();
    return out;
  }

 private:
  explicit RankLanding(const worker::CarrierContext& context) : rank_(context.rank), news_(context.tell) {}

  void Obey(const v1::RankOrder& order) override {
    switch (order.kind_case()) {
      case v1::RankOrder::kSend: return Send(order.send());
      case v1::RankOrder::kCut: return landing_->Cut(order.cut());
      case v1::RankOrder::kRelease: return landing_->Release(order.release());
      case v1::RankOrder::kReplace: landing_->Replace(order.replace()); return TellLanding();
      case v1::RankOrder::kDrop: landing_->Drop(order.drop()); return TellLanding();
      case v1::RankOrder::kTick: return Tick();
      default: LogError("rank {}: an order that is no landing's", rank_);
    }
  }

  void TellLanding() {
    v1::RankNews news;
    news.mutable_landing()->set_address(landing_->address());
    news.mutable_landing()->set_kind(landing_->kind());
    news_.Tell(news);
  }

  void Send(const v1::RankOrder::Send& order) {
    const absl::StatusOr<LaneMessage> message = DecodeLaneMessage(order.message());
    BATON_CHECK(message.ok() && std::holds_alternative<ToPrefill>(*message), message.status().ToString());
    landing_->Send(order.peer(), std::get<ToPrefill>(*message));
  }

  void Work(const SlotOrder& order, absl::StatusOr<SlotWork> work) override {
    if (!work.ok()) {
      LogError("rank {}: a slot cannot be placed: {}", rank_, View(work.status().message()));
      return OnScattered({order.lane, order.slot, false});
    }
    landing_->Place({work->lane, work->slot, std::move(work->segments), std::move(work->plan),
                     std::make_shared<const KvBlockTables>(std::move(work->tables)), work->tell, work->may_wait});
  }

  void Tick() {
    v1::RankNews news;
    *news.mutable_figures() = EncodeFigures(landing_->Figures());
    news_.Tell(news);
  }

  void Tell(WriterId writer, const LaneMessage& message, FenceKind fence) {
    v1::RankNews news;
    news.mutable_from_peer()->set_peer(writer);
    news.mutable_from_peer()->set_message(EncodeLaneMessage(message));
    news.mutable_from_peer()->set_fence(static_cast<uint32_t>(fence));
    news_.Tell(news);
  }
  void OnHello(WriterId writer, LaneHello hello) override { Tell(writer, std::move(hello), landing_->FenceOf(writer)); }
  void OnLane(WriterId writer, ToDecode message) override {
    if (auto* full = std::get_if<SlotFull>(&message)) return news_.Tell(SlotHeard{writer, std::move(*full)});
    Tell(writer, std::move(message), {});
  }
  void OnScattered(const decode::Scattered& placed) override {
    SlotWorked worked{.lane = placed.lane, .slot = placed.slot, .told = placed.told};
    if (!placed.digest_ok) worked.status = absl::DataLossError("not verified");
    if (placed.may_wait && placed.digest_ok) return news_.Keep(std::move(worked));
    news_.Tell(worked);
  }
  void OnWriterLost(WriterId writer) override {
    v1::RankNews news;
    news.set_lost(writer);
    news_.Tell(news);
  }
  void OnWriterFenced(WriterId writer) override {
    v1::RankNews news;
    news.set_fenced(writer);
    news_.Tell(news);
  }

  const int rank_;
  worker::RankNewsLine news_;
  std::unique_ptr<Landing> landing_;  ///< last: it calls back
};

}  // namespace

absl::StatusOr<std::unique_ptr<worker::KvCarrier>> MakeRankLanding(const worker::CarrierContext& context) {
  return RankLanding::Make(context);
}

}  // namespace baton::decode_worker
