#include "prefill_worker/prefill_desk.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/log.h"
#include "common/planted_bug.h"
#include "common/status.h"
#include "kvtransfer/rank_numbers.h"
#include "worker/transfer/kv_pool_view.h"

namespace baton::prefill_worker {

using engine::FinishReason;

namespace {

constexpr size_t kMostAnswers = 4096;

}  // namespace

PrefillDesk::PrefillDesk(prefill::PushOptions options, KvSide side, size_t slot_bytes, SenderControl& sender,
                         worker::TransferLoop& thread, const Clock& clock)
    : side_(std::move(side)),
      remember_(options.remember),
      slot_bytes_(slot_bytes),
      sender_(sender),
      thread_(thread),
      clock_(clock),
      core_(options) {}

PrefillDesk::Job* PrefillDesk::Find(const prefill::JobKey& key) {
  const auto found = jobs_.find(key);
  return found == jobs_.end() ? nullptr : &found->second;
}

void PrefillDesk::Handle(const prefill::Event& event) {
  if (const auto* lost = std::get_if<prefill::PeerLost>(&event)) {
    std::erase_if(peers_, [lost](const auto& peer) { return peer.second == lost->peer; });  // the next job dials again
  }
  std::vector<prefill::Action> actions;
  core_.Handle(event, clock_.Now(), actions);
  for (const prefill::Action& action : actions) std::visit([this](const auto& one) { Do(one); }, action);
}

// ---- a job's life

void PrefillDesk::Begin(JobOrder order, std::shared_ptr<JobEvents> events) {
  const auto refuse = [&events](const absl::Status& why) { events->OnEnd(why, false, {}); };
  if (Job* known = Find(order.key)) return Join(*known, std::move(events));
  if (const auto over = answered_.find(order.key); over != answered_.end()) {
    const Answered& answer = over->second;
    return events->OnEnd(answer.status, answer.no_room, answer.outputs);
  }
  if (draining_) return refuse(absl::UnavailableError("this worker is draining"));
  if (core_.Find(order.key) != nullptr) return refuse(absl::AlreadyExistsError("this prefill leg is over"));
  absl::StatusOr<JobPlan> way = PlanJob(side_, order);
  if (!way.ok()) return refuse(way.status());
  Job job{.key = order.key, .request = next_key_++, .callers = {events}};
  job.way = *std::move(way);
  job.choices = order.request.sampling.n;
  job.expires = clock_.Now() + order.expiry;
  order.request.key = job.request;
  order.request.credit = engine::kUnlimitedCredit;
  if (absl::Status added = scheduler_->AddRequest(std::move(order.request), clock_.Now()); !added.ok())
    return refuse(added);
  for (const LanePlan& lane : job.way.plan->lanes()) {
    auto& cuts = job.reported.emplace_back();
    for (const GroupCut& cut : lane.groups) cuts.emplace_back(cut.layers.size(), 0);
  }
  job.order = std::move(order);
  by_request_[job.request] = job.key;
  const prefill::JobKey key = job.key;
  jobs_.emplace(key, std::move(job));
  Renew(key);
}

void PrefillDesk::Renew(const prefill::JobKey& key) {
  Job* job = Find(key);
  if (job != nullptr && job->order.lease > Duration::zero()) job->lease_until = Listened() + job->order.lease;
}

/// The time that a router's silence is judged by.
TimePoint PrefillDesk::Listened() const { return PlantedBug("renewal after clock") ? clock_.Now() : own_.Now(); }

void PrefillDesk::EndLapsed() {
  std::vector<prefill::JobKey> lapsed;
  for (const auto& [key, job] : jobs_) {
    if (!job.answered && Listened() >= job.lease_until) lapsed.push_back(key);
  }
  for (const prefill::JobKey& key : lapsed) {
    Answer(*Find(key), absl::AbortedError("no router has renewed this prefill leg"), false);
    Cancel(key);
  }
}

/// Tells a new listener the events that it has missed, and then the same ones as all others.
void PrefillDesk::Join(Job& job, std::shared_ptr<JobEvents> events) {
  if (!job.scores.empty()) events->OnPromptScores(job.scores);
  if (job.answered) return events->OnEnd(job.status, job.no_room, job.outputs);
  ++job.callers_here;
  job.callers.push_back(std::move(events));
}

prefill::PeerId PrefillDesk::PeerAt(int rank, const std::string& address) {
  const auto [peer, fresh] = peers_.try_emplace({rank, address}, InRank(rank, next_peer_));
  if (fresh) {
    ++next_peer_;
    thread_.Post([this, id = peer->second, address] { sender_.Connect(id, address); });
  }
  return peer->second;
}

std::vector<prefill::PeerId> PrefillDesk::PeersOf(const TransferPlan& plan, const RankAddresses& addresses) {
  std::vector<prefill::PeerId> peers;
  for (const LanePlan& lane : plan.lanes())
    peers.push_back(PeerAt(lane.source_rank, addresses.ranks[static_cast<size_t>(lane.target_rank)]));
  return peers;
}

void PrefillDesk::Meet(const std::string& landing_address) {
  const absl::StatusOr<RankAddresses> addresses = RankAddresses::Parse(landing_address);
  if (draining_ || !addresses.ok()) return;
  KvSide target{side_.layout, addresses->tensor_parallel_size, addresses->stage_layers};
  if (addresses->ranks.size() == 1) target.stage_layers = {0, side_.stage_layers.back()};
  const absl::StatusOr<TransferPlan> any = TransferPlan::Make(side_, target, {0, kUnitTokens}, kUnitTokens);
  if (any.ok()) PeersOf(*any, *addresses);  // else its first prompt says why
}

/// When the prompt's first chunk runs: decode binds its blocks now, behind the first layer.
void PrefillDesk::StartPushing(Job& job) {
  job.pushing = true;
  job.peers = PeersOf(*job.way.plan, job.way.addresses);
  prefill::Prefill event{job.key, job.peers.front(),         job.order.ticket, job.order.secret, job.way.plan->digest(),
                         {},      job.expires - clock_.Now()};
  event.lane_peers = job.peers;
  event.slot_bytes = SlotRoom(std::min<uint64_t>(job.order.slot_bytes, slot_bytes_));
  for (const LanePlan& lane : job.way.plan->lanes()) {
    std::vector<int64_t>& bytes = event.lanes.emplace_back();
    for (int s = 0; s < lane.segments; ++s) bytes.push_back(SegmentRoom(job.way.plan->SegmentBytes(lane, s)));
  }
  Handle(event);
  if (core_.Find(job.key) != nullptr) {
    for (const prefill::PeerId peer : job.peers) by_ticket_[{peer, job.order.ticket, job.key.epoch}] = job.key;
  } else {  // refused, and answered so
    job.pushing = false;
    scheduler_->Cancel(job.request, clock_.Now());  // its abort ends the job
  }
}

void PrefillDesk::OnLayer(const LayerProgress& progress) {
  for (const LayerProgress::Rows& rows : progress.rows) {
    const auto key = by_request_.find(rows.request);
    Job* job = key == by_request_.end() ? nullptr : Find(key->second);
    if (job == nullptr) continue;
    if (!job->pushing) {
      if (job->answered) continue;  // cancelled while its first step ran: nobody wants its KV
      StartPushing(*job);
      if (!job->pushing) continue;
      for (int layer = 0; layer < side_.stage_layers.back(); ++layer)
        Report(*job, layer, rows.from);  // found in the cache
    }
    Report(*job, progress.layer, rows.to);
  }
}

/// Positions below `computed` of this layer are in our blocks.
void PrefillDesk::Report(Job& job, int layer, int32_t computed) {
  for (size_t l = 0; l < job.way.plan->lanes().size(); ++l) {
    const LanePlan& lane = job.way.plan->lanes()[l];
    std::vector<uint32_t> ready;
    for (size_t c = 0; c < lane.groups.size(); ++c) {
      const GroupCut& cut = lane.groups[c];
      const auto at = std::lower_bound(cut.layers.begin(), cut.layers.end(), layer);
      if (at == cut.layers.end() || *at != layer) continue;
      const auto index = at - cut.layers.begin();
      int& pieces = job.reported[l][c][static_cast<size_t>(index)];
      for (; pieces < cut.pieces; ++pieces) {
        const int segment = cut.first_segment + static_cast<int>(index) * cut.pieces + pieces;
        if (job.way.plan->SegmentAt(lane, segment).tokens.end > computed) break;
        ready.push_back(static_cast<uint32_t>(segment));
      }
    }
    if (!ready.empty()) Handle(prefill::Computed{job.key, static_cast<uint32_t>(l), std::move(ready)});
  }
}

void PrefillDesk::OnOutputs(const std::vector<engine::SequenceOutput>& outputs) {
  for (const engine::SequenceOutput& output : outputs) {
    const auto key = by_request_.find(output.key);
    if (key == by_request_.end()) continue;
    Job& job = *Find(key->second);
    if (!job.computing) continue;
    if (!output.prompt_logprobs.empty()) {
      job.scores.insert(job.scores.end(), output.prompt_logprobs.begin(), output.prompt_logprobs.end());
      for (const auto& caller : job.callers) caller->OnPromptScores(output.prompt_logprobs);
    }
    if (output.finish == FinishReason::kNone) continue;
    if (output.finish == FinishReason::kError || output.finish == FinishReason::kAbort) {
      EndCompute(job, output.finish == FinishReason::kError ? output.error : absl::CancelledError("cancelled"));
      continue;
    }
    job.outputs.push_back(output);
    if (static_cast<int32_t>(job.outputs.size()) == job.choices) EndCompute(job, absl::OkStatus());
  }
}

void PrefillDesk::EndCompute(Job& job, const absl::Status& status) {
  const prefill::JobKey key = job.key;
  job.computing = false;
  // Its other choices run on, and would be held: nobody wants them without this one.
  if (!status.ok()) scheduler_->Cancel(job.request, clock_.Now());
  if (!job.pushing) {  // it ended before a step of it ran
    Answer(job, status, false);
    return EraseIfOver(key);
  }
  const bool nothing_to_decode =
      status.ok() && std::none_of(job.outputs.begin(), job.outputs.end(),
                                  [](const engine::SequenceOutput& o) { return o.finish == FinishReason::kHeld; });
  if (nothing_to_decode) Answer(job, status, false);
  Handle(prefill::ComputeEnded{key, status});
  if (nothing_to_decode) Handle(prefill::Cancel{key});
  EraseIfOver(key);
}

void PrefillDesk::Answer(Job& job, const absl::Status& status, bool no_room) {
  if (std::exchange(job.answered, true)) return;
  job.status = status;
  job.no_room = no_room;
  for (const auto& caller : std::exchange(job.callers, {})) caller->OnEnd(status, no_room, job.outputs);
}

void PrefillDesk::OnCallerGone(const prefill::JobKey& key) {
  if (Job* job = Find(key); job != nullptr && !job->answered && --job->callers_here == 0) Cancel(key);
}

void PrefillDesk::Tick() {
  own_.Tick(clock_.Now());
  EndLapsed();
  Handle(prefill::Tick{});
  std::vector<prefill::JobKey> keys;
  for (const auto& [key, job] : jobs_) {
    if (job.answered && !job.computing) keys.push_back(key);
  }
  for (const prefill::JobKey& key : keys) EraseIfOver(key);
  old_answers_.PopDue(clock_.Now(), [this](const prefill::JobKey& key) { answered_.erase(key); });
}

bool PrefillDesk::Cancel(const prefill::JobKey& key) {
  Job* job = Find(key);
  if (job != nullptr && !job->pushing) {
    Answer(*job, absl::CancelledError("cancelled"), false);
    scheduler_->Cancel(job->request, clock_.Now());  // its abort ends the job
    return true;
  }
  Handle(prefill::Cancel{key});
  EraseIfOver(key);
  return job != nullptr;
}

bool PrefillDesk::Computing(const prefill::JobKey& key) const {
  const auto job = jobs_.find(key);
  return job != jobs_.end() && job->second.computing;
}

/// The core closes what lanes are left, and remembers the job for repeated questions; here nothing is left to do.
void PrefillDesk::EraseIfOver(const prefill::JobKey& key) {
  Job* job = Find(key);
  if (job == nullptr || job->computing || !job->answered) return;
  if (const prefill::PushJob* known = core_.Find(key); job->pushing && known != nullptr && !known->released) return;
  scheduler_->ReleaseHeld(job->request);
  if (job->scores.empty() && answered_.size() < kMostAnswers) {  // scores are too much to keep
    answered_[key] = {job->status, job->no_room, std::move(job->outputs)};
    old_answers_.Add(key, clock_.Now() + remember_);
  }
  by_request_.erase(job->request);
  for (const prefill::PeerId peer : job->pushing ? job->peers : std::vector<prefill::PeerId>())
    by_ticket_.erase({peer, job->order.ticket, key.epoch});
  jobs_.erase(key);
}

int64_t PrefillDesk::OwnedBlocks(int32_t group) const {
  int64_t owned = 0;
  const auto count = [group](const engine::SequenceKv& kv) {
    return kv.tables.empty() ? 0 : kv.tables[static_cast<size_t>(group)].owned();
  };
  for (const auto& [key, job] : jobs_) {
    owned += count(job.pin);
    for (const engine::SequenceKv& pin : job.earlier_pins) owned += count(pin);
  }
  return owned;
}

// ---- actions of the core

void PrefillDesk::Do(const prefill::SendToDecode& action) {
  thread_.Post([this, action] { sender_.Send(action.peer, action.message); });
}

void PrefillDesk::Do(const prefill::WriteSlot& action) {
  WriteOrder order{action.peer, action.lane, action.slot, action.segments, nullptr, {}};
  order.may_wait = action.may_wait;
  const auto key = by_ticket_.find({action.peer, action.lane.ticket, action.lane.epoch});
  BATON_CHECK(key != by_ticket_.end(), "no job for ticket ", action.lane.ticket);
  Job& job = *Find(key->second);
  order.plan = job.way.plan;
  KeepSource(job);
  order.tables = worker::TablesOf(job.pin);
  order.tables.resize(side_.layout.groups.size());  // no blocks any more: the gather will say so
  thread_.Post([this, order = std::move(order)] { sender_.Write(order); });
}

void PrefillDesk::Do(const prefill::FlushLane& action) {
  thread_.Post([this, action] { sender_.Flush(action.peer, action.lane); });
}

void PrefillDesk::Do(const prefill::CutPeer& action) {
  thread_.Post([this, action] { sender_.Cut(action.peer); });
}

void PrefillDesk::Do(const prefill::Reply& action) {
  // Its client gets an answer all the same: who set the flags hears of it here alone.
  if (absl::IsFailedPrecondition(action.status) && unfit_.May(""))
    LogWarning("prefill: this worker cannot hand a prompt over: {}", View(action.status.message()));
  if (Job* job = Find(action.key)) Answer(*job, action.status, action.no_room);
}

/// Its blocks stay until the lanes are flushed.
void PrefillDesk::Do(const prefill::StopCompute& action) {
  Job* job = Find(action.key);
  if (job == nullptr || !job->computing) return;
  KeepSource(*job);
  scheduler_->Cancel(job->request, clock_.Now());
}

/// The source is gathered on another thread, some time after it was asked for. Were the request preempted or cancelled
/// in between, its blocks could hold another prompt's KV by then, with digests that fit: digests know positions, not
/// prompts. The request goes on in the same blocks: were one replaced by a copy, what is gathered from the copy could
/// be gathered before it was made. Blocks that it leaves behind a window stay for what was asked for before.
void PrefillDesk::KeepSource(Job& job) {
  const engine::SequenceKv* kv = scheduler_->Kv(job.request);
  if (kv == nullptr) return;
  const auto same = [](const engine::BlockTable& a, const engine::BlockTable& b) {
    return std::ranges::equal(a.blocks(), b.blocks());
  };
  if (std::ranges::equal(kv->tables, job.pin.tables, same)) return;
  const auto begins_with = [](const engine::BlockTable& longer, const engine::BlockTable& shorter) {
    return longer.size() >= shorter.size() &&
           std::ranges::equal(longer.blocks().first(shorter.blocks().size()), shorter.blocks());
  };
  const bool lets_go = PlantedBug("sources that were left are let go");
  const bool in_copies = lets_go || PlantedBug("copies are named before they are made");
  engine::SequenceKv before = std::exchange(job.pin, in_copies ? kv->Share() : kv->ShareToRead());
  if (!before.tables.empty() && !lets_go && !std::ranges::equal(job.pin.tables, before.tables, begins_with))
    job.earlier_pins.push_back(std::move(before));
}

void PrefillDesk::Do(const prefill::ReleaseSource& action) {
  Job* job = Find(action.key);
  if (job == nullptr) return;
  job->pin.Clear();
  job->earlier_pins.clear();
  scheduler_->ReleaseHeld(job->request);
}

}  // namespace baton::prefill_worker
