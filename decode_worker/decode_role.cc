#include "decode_worker/decode_role.h"

#include <algorithm>
#include <iterator>
#include <random>
#include <utility>

#include "common/log.h"
#include "common/status.h"
#include "decode_worker/landing.h"
#include "decode_worker/piece_tokens.h"
#include "decode_worker/rank_landings.h"
#include "decode_worker/ticket_codec.h"
#include "decode_worker/ticket_desk.h"
#include "worker/process/rank_load.h"
#include "worker/transfer/transfer_beat.h"
#include "worker/transfer/transfer_thread.h"
#include "worker/transfer/turn_news.h"

namespace baton::decode_worker {
namespace {

/// Prefill beside decodes gets a quarter of the step, so that running answers go on.
class DecodePolicy final : public engine::RolePolicy {
 public:
  int32_t PrefillBudget(int32_t decode_rows, int32_t budget) const override {
    return decode_rows == 0 ? budget : std::max(std::min(budget, kUnitTokens), budget / 4);
  }
  bool ReleasePins() override { return desk->Shed(); }

  TicketDesk* desk = nullptr;
};

class DecodeRole final : public worker::Role, private LandingEvents {
 public:
  static absl::StatusOr<std::unique_ptr<worker::Role>> Make(const worker::RoleContext& context) {
    const worker::LoadedModel& loaded = context.loaded;
    DeskFacts facts{.side = loaded.side, .incarnation = context.incarnation};
    facts.model_digest = loaded.model->config().digest;
    facts.numerics_id = loaded.numerics_id;
    BATON_ASSIGN_OR_RETURN(facts.piece_tokens, PieceTokens(facts.side.layout, context.config.LandingSlotBytes()));
    std::unique_ptr<DecodeRole> role(new DecodeRole(context.clock));
    BATON_ASSIGN_OR_RETURN(role->landing_, Landing::Create(context.config, loaded.PoolHere(), context.incarnation,
                                                           context.clock, role->thread_, *role, {}, context.kv_trust));
    if (loaded.lines != nullptr) {
      role->landings_ = std::make_unique<RankLandings>(*role->landing_, loaded.side, *loaded.lines,
                                                       static_cast<LandingEvents&>(*role));
      BATON_RETURN_IF_ERROR(worker::BeginLines(context));
      role->thread_.Watch(&loaded.lines->transport());
    }
    facts.handoff.ring_slots.assign(static_cast<size_t>(loaded.side.ranks()), context.config.landing_slots);
    facts.handoff.max_quarantined_slots = loaded.side.ranks() * std::max(2, context.config.landing_slots / 2);
    // Tickets for as many prompt tokens as may wait in an engine may wait at prefill workers: a ticket binds blocks
    // when its prompt is computed.
    facts.handoff.max_reserved_tokens = loaded.blocks.tokens + context.config.max_waiting_tokens;
    facts.handoff.first_ticket = (uint64_t{std::random_device()()} << 24) + 1;
    role->facts_ = facts;
    role->desk_ = std::make_unique<TicketDesk>(std::move(facts), role->control(), role->thread_, context.clock);
    role->policy_.desk = role->desk_.get();
    LogInfo("worker: takes KV at {}, {} slots of {} bytes", role->landing_->address(), context.config.landing_slots,
            context.config.LandingSlotBytes());
    return role;
  }

  v1::WorkerRole wire_role() const override { return v1::WORKER_ROLE_DECODE; }
  std::string LandingAddress() const override { return landings_ ? landings_->address() : landing_->address(); }
  engine::RolePolicy* policy() override { return &policy_; }
  worker::TicketHost* tickets() override { return desk_.get(); }

  void Start(worker::PostTask post, worker::RelayBook* relay) override {
    post_ = std::move(post);
    desk_->SetRelay(relay);
    post_([this](engine::Scheduler& scheduler, TimePoint) { desk_->Use(scheduler); });
    thread_.AtTurnEnd([this] { news_.Tell(post_); });
    thread_.Start();
  }
  void Drain() override { desk_->Drain(); }
  void Resume() override { desk_->Resume(); }
  bool Idle() const override { return desk_->Idle(); }
  void StopThreads() override { thread_.Stop(); }
  void LetGo() override { desk_->LetGo(); }

