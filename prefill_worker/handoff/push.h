// The prefill side of handoffs: opens the lanes of a ticket, pushes segments as they are computed, and always closes
// what it opened. Sans-IO: events and the time come in, actions go out.
//
// Promises: a slot is written once per grant; decode hears of a slot only when its bytes are there; source blocks stay
// until every lane was verified and flushed, or stopped and flushed; `Closed` says the truth about the flush; a job has
// one reply. Unanswered messages are repeated. A peer's silence is judged in own time, which Ticks move on: handle what
// has come before each. Scheduler thread of rank 0, for the lanes of all ranks.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "common/expiry_line.h"
#include "common/own_time.h"
#include "common/planted_bug.h"
#include "common/tombstones.h"
#include "prefill_worker/handoff/events.h"
#include "prefill_worker/handoff/push_job.h"

namespace baton::prefill {

struct PushOptions {
  int64_t slot_bytes = 1 << 20;                             ///< payload that fits a landing slot
  Duration repeat_after = std::chrono::milliseconds(250);   ///< an unanswered message
  Duration alive_every = std::chrono::seconds(1);           ///< an open lane that has nothing else to say
  Duration open_retry = std::chrono::milliseconds(5);       ///< after Busy
  Duration no_room_after = std::chrono::milliseconds(200);  ///< refused so long after the prompt is computed: no room
  Duration expiry_margin = std::chrono::milliseconds(500);  ///< we stop so long before the ticket expires
  Duration give_up_closing = std::chrono::seconds(30);  ///< after the ticket's expiry; decode cuts us off long before
  Duration peer_silence = std::chrono::seconds(4);      ///< a peer that answers nothing for so long is cut off
  Duration progress = std::chrono::seconds(8);          ///< a job of which nothing is taken for so long is given up
  Duration remember = std::chrono::seconds(60);         ///< finished and cancelled jobs
  size_t most_tombstones = 32768;                       ///< of those cancelled before they were asked for
};

struct PushStats {
  int jobs = 0;        ///< not over
  int open_lanes = 0;  ///< not over
  int held_sources = 0;
  int64_t resent_segments = 0;
  int64_t source_mismatches = 0;
  int64_t unclean_closes = 0;
  int64_t no_room = 0;
};

class Push {
 public:
  explicit Push(PushOptions options) : options_(options) {}

  /// Applies one event and appends what is to be done, in order.
  void Handle(const Event& event, TimePoint now, std::vector<Action>& out);

  /// Null when unknown or forgotten.
  const PushJob* Find(const JobKey& key) const;
  PushStats Stats() const;

 private:
  // jobs (push.cc)
  void On(const Prefill& event);
  void On(const Cancel& event);
  void On(const Computed& event);
  void On(const ComputeEnded& event);
  void On(const PeerLost& event);
  void On(const Tick& event);
  absl::Status Check(const Prefill& event) const;
  int64_t SlotBytesOf(const Prefill& event) const {
    return event.slot_bytes > 0 ? event.slot_bytes : options_.slot_bytes;
  }
  void TickJob(PushJob& job);
  void StopWithoutProgress(PushJob& job);
  void CutSilentPeers();
  void Answer(PushJob& job, absl::Status status, bool no_room = false);
  /// Sends nothing more; flushes and closes every lane. Answers the leg unless it was answered.
  void Stop(PushJob& job, absl::Status status, bool no_room = false);
  /// After any change: reply, release of the source, end.
  void Settle(PushJob& job);

  // lanes (push_lanes.cc)
  void On(const FromDecode& event);
  void On(const Written& event);
  void On(const Drained& event);
  void On(const Flushed& event);
  void Hear(PushJob& job, uint32_t lane, const LaneBound& message);
  void Hear(PushJob& job, uint32_t lane, const LaneBusy& message);
  void Hear(PushJob& job, uint32_t lane, const LaneGone& message);
  void Hear(PushJob& job, uint32_t lane, const SlotFree& message);
  void Hear(PushJob& job, uint32_t lane, const LaneVerified& message);
  void Hear(PushJob& job, uint32_t lane, const LaneClosedAck& message);
  void Pump(PushJob& job, uint32_t lane);
  void FinishSending(PushJob& job, uint32_t lane);
  void BeginClosing(PushJob& job, uint32_t lane);
  void SayClosed(PushJob& job, uint32_t lane);
  void RepeatSlots(PushJob& job, uint32_t lane);
  void Repeat(PushJob& job, uint32_t lane);

  void Send(const PushJob& job, uint32_t lane, ToDecode message) {
    asked_.try_emplace(job.lanes[lane].peer, Listened());
    out_->push_back(SendToDecode{job.lanes[lane].peer, std::move(message)});
  }
  LaneKey KeyOf(const PushJob& job, uint32_t lane) const { return {job.ticket, job.key.epoch, lane}; }
  PushJob* FindJob(PeerId peer, const LaneKey& lane);
  /// The time that a peer's silence is judged by.
  TimePoint Listened() const { return PlantedBug("renewal after clock") ? now_ : own_.Now(); }

  const PushOptions options_;
  std::map<JobKey, PushJob> jobs_;
  std::map<std::tuple<PeerId, TicketId, uint32_t>, JobKey> by_ticket_;
  std::map<PeerId, TimePoint> asked_;  ///< of the first question since a peer was last heard; own time
  Tombstones<JobKey> tombstones_{options_.most_tombstones, options_.remember};  ///< before they were asked for
  std::map<JobKey, PushJob*> open_;  ///< what a Tick looks at: the others are only remembered
  ExpiryLine<JobKey> over_;
  PushStats counters_;
  OwnTime own_;
  TimePoint now_{};                     ///< during Handle
  std::vector<Action>* out_ = nullptr;  ///< during Handle
};

}  // namespace baton::prefill
