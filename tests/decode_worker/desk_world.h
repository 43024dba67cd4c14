// A ticket desk over a real scheduler, relay book and handoff core; of the transfer thread there is a list of what was
// asked of it. One ticket of 40 prompt tokens, one lane, two segments, two slots granted.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "decode_worker/ticket_desk.h"
#include "tests/worker/hand_loop.h"
#include "tests/worker/relay_fixture.h"
#include "worker/transfer/kv_pool_view.h"

namespace baton::decode_worker {

class HarnessClock final : public Clock {
 public:
  explicit HarnessClock(const engine::SteppedEngine& harness) : harness_(harness) {}
  TimePoint Now() const override { return harness_.now; }

 private:
  const engine::SteppedEngine& harness_;
};

/// Writes down, in one word each, what it is asked for.
class KeepingLanding final : public LandingControl {
 public:
  void Send(WriterId, const ToPrefill& message) override {
    log += std::visit(*this, message) + " ";
    if (const auto* gone = std::get_if<LaneGone>(&message)) why_gone = gone->reason;
    if (const auto* bound = std::get_if<LaneBound>(&message)) grants = bound->grants;
  }
  void Place(const ScatterOrder& order) override { log += "Place ", places.push_back(order); }
  void Cut(WriterId) override { log += "Cut "; }
  void Release(WriterId) override { log += "Release "; }
  FenceKind FenceOf(WriterId) const override { return fence; }
  uint32_t MemoryOf(WriterId) const override { return 0; }
  void Replace(uint32_t) override { log += "Replace "; }
  void Drop(uint32_t) override { log += "Drop "; }

  std::string operator()(const LaneBound&) const { return "Bound"; }
  std::string operator()(const LaneBusy&) const { return "Busy"; }
  std::string operator()(const LaneGone&) const { return "GoneL"; }
  std::string operator()(const SlotFree& m) const { return m.ok ? "Free" : "Again"; }
  std::string operator()(const LaneVerified&) const { return "Verified"; }
  std::string operator()(const LaneClosedAck&) const { return "Ack"; }

  FenceKind fence = FenceKind::kForcedClose;
  std::string log, why_gone;
  std::vector<SlotTurn> grants;
  std::vector<ScatterOrder> places;
};

class ShedPolicy final : public engine::RolePolicy {
 public:
  bool ReleasePins() override { return desk != nullptr && desk->Shed(); }
  TicketDesk* desk = nullptr;
};

class DeskWorld {
 public:
  static constexpr int kPrompt = 40;

  explicit DeskWorld(FenceKind fence = FenceKind::kForcedClose,
                     engine::SteppedEngineOptions options = worker::RelayOptions())
      : h(std::move(options), &policy),
        clock(h),
        desk(Facts(h), landing, loop, clock),
        book({.vocab_size = engine::kFakeVocab}, &desk) {
    landing.fence = fence;
    desk.SetRelay(&book);
    desk.Use(h.scheduler());
    policy.desk = &desk;
    Hello(7), Hello(8);
    desk.Tick();
  }
  ~DeskWorld() { desk.LetGo(); }

  static DeskFacts Facts(engine::SteppedEngine& h) {
    DeskFacts facts{
        .side = worker::SideOf(h.fake().kv_layout()), .piece_tokens = 32, .incarnation = "d1", .model_digest = "model"};
    facts.numerics_id = "n1";
    facts.handoff.ring_slots = {4};
    facts.handoff.max_reserved_tokens = 1000;
    facts.handoff.new_secret = [] { return TicketSecret{}; };  // as Opens that are made by hand have it
    return facts;
  }
  LaneHello MakeHello(const std::string& life = "p1") {
    return {.incarnation = life,
            .model_digest = "model",
            .numerics_id = "n1",
            .side = worker::SideOf(h.fake().kv_layout())};
  }
  void Hello(WriterId writer) { desk.OnHello(writer, MakeHello("p" + std::to_string(writer))); }