  void OnTick(engine::Scheduler&) override {
    desk_->Tick();
    if (landings_ && beat_.Due(clock_.Now())) thread_.Post([this] { landings_->Tick(); });
  }
  void OnRenewal(const v1::Renewal& renewal, const std::string& router) override {
    desk_->Renew(KeyOf(renewal.key(), router), renewal.attach_gen());
  }
  int64_t OwnedBlocks(int32_t group) const override { return desk_->OwnedBlocks(group); }
  void FillLoad(v1::HandoffLoad& load) const override {
    std::vector<RankFigures> ranks = {landing_->Figures()};
    if (landings_) std::ranges::move(landings_->figures(), std::back_inserter(ranks));
    worker::FillRankLoad(ranks, load);
    load.set_transport(landing_->kind());
    FillTicketLoad(desk_->Stats(), desk_->reserves_refused(), load);
  }

  void Reserve(const v1::ReserveRequest& request, const std::string& router,
               std::function<void(v1::ReserveReply)> answer) override {
    post_([this, key = KeyOf(request.key(), router), order = DecodeReserve(request, router),
           grammar = GrammarOf(request), answer = std::move(answer)](engine::Scheduler& scheduler, TimePoint) mutable {
      const decode::ReserveAnswer reserved =
          order.ok() ? desk_->Reserve(*order, std::move(grammar)) : decode::ReserveAnswer{key, order.status()};
      LandingWays ways = landing_->ways();
      ways.address = LandingAddress();
      answer(EncodeReserved(reserved, facts_, ways, scheduler.Load().predicted_wait));
    });
  }

  void RouterLeft(const std::string& session, const std::string& router) override {
    post_([this, session, router](engine::Scheduler&, TimePoint) { desk_->OnRouterLeft(session, router); });
  }

  void Cancel(const v1::CancelRequest& request, const std::string& router,
              std::function<void(v1::CancelReply)> answer) override {
    post_([this, key = KeyOf(request.key(), router), again = request.asks_again(), answer = std::move(answer)](
              engine::Scheduler&, TimePoint) {
      v1::CancelReply reply;
      reply.set_known(desk_->Cancel(key, again));
      answer(std::move(reply));
    });
  }

 private:
  explicit DecodeRole(const Clock& clock) : clock_(clock) {}
  LandingControl& control() {
    if (landings_) return *landings_;
    return *landing_;
  }

  // Transfer thread.
  void OnHello(WriterId writer, LaneHello hello) override {
    news_.Add([this, writer, hello = std::move(hello)]() mutable { desk_->OnHello(writer, std::move(hello)); });
  }
  void OnLane(WriterId writer, ToDecode message) override {
    news_.Add([this, writer, message = std::move(message)]() mutable { desk_->OnLane(writer, std::move(message)); });
  }
  void OnScattered(const decode::Scattered& placed) override {
    news_.Add([this, placed] { desk_->Handle(placed); });
  }
  void OnWriterLost(WriterId writer) override {
    news_.Add([this, writer] { desk_->OnWriterGone(writer, false); });
  }
  void OnWriterFenced(WriterId writer) override {
    news_.Add([this, writer] { desk_->OnWriterGone(writer, true); });
  }

  const Clock& clock_;
  DeskFacts facts_;
  worker::PostTask post_;
  DecodePolicy policy_;
  worker::TransferThread thread_;
  worker::TurnNews news_;
  worker::TransferBeat beat_;
  std::unique_ptr<Landing> landing_;        ///< of the KV that is kept here
  std::unique_ptr<RankLandings> landings_;  ///< where ranks carry their own KV: of all
  std::unique_ptr<TicketDesk> desk_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<worker::Role>> MakeDecodeRole(const worker::RoleContext& context) {
  return DecodeRole::Make(context);
}

}  // namespace baton::decode_worker
