// Jobs: the leg's start, its answer, its end.
#include "prefill_worker/handoff/push.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/planted_bug.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton::prefill {

void Push::Handle(const Event& event, TimePoint now, std::vector<Action>& out) {
  now_ = now;
  out_ = &out;
  std::visit([this](const auto& e) { On(e); }, event);
  out_ = nullptr;
}

void Push::On(const Prefill& event) {
  if (const auto known = jobs_.find(event.key); known != jobs_.end()) {
    if (known->second.replied) out_->push_back(known->second.reply);
    return;
  }
  if (tombstones_.Has(event.key)) {
    out_->push_back(Reply{event.key, absl::CancelledError("cancelled before it was asked for")});
    return;
  }
  if (absl::Status checked = Check(event); !checked.ok()) {
    out_->push_back(Reply{event.key, std::move(checked)});
    return;
  }
  PushJob job{.key = event.key,
              .peers = {event.peer},
              .ticket = event.ticket,
              .secret = event.secret,
              .plan_digest = event.plan_digest};
  job.stop_at = now_ + event.expiry - options_.expiry_margin;
  job.slot_bytes = SlotBytesOf(event);
  job.progress_at = Listened();
  if (!event.lane_peers.empty()) job.peers = {event.lane_peers.begin(), event.lane_peers.end()};
  for (const std::vector<int64_t>& segment_bytes : event.lanes) {
    PushLane& lane = job.lanes.emplace_back();
    lane.peer = event.lane_peers.empty() ? event.peer : event.lane_peers[job.lanes.size() - 1];
    lane.segment_bytes = segment_bytes;
    lane.computed.assign(segment_bytes.size(), false);
    lane.unsent = static_cast<uint32_t>(segment_bytes.size());
    lane.repeat_at = now_ + options_.repeat_after;
  }
  for (const PeerId peer : job.peers) by_ticket_[{peer, job.ticket, job.key.epoch}] = job.key;
  PushJob& kept = jobs_[job.key] = std::move(job);
  open_[kept.key] = &kept;
  for (uint32_t i = 0; i < kept.lanes.size(); ++i)
    Send(kept, i, OpenLane{KeyOf(kept, i), kept.plan_digest, kept.secret});
}

absl::Status Push::Check(const Prefill& event) const {
  if (event.expiry <= options_.expiry_margin) {
    return absl::DeadlineExceededError(StrCat("the ticket expires in ", Milliseconds(event.expiry), " ms"));
  }
  BATON_CHECK(event.lane_peers.empty() || event.lane_peers.size() == event.lanes.size());
  std::set<PeerId> peers{event.lane_peers.begin(), event.lane_peers.end()};
  if (peers.empty()) peers.insert(event.peer);
  if (std::ranges::any_of(peers, [&](PeerId p) { return by_ticket_.contains({p, event.ticket, event.key.epoch}); })) {
    return absl::InvalidArgumentError(
        StrCat("epoch ", event.key.epoch, " of ticket ", event.ticket, " is another leg's"));
  }
  for (const std::vector<int64_t>& lane : event.lanes) {
    for (int64_t bytes : lane) {
      if (bytes > SlotBytesOf(event)) {
        // Its own --landing-slot-bytes are too few for what the decode worker cuts: another worker's may do.
        return absl::FailedPreconditionError(
            StrCat("a segment of ", bytes, " bytes, a slot holds ", SlotBytesOf(event), " (--landing-slot-bytes)"));
      }
    }
  }
  return absl::OkStatus();
}

void Push::On(const Cancel& event) {
  const auto known = jobs_.find(event.key);
  out_->push_back(CancelAnswer{event.key, known != jobs_.end()});
  if (known != jobs_.end()) {
    if (!PlantedBug("forget cancel on prefill leg")) Stop(known->second, absl::CancelledError("cancelled"));
  } else {
    tombstones_.Add(event.key, now_);
  }
}

void Push::On(const Computed& event) {
  const auto found = jobs_.find(event.key);
  if (found == jobs_.end() || found->second.stopped) return;
  BATON_CHECK(event.lane < found->second.lanes.size(), "lane ", event.lane);
  PushLane& lane = found->second.lanes[event.lane];
  for (uint32_t segment : event.segments) {
    BATON_CHECK(segment < lane.computed.size() && !lane.computed[segment], "segment ", segment, " of lane ",
                event.lane);
    lane.computed[segment] = true;
    lane.ready.push_back(segment);
  }
  Pump(found->second, event.lane);
}

void Push::On(const ComputeEnded& event) {
  const auto found = jobs_.find(event.key);
  if (found == jobs_.end() || !found->second.computing) return;
  PushJob& job = found->second;
  job.computing = false;
  job.computed = event.status.ok();
  job.no_room_at = now_ + options_.no_room_after;
  if (!job.computed && !job.stopped) Stop(job, event.status);
  Settle(job);
}