  // ---- the router
  decode::ReserveOrder MakeReserve(const std::string& id = "r") const {
    return {{id, 0}, "", engine::RandomTokens(kPrompt, kPrompt), kPrompt, std::chrono::seconds(10), "session", lease};
  }
  decode::ReserveAnswer Reserve(const std::string& id = "r") { return Reserve(MakeReserve(id)); }
  decode::ReserveAnswer Reserve(const decode::ReserveOrder& order) {
    decode::ReserveAnswer answer = desk.Reserve(order);
    log +=
        answer.status.ok() ? "Ticket " : "Nack(" + std::string(absl::StatusCodeToString(answer.status.code())) + ") ";
    return answer;
  }
  v1::Attach MakeAttach(uint64_t gen = 1, uint32_t epoch = 1, TicketId id = 1) const {
    v1::Attach a = worker::MakeAttach("r", gen, kPrompt, 4);
    v1::Ticket ticket;
    ticket.set_id(id);
    ticket.set_incarnation("d1");
    a.set_ticket(ticket.SerializeAsString());
    a.mutable_key()->set_epoch(epoch);
    a.set_position(epoch == 0 ? kPrompt : kPrompt + 1);
    if (epoch == 0) return a;
    a.add_first()->set_token_id(5);
    return a;
  }
  void Attach(const v1::Attach& attach) {
    v1::RelayUp up;
    *up.add_attach() = attach;
    book.OnMessage(sink, up, h.scheduler(), h.now);
  }
  void RelayCancel(uint64_t gen = 1) {
    v1::RelayUp up;
    up.add_cancel()->set_request_id("r");
    up.mutable_cancel(0)->set_attach_gen(gen);
    book.OnMessage(sink, up, h.scheduler(), h.now);
    book.OnOutputs(h.scheduler().TakeOutputs(), 0);
  }

  // ---- the writer
  OpenLane MakeOpen(uint32_t epoch = 1, TicketId id = 1) const {
    const auto plan =
        TransferPlan::Make(worker::SideOf(h.memory().layout()), worker::SideOf(h.memory().layout()), {0, kPrompt}, 32);
    return {{id, epoch, 0}, plan->digest()};
  }
  void Open(WriterId writer = 7, uint32_t epoch = 1, TicketId id = 1) { desk.OnLane(writer, MakeOpen(epoch, id)); }
  /// Segment `s` came into slot `s`, and our pass over it has ended.
  void Fill(uint32_t s, bool ok = true, uint32_t epoch = 1) {
    desk.OnLane(7, SlotFull{{1, epoch, 0}, {s, 1}, {s}});
    desk.Handle(decode::Scattered{{1, epoch, 0}, {s, 1}, ok});
  }
  void Done(uint32_t epoch = 1) { desk.OnLane(7, LaneDone{{1, epoch, 0}, 2}); }
  void Closed(bool flushed = true, uint32_t epoch = 1) { desk.OnLane(7, LaneClosed{{1, epoch, 0}, flushed}); }

  // ---- time
  /// It goes by, and this side listens.
  void Listen(Duration time) {
    for (const TimePoint end = h.now + time; h.now < end;) {
      h.now += std::min<Duration>(OwnTime::kTick, end - h.now);
      desk.Tick(), book.Tick(h.scheduler(), h.now);
    }
  }
  /// It goes by while this side is stopped.
  void StandStill(Duration time) {
    h.now += time;
    desk.Tick(), book.Tick(h.scheduler(), h.now);
  }

  // ---- the engine
  bool Step() {
    engine::StepPlan plan = h.scheduler().PlanStep(h.now);
    book.OnOutputs(h.scheduler().TakeOutputs(), plan.step);
    if (plan.empty()) return false;
    const auto result = h.executor().Execute(plan);
    BATON_CHECK(result.ok());
    h.now += std::chrono::milliseconds(1);
    book.OnOutputs(h.scheduler().Commit(plan, *result, h.now), plan.step);
    return true;
  }
  void RunAll() {
    while (Step()) CheckOwners();
  }
  /// The leak gauge.
  void CheckOwners() {
    h.scheduler().CheckInvariants();
    for (int32_t g = 0; g < h.cache().num_groups(); ++g) {
      const int64_t known = h.scheduler().OwnedBlocks(g) + desk.OwnedBlocks(g),
                    owners = h.cache().pool(g).total_owners();
      BATON_CHECK(known == owners, "group ", g, ": ", owners, " owners, ", known, " known");
    }
  }
  int Requests() {
    const engine::SchedulerLoad load = h.scheduler().Load();
    return load.running_sequences + load.waiting_requests;
  }

  ShedPolicy policy;
  mutable engine::SteppedEngine h;
  HarnessClock clock;
  worker::InlineLoop loop;
  KeepingLanding landing;
  TicketDesk desk;
  worker::RelayBook book;
  std::shared_ptr<worker::KeepingSink> sink = std::make_shared<worker::KeepingSink>();
  std::string log;  ///< answers to the router
  Duration lease{};
};

}  // namespace baton::decode_worker
