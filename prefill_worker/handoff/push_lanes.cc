// Lanes: credits, slots, and the way from Open to Closed.
#include <algorithm>
#include <utility>

#include "common/planted_bug.h"
#include "common/str_cat.h"
#include "prefill_worker/handoff/push.h"

namespace baton::prefill {

void Push::On(const FromDecode& event) {
  asked_.erase(event.peer);
  const LaneKey key = std::visit([](const auto& message) { return message.lane; }, event.message);
  PushJob* job = FindJob(event.peer, key);
  if (job == nullptr) return;
  std::visit([this, job, &key](const auto& message) { Hear(*job, key.lane, message); }, event.message);
  Settle(*job);
}

void Push::Hear(PushJob& job, uint32_t i, const LaneBound& message) {
  PushLane& lane = job.lanes[i];
  if (lane.phase != LanePhase::kOpening) return;
  lane.phase = LanePhase::kOpen;
  job.progress_at = Listened();
  lane.credit.assign(message.grants.begin(), message.grants.end());
  Pump(job, i);
}

void Push::Hear(PushJob& job, uint32_t i, const LaneBusy& message) {
  PushLane& lane = job.lanes[i];
  if (lane.phase != LanePhase::kOpening) return;
  lane.repeat_at = now_ + options_.open_retry;
  job.elsewhere = message.elsewhere;
}

void Push::Hear(PushJob& job, uint32_t i, const LaneGone& message) {
  if (job.lanes[i].phase < LanePhase::kFlushing)
    Stop(job, absl::UnavailableError(StrCat("decode closed the lane: ", message.reason)));
}

void Push::Hear(PushJob& job, uint32_t i, const SlotFree& message) {
  PushLane& lane = job.lanes[i];
  if (lane.phase != LanePhase::kOpen && lane.phase != LanePhase::kDone) return;
  const auto used = lane.used.find(message.grant.slot);
  const bool expected = used != lane.used.end() && used->second.written && used->second.turn + 1 == message.grant.turn;
  if (!expected) {  // a repetition: a grant is worth one write
    if (PlantedBug("credit is a bare increment")) {
      lane.credit.push_back(message.grant);
      Pump(job, i);
    }
    return;
  }
  job.progress_at = Listened();
  const std::vector<uint32_t> segments = std::move(used->second.segments);
  lane.used.erase(used);
  lane.credit.push_back(message.grant);
  if (!message.ok) {
    counters_.resent_segments += static_cast<int64_t>(segments.size());
    lane.ready.insert(lane.ready.begin(), segments.begin(), segments.end());
    lane.unsent += static_cast<uint32_t>(segments.size());
    lane.phase = LanePhase::kOpen;
  }
  Pump(job, i);
}

void Push::Hear(PushJob& job, uint32_t i, const LaneVerified&) {
  PushLane& lane = job.lanes[i];
  if (lane.phase == LanePhase::kOpen || lane.phase == LanePhase::kDone) BeginClosing(job, i);
}

void Push::Hear(PushJob& job, uint32_t i, const LaneClosedAck&) {
  if (job.lanes[i].phase == LanePhase::kClosing) job.lanes[i].phase = LanePhase::kOver;
}

void Push::Pump(PushJob& job, uint32_t i) {
  PushLane& lane = job.lanes[i];
  while (lane.phase == LanePhase::kOpen && !lane.ready.empty() && !lane.credit.empty()) {
    const SlotTurn slot = lane.credit.front();
    lane.credit.pop_front();
    UsedSlot used{slot.turn};
    int64_t bytes = 0;
    while (!lane.ready.empty() && bytes + lane.segment_bytes[lane.ready.front()] <= job.slot_bytes) {
      bytes += lane.segment_bytes[lane.ready.front()];
      used.segments.push_back(lane.ready.front());
      lane.ready.pop_front();
      --lane.unsent;
    }
    const LaneKey key = KeyOf(job, i);
    out_->push_back(WriteSlot{lane.peer, key, slot, used.segments, /*may_wait=*/lane.unsent > 0});
    if (PlantedBug("notice without flush")) {
      used.written = true;
      Send(job, i, SlotFull{key, slot, used.segments});
    }
    lane.used[slot.slot] = std::move(used);
  }
  FinishSending(job, i);
}

/// LaneDone needs not wait for the answers: decode's bitmap decides, and one round trip is saved before it may start.
void Push::FinishSending(PushJob& job, uint32_t i) {
  PushLane& lane = job.lanes[i];
  if (lane.phase != LanePhase::kOpen || lane.unsent > 0) return;
  if (std::any_of(lane.used.begin(), lane.used.end(), [](const auto& slot) { return !slot.second.written; })) return;
  if (PlantedBug("LaneDone is the only notice")) {
    for (const auto& [slot, used] : lane.used) Send(job, i, SlotFull{KeyOf(job, i), {slot, used.turn}, used.segments});
  }
  lane.phase = LanePhase::kDone;
  lane.repeat_at = now_ + options_.repeat_after;
  Send(job, i, LaneDone{KeyOf(job, i), static_cast<uint32_t>(lane.segment_bytes.size())});
  if (PlantedBug("Closed right after LaneDone")) BeginClosing(job, i);
}

void Push::On(const Written& event) {
  PushJob* job = FindJob(event.peer, event.lane);
  if (job == nullptr) return;
  PushLane& lane = job->lanes[event.lane.lane];
  if (!event.status.ok() && !absl::IsDataLoss(event.status)) lane.write_failed = true;
  if (lane.phase != LanePhase::kOpen) return;
  const auto used = lane.used.find(event.slot.slot);
  if (used == lane.used.end() || used->second.turn != event.slot.turn || used->second.written) return;
  if (!event.status.ok()) {
    counters_.source_mismatches += absl::IsDataLoss(event.status);
    return Stop(*job, event.status);
  }
  used->second.written = true;
  job->progress_at = Listened();
  lane.repeat_at = now_ + options_.repeat_after;
  if (event.told) {
    asked_.try_emplace(lane.peer, Listened());
  } else if (!PlantedBug("LaneDone is the only notice")) {
    Send(*job, event.lane.lane, SlotFull{event.lane, event.slot, used->second.segments});
  }
  FinishSending(*job, event.lane.lane);
  Settle(*job);
}

/// Nothing more is sent on the lane; it is flushed, then closed.
void Push::BeginClosing(PushJob& job, uint32_t i) {
  PushLane& lane = job.lanes[i];
  lane.phase = LanePhase::kFlushing;
  lane.ready.clear();
  lane.credit.clear();
  lane.used.clear();
  asked_.try_emplace(lane.peer, Listened());
  out_->push_back(FlushLane{lane.peer, KeyOf(job, i)});
  if (!PlantedBug("Closed before flush")) return;
  lane.flushed = true;
  SayClosed(job, i);
}

void Push::On(const Drained& event) {
  PushJob* job = FindJob(event.peer, event.lane);
  if (job == nullptr || job->lanes[event.lane.lane].phase != LanePhase::kFlushing) return;
  job->lanes[event.lane.lane].drained = true;
  Settle(*job);
}

void Push::On(const Flushed& event) {
  asked_.erase(event.peer);
  PushJob* job = FindJob(event.peer, event.lane);
  if (job == nullptr) return;
  PushLane& lane = job->lanes[event.lane.lane];
  if (lane.phase != LanePhase::kFlushing) return;
  lane.flushed = (event.ok && !lane.write_failed) || PlantedBug("Closed after a failed flush");
  counters_.unclean_closes += !lane.flushed;
  SayClosed(*job, event.lane.lane);
  Settle(*job);
}

void Push::SayClosed(PushJob& job, uint32_t i) {
  PushLane& lane = job.lanes[i];
  lane.phase = LanePhase::kClosing;
  lane.repeat_at = now_ + options_.repeat_after;
  Send(job, i, LaneClosed{KeyOf(job, i), lane.flushed, job.secret});
}

/// Slots that wait for an answer; where none does, that the lane is alive. That is no question: a peer that does not
/// answer it is not cut off for that.
void Push::RepeatSlots(PushJob& job, uint32_t i) {
  PushLane& lane = job.lanes[i];
  bool said = lane.phase == LanePhase::kDone;
  for (const auto& [slot, used] : lane.used) {
    if (!used.written) continue;
    said = true;
    Send(job, i, SlotFull{KeyOf(job, i), {slot, used.turn}, used.segments});
  }
  if (said) return;
  lane.repeat_at = now_ + options_.alive_every;
  out_->push_back(SendToDecode{lane.peer, OpenLane{KeyOf(job, i), job.plan_digest, job.secret}});
}

/// The message that the lane waits for an answer to, once more.
void Push::Repeat(PushJob& job, uint32_t i) {
  PushLane& lane = job.lanes[i];
  const LaneKey key = KeyOf(job, i);
  lane.repeat_at = now_ + options_.repeat_after;
  switch (lane.phase) {
    case LanePhase::kOpening: return Send(job, i, OpenLane{key, job.plan_digest, job.secret});
    case LanePhase::kOpen:
    case LanePhase::kDone:
      if (PlantedBug("LaneDone is the only notice") && lane.phase == LanePhase::kOpen) return;
      RepeatSlots(job, i);
      if (lane.phase == LanePhase::kDone) Send(job, i, LaneDone{key, static_cast<uint32_t>(lane.segment_bytes.size())});
      return;
    case LanePhase::kClosing:
      if (!PlantedBug("Closed is sent once")) SayClosed(job, i);
      return;
    case LanePhase::kFlushing:
    case LanePhase::kOver: return;
  }
}

PushJob* Push::FindJob(PeerId peer, const LaneKey& lane) {
  const auto key = by_ticket_.find({peer, lane.ticket, lane.epoch});
  if (key == by_ticket_.end()) return nullptr;
  PushJob& job = jobs_.at(key->second);
  return lane.lane < job.lanes.size() && job.lanes[lane.lane].peer == peer ? &job : nullptr;
}

}  // namespace baton::prefill
