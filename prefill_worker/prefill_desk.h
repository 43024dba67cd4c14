// The scheduler thread's half of the prefill side: drives the push core with the engine. A job is one Prefill leg: a
// request of the engine that is held after its first tokens, and the lanes its KV leaves on while it is computed.
// Scheduler thread only; the scheduler is passed in by its owner.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "common/clock.h"
#include "common/expiry_line.h"
#include "common/limited_lines.h"
#include "common/own_time.h"
#include "engine/step/scheduler.h"
#include "prefill_worker/handoff/push.h"
#include "prefill_worker/job_order.h"
#include "prefill_worker/sender_control.h"
#include "worker/transfer/transfer_loop.h"

namespace baton::prefill_worker {

/// The results of a prefill leg, for its caller. On the scheduler thread.
class JobEvents {
 public:
  virtual ~JobEvents() = default;
  virtual void OnPromptScores(const std::vector<kernels::SampleResult>& scores) = 0;
  /// The last call. ok: `outputs` are the first token of each choice. no_room: decode refused to take the KV.
  virtual void OnEnd(const absl::Status& status, bool no_room, const std::vector<engine::SequenceOutput>& outputs) = 0;
};

/// One layer of a running step, as the executor reports it.
struct LayerProgress {
  struct Rows {
    engine::RequestKey request = 0;
    int32_t from = 0, to = 0;  ///< positions whose KV this step writes
  };
  int layer = 0;
  std::vector<Rows> rows;
};

class PrefillDesk {
 public:
  /// The others must outlive it.
  PrefillDesk(prefill::PushOptions options, KvSide side, size_t slot_bytes, SenderControl& sender,
              worker::TransferLoop& thread, const Clock& clock);

  void Use(engine::Scheduler& scheduler) { scheduler_ = &scheduler; }
  /// A leg that is under way, or over within PushOptions::remember, is not begun again: `events` gets the same answer.
  void Begin(JobOrder order, std::shared_ptr<JobEvents> events);
  /// False: unknown, and it will not be started any more.
  bool Cancel(const prefill::JobKey& key);
  /// A router still waits for its answer.
  void Renew(const prefill::JobKey& key);
  /// One who asked is gone: a leg that was not answered and that nobody else asked for is cancelled.
  void OnCallerGone(const prefill::JobKey& key);
  /// Connects to a decode worker that KV may be sent to, before there is any.
  void Meet(const std::string& landing_address);
  void OnLayer(const LayerProgress& progress);
  void OnOutputs(const std::vector<engine::SequenceOutput>& outputs);
  void Handle(const prefill::Event& event);
  void Tick();
  void Drain() { draining_ = true; }
  void Resume() { draining_ = false; }
  bool Idle() const { return jobs_.empty() && core_.Stats().open_lanes == 0; }
  /// Whether `key` is a job of ours, which is held after its first tokens.
  static bool IsJob(engine::RequestKey key) { return key >= kFirstKey; }
  /// The engine's threads have ended.
  void LetGo() { jobs_.clear(); }

  prefill::PushStats Stats() const { return core_.Stats(); }
  size_t jobs() const { return jobs_.size(); }
  /// Whether the leg's prompt is still being computed, or waits to be.
  bool Computing(const prefill::JobKey& key) const;
  int64_t OwnedBlocks(int32_t group) const;
  /// The push core's job of a leg; null: there is none (any more).
  const prefill::PushJob* Pushed(const prefill::JobKey& key) const { return core_.Find(key); }

 private:
  static constexpr engine::RequestKey kFirstKey = engine::RequestKey{1} << 62;  ///< the relay's count from 1
  struct Job {
    prefill::JobKey key;
    JobOrder order;  ///< its request is the scheduler's
    engine::RequestKey request = 0;
    std::vector<std::shared_ptr<JobEvents>> callers;
    int callers_here = 1;
    std::vector<kernels::SampleResult> scores;  ///< of the prompt, for callers that come later
    JobPlan way;
    std::vector<prefill::PeerId> peers;  ///< [lanes]
    TimePoint expires{};
    TimePoint lease_until = TimePoint::max();  ///< own time; until it is answered: what is then left, decode ends
    bool pushing = false;                      ///< the core knows it
    bool answered = false;
    bool computing = true;
    int32_t choices = 1;
    std::vector<std::vector<std::vector<int>>> reported;  ///< [lanes][cuts][layers of the cut] pieces
    std::vector<engine::SequenceOutput> outputs;          ///< one per choice that has its first token
    absl::Status status;                                  ///< answered: the answer
    bool no_room = false;
    engine::SequenceKv pin;  ///< the source, from the first write on: what is gathered must not change hands meanwhile
    std::vector<engine::SequenceKv> earlier_pins;  ///< of blocks that the request has left since, and orders may name
  };

  void StartPushing(Job& job);
  /// The way from a rank of ours to a decode worker's rank, which is dialled where it was not.
  prefill::PeerId PeerAt(int rank, const std::string& address);
  std::vector<prefill::PeerId> PeersOf(const TransferPlan& plan, const RankAddresses& addresses);
  void Report(Job& job, int layer, int32_t computed);
  void EndCompute(Job& job, const absl::Status& status);
  void Answer(Job& job, const absl::Status& status, bool no_room);
  void EraseIfOver(const prefill::JobKey& key);
  void EndLapsed();
  TimePoint Listened() const;
  void Join(Job& job, std::shared_ptr<JobEvents> events);
  void KeepSource(Job& job);
  Job* Find(const prefill::JobKey& key);

  void Do(const prefill::SendToDecode& action);
  void Do(const prefill::WriteSlot& action);
  void Do(const prefill::FlushLane& action);
  void Do(const prefill::CutPeer& action);
  void Do(const prefill::Reply& action);
  void Do(const prefill::StopCompute& action);
  void Do(const prefill::ReleaseSource& action);
  void Do(const prefill::CancelAnswer&) {}

  const KvSide side_;
  const Duration remember_;  ///< answers
  const size_t slot_bytes_;
  SenderControl& sender_;
  worker::TransferLoop& thread_;
  const Clock& clock_;
  LimitedLines unfit_{clock_};  ///< of prompts that have no segment for its slots
  engine::Scheduler* scheduler_ = nullptr;
  /// The answer of a leg that is over, for those who ask again.
  struct Answered {
    absl::Status status;
    bool no_room = false;
    std::vector<engine::SequenceOutput> outputs;
  };
  std::map<prefill::JobKey, Job> jobs_;
  std::map<prefill::JobKey, Answered> answered_;
  ExpiryLine<prefill::JobKey> old_answers_;
  std::map<engine::RequestKey, prefill::JobKey> by_request_;
  std::map<std::tuple<prefill::PeerId, TicketId, uint32_t>, prefill::JobKey> by_ticket_;  ///< what the core pushes
  std::map<std::pair<int, std::string>, prefill::PeerId> peers_;  ///< by rank of ours, and landing address
  prefill::PeerId next_peer_ = 1;
  engine::RequestKey next_key_ = kFirstKey;
  bool draining_ = false;
  OwnTime own_;
  prefill::Push core_;
};

}  // namespace baton::prefill_worker
