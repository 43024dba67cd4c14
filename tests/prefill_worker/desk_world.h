// A prefill desk over a real scheduler and push core; of the transfer thread there is a list of what was asked of it.
// One leg of 40 prompt tokens in two chunks, one lane, a segment for each chunk.
#pragma once

#include <algorithm>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "prefill_worker/prefill_desk.h"
#include "sim/stepped_engine.h"
#include "tests/worker/hand_loop.h"
#include "worker/transfer/kv_pool_view.h"

namespace baton::prefill_worker {

class HarnessClock final : public Clock {
 public:
  explicit HarnessClock(const engine::SteppedEngine& harness) : harness_(harness) {}
  TimePoint Now() const override { return harness_.now; }

 private:
  const engine::SteppedEngine& harness_;
};

/// Writes down, in one word each, what it is asked for.
class KeepingSender final : public SenderControl {
 public:
  void Connect(prefill::PeerId, const std::string&) override { log += "Dial "; }
  void Send(prefill::PeerId, const ToDecode& message) override { log += std::visit(*this, message) + " "; }
  void Write(WriteOrder order) override {
    log += "Write" + std::to_string(order.segments.at(0)) + " ", writes.push_back(std::move(order));
  }
  void Flush(prefill::PeerId, const LaneKey&) override { log += "Flush "; }
  void Cut(prefill::PeerId) override { log += "Cut "; }

  std::string operator()(const OpenLane&) const { return "Open!"; }
  std::string operator()(const SlotFull& m) const { return "Full" + std::to_string(m.segments.at(0)); }
  std::string operator()(const LaneDone&) const { return "Done!"; }
  std::string operator()(const LaneClosed& m) const { return m.flushed ? "Closed!" : "Dirty!"; }

  std::string log;
  std::vector<WriteOrder> writes;
};

/// What a leg's caller is told.
class KeepingEvents final : public JobEvents {
 public:
  void OnPromptScores(const std::vector<kernels::SampleResult>& scores) override {
    log += "Scores" + std::to_string(scores.size()) + " ";
  }
  void OnEnd(const absl::Status& status, bool no_room, const std::vector<engine::SequenceOutput>& outputs) override {
    log += no_room ? "NoRoom " : "Answer(" + std::string(absl::StatusCodeToString(status.code())) + ") ";
    firsts = outputs;
    last = status;
  }
  std::string log;
  absl::Status last;
  std::vector<engine::SequenceOutput> firsts;
};

class JobPolicy final : public engine::RolePolicy {
 public:
  bool HoldAfterFirstToken(engine::RequestKey key) const override { return PrefillDesk::IsJob(key); }
  bool HandBackPreempted(engine::RequestKey key, int32_t) const override { return PrefillDesk::IsJob(key); }
};

inline engine::SteppedEngineOptions JobOptions() {
  engine::SteppedEngineOptions o;
  o.scheduler.max_model_len = 300;
  o.scheduler.max_step_ms = 0;
  o.scheduler.max_num_batched_tokens = 32;
  return o;
}

class DeskWorld {
 public:
  static constexpr int kPrompt = 40;
  const prefill::JobKey key{"r", 0, 1};
  const LaneKey lane{9, 1, 0};

  explicit DeskWorld(engine::SteppedEngineOptions options = JobOptions())
      : h(std::move(options), &policy),
        clock(h),
        desk({}, worker::SideOf(h.fake().kv_layout()), 1 << 20, sender, loop, clock) {
    desk.Use(h.scheduler());
    desk.Tick();
  }
  ~DeskWorld() { desk.LetGo(); }

  JobOrder MakeOrder(int32_t max_tokens = 4, int32_t n = 1) {
    JobOrder order{.key = key, .landing_address = "tcp:127.0.0.1:1", .ticket = 9};
    order.request = engine::MakeRequest(0, engine::RandomTokens(kPrompt, kPrompt), max_tokens);
    order.request.sampling.ignore_eos = true;
    order.request.sampling.n = n;
    order.target = worker::SideOf(h.fake().kv_layout());
    order.piece_tokens = 32;
    order.slot_bytes = 800;  // one segment of 32 tokens, not both
    order.expiry = std::chrono::seconds(10);
    order.lease = lease;
    return order;
  }
  void Begin(JobOrder order) { desk.Begin(std::move(order), caller); }
  void Begin() { Begin(MakeOrder()); }
  void Hear(ToPrefill message) { desk.Handle(prefill::FromDecode{1, std::move(message)}); }
  void Bound() { Hear(LaneBound{lane, {{0, 1}, {1, 1}}}); }
  void Written(uint32_t slot, const absl::Status& status = {}) {
    desk.Handle(prefill::Written{1, lane, {slot, 1}, status});
  }
  void Flushed(bool ok = true) { desk.Handle(prefill::Flushed{1, lane, ok}); }

  /// Time goes by, and this side listens. Of what it repeats, the sender's log keeps the first.
  void Listen(Duration time) {
    std::string all = sender.log;
    for (const TimePoint end = h.now + time; h.now < end;) {
      h.now += std::min<Duration>(OwnTime::kTick, end - h.now);
      sender.log.clear();
      desk.Tick();
      std::istringstream words(sender.log);
      const std::string before = all;
      for (std::string word; words >> word;) {
        if ((" " + before).find(" " + word + " ") == std::string::npos) all += word + " ";
      }
    }
    sender.log = all;
  }
  /// Time goes by while this side is stopped.
  void StandStill(Duration time) { h.now += time, desk.Tick(); }

  /// A step as the engine runs it: every layer is reported before the step is committed.
  bool Step() {
    engine::StepPlan plan = h.scheduler().PlanStep(h.now);
    desk.OnOutputs(h.scheduler().TakeOutputs());
    if (plan.empty()) return false;
    const auto result = h.executor().Execute(plan);
    BATON_CHECK(result.ok());
    for (const KvGroup& group : h.memory().layout().groups) {
      for (int layer : group.layers) {
        LayerProgress progress{layer, {}};
        for (const engine::SequenceStep& step : plan.sequences) {
          if (step.num_tokens > 0)
            progress.rows.push_back({step.request_key, step.context, step.context + step.num_tokens});
        }
        desk.OnLayer(progress);
      }
    }
    h.now += std::chrono::milliseconds(1);
    desk.OnOutputs(h.scheduler().Commit(plan, *result, h.now));
    return true;
  }
  void TakeOutputs() { desk.OnOutputs(h.scheduler().TakeOutputs()); }
  /// The leak gauge.
  void CheckOwners() {
    h.scheduler().CheckInvariants();
    for (int32_t g = 0; g < h.cache().num_groups(); ++g) {
      const int64_t known = h.scheduler().OwnedBlocks(g) + desk.OwnedBlocks(g),
                    owners = h.cache().pool(g).total_owners();
      BATON_CHECK(known == owners, "group ", g, ": ", owners, " owners, ", known, " known");
    }
  }
  int32_t used() const { return h.cache().pool(0).used_blocks(); }

  JobPolicy policy;
  mutable engine::SteppedEngine h;
  HarnessClock clock;
  worker::InlineLoop loop;
  KeepingSender sender;
  PrefillDesk desk;
  std::shared_ptr<KeepingEvents> caller = std::make_shared<KeepingEvents>();
  Duration lease{};
};

}  // namespace baton::prefill_worker