void Push::On(const PeerLost& event) {
  asked_.erase(event.peer);
  for (auto it = open_.begin(); it != open_.end();) {
    PushJob& job = *it->second;
    ++it;
    if (!job.peers.contains(event.peer)) continue;
    for (PushLane& lane : job.lanes) {
      if (lane.peer == event.peer) lane.phase = LanePhase::kOver;
    }
    if (job.lanes.empty()) continue;
    Stop(job, absl::UnavailableError(StrCat("the decode worker was lost", event.why.empty() ? "" : ": ", event.why)));
  }
}

void Push::On(const Tick&) {
  own_.Tick(now_);
  tombstones_.Tick(now_);
  for (auto it = open_.begin(); it != open_.end();) {
    PushJob& job = *it->second;
    ++it;
    TickJob(job);
  }
  over_.PopDue(now_, [this](const JobKey& key) {
    const PushJob& job = jobs_.at(key);
    for (const PeerId peer : job.peers) by_ticket_.erase({peer, job.ticket, job.key.epoch});
    jobs_.erase(key);
  });
  CutSilentPeers();
}

/// A stopped peer would keep our buffers, and all other jobs that need them, waiting.
void Push::CutSilentPeers() {
  std::erase_if(asked_, [this](const auto& asked) {
    const PeerId peer = asked.first;
    const bool waits = std::any_of(open_.begin(), open_.end(), [peer](const auto& entry) {
      return entry.second->peers.contains(peer) && !entry.second->Over();
    });
    const bool cut = waits && Listened() - asked.second >= options_.peer_silence;
    if (cut) out_->push_back(CutPeer{peer});
    return cut || !waits;
  });
}

/// The peer answers other jobs, or none, and not this one. The decode worker computes the segments that are missing.
void Push::StopWithoutProgress(PushJob& job) {
  if (!job.Owed()) job.progress_at = Listened();
  const Duration none = Listened() - job.progress_at;
  if (job.stopped || none < options_.progress) return;
  Stop(job, absl::UnavailableError(StrCat("the decode worker took nothing of it for ", Milliseconds(none), " ms")));
}

void Push::TickJob(PushJob& job) {
  const bool late = now_ >= job.stop_at, refused = job.computed && job.Opening();
  if (!job.stopped && late && !refused && !job.Over()) {
    Stop(job, absl::DeadlineExceededError("the ticket's deadline is near"));
  } else if (!job.stopped && refused && (late || job.elsewhere || now_ >= job.no_room_at)) {
    Stop(job, absl::ResourceExhaustedError("the decode worker has no room for the KV"), /*no_room=*/true);
  }
  StopWithoutProgress(job);
  for (uint32_t i = 0; i < job.lanes.size(); ++i) {
    PushLane& lane = job.lanes[i];
    if (lane.phase == LanePhase::kClosing && now_ >= job.stop_at + options_.give_up_closing)
      lane.phase = LanePhase::kOver;
    if (now_ >= lane.repeat_at) Repeat(job, i);
  }
  Settle(job);
}

void Push::Answer(PushJob& job, absl::Status status, bool no_room) {
  if (std::exchange(job.replied, true)) return;
  counters_.no_room += no_room;
  job.reply = {job.key, std::move(status), no_room};
  out_->push_back(job.reply);
}

void Push::Stop(PushJob& job, absl::Status status, bool no_room) {
  Answer(job, std::move(status), no_room);
  if (!std::exchange(job.stopped, true)) {
    if (job.computing) out_->push_back(StopCompute{job.key});
    for (uint32_t i = 0; i < job.lanes.size(); ++i) {
      if (job.lanes[i].phase < LanePhase::kFlushing) BeginClosing(job, i);
    }
  }
  Settle(job);
}

void Push::Settle(PushJob& job) {
  // Bound lanes are enough for the reply: the first token need not wait for the last segment.
  if (job.computed && !job.stopped && !job.Opening()) Answer(job, absl::OkStatus());
  bool needed = job.computing;
  for (const PushLane& lane : job.lanes) needed |= lane.phase < LanePhase::kClosing && !lane.drained;
  if (!needed && job.replied && !std::exchange(job.released, true)) out_->push_back(ReleaseSource{job.key});
  if (!job.Over() || !job.released || open_.erase(job.key) == 0) return;
  for (PushLane& lane : job.lanes) lane = {.peer = lane.peer, .phase = LanePhase::kOver};  // the answer is remembered
  over_.Add(job.key, now_ + options_.remember);
}

const PushJob* Push::Find(const JobKey& key) const {
  const auto found = jobs_.find(key);
  return found == jobs_.end() ? nullptr : &found->second;
}

PushStats Push::Stats() const {
  PushStats stats = counters_;
  for (const auto& [key, job] : open_) {
    stats.jobs += !job->Over();
    stats.held_sources += !job->released;
    for (const PushLane& lane : job->lanes) stats.open_lanes += lane.phase != LanePhase::kOver;
  }
  return stats;
}

}  // namespace baton::prefill
