#include "prefill_node.h"

#include <algorithm>

#include "decode_node.h"
#include "router_model.h"

namespace baton::sim {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

PrefillNode::PrefillNode(World& world, int index) : Node(world), index_(index) { Reborn(); }

void PrefillNode::Reborn() {
  prefill::PushOptions options;
  options.slot_bytes = 2;  // two segments to a slot
  options.no_room_after = seconds(3);
  options.remember = seconds(10);
  core_ = std::make_unique<prefill::Push>(options);
  sources_.clear(), flights_.clear(), flushing_.clear(), cancelled_.clear(), given_up_.clear();
  Timer();
}

void PrefillNode::Timer() {
  Post(milliseconds(10), [this] { Handle(prefill::Tick{}), CheckGivenUp(), Timer(); });
}

void PrefillNode::Handle(const prefill::Event& event) {
  if (world_.broken()) return;
  std::vector<prefill::Action> actions;
  core_->Handle(event, Local(), actions);
  for (const prefill::Action& action : actions) std::visit([this](const auto& a) { Do(a); }, action);
}

void PrefillNode::OnPrefill(int request, uint64_t connection, prefill::Prefill event) {
  if (world_.connection(connection).lost) {  // the worker dials again
    connection = world_.Connect(index_, world_.connection(connection).decode, world_.connection(connection).memory).id;
    event.peer = connection;
  }
  const Connection& first = world_.connection(connection);
  for (int lane = 0; world_.scenario.own_ways && lane < world_.scenario.lanes; ++lane)
    event.lane_peers.push_back(world_.Connect(index_, first.decode, first.memory, lane).id);
  const bool fresh = core_->Find(event.key) == nullptr;
  Handle(event);
  if (!fresh || core_->Find(event.key) == nullptr) return;
  if (cancelled_.contains(event.key)) return world_.Break("a cancelled prefill leg was started");
  sources_[event.key] = {request};
  Post(milliseconds(world_.Pick(0, 20)), [this, key = event.key] { Compute(key, 0); });
}

/// One segment of every lane a step.
void PrefillNode::Compute(const prefill::JobKey& key, uint32_t layer) {
  if (sources_.at(key).stopping) return Handle(prefill::ComputeEnded{key, absl::CancelledError("stopped")});
  for (uint32_t lane = 0; lane < static_cast<uint32_t>(world_.scenario.lanes); ++lane)
    Handle(prefill::Computed{key, lane, {layer}});
  if (layer + 1 == static_cast<uint32_t>(world_.scenario.segments))
    return Handle(prefill::ComputeEnded{key, absl::OkStatus()});
  Post(microseconds(world_.Pick(100, 3000)), [this, key, layer] { Compute(key, layer + 1); });
}

void PrefillNode::OnCancel(const prefill::JobKey& key) { Handle(prefill::Cancel{key}); }

void PrefillNode::OnPeerLost(uint64_t connection) {
  for (auto& [name, flights] : flights_) {
    if (name.first != connection) continue;
    for (FlightPtr& flight : flights) flight->ended = true, flight->ok = false;
  }
  Handle(prefill::PeerLost{connection});
}

void PrefillNode::Do(const prefill::SendToDecode& action) {
  Connection& c = world_.connection(action.peer);
  DecodeNode& d = *world_.decodes[static_cast<size_t>(c.decode)];
  DecodeNode::Payload payload;
  if (const auto* full = std::get_if<SlotFull>(&action.message);
      full != nullptr && world_.scenario.wire == Wire::kRecv) {
    for (const FlightPtr& flight : flights_[{action.peer, full->lane}]) {
      if (flight->slot == full->slot) payload = {flight->cells, flight->corrupted};
    }
  }
  world_.Send([this, &c, &d, id = action.peer, message = action.message, payload](Duration latency) {
    world_.After(latency, [&c, &d, id, message, payload] {
      if (c.lost || d.life() != c.decode_life) return;
      d.Post(Duration::zero(), [&d, id, message, payload] { d.OnMessage(id, message, payload); });
    });
  });
}

void PrefillNode::Do(const prefill::WriteSlot& action) {
  auto flight = std::make_shared<Flight>(Flight{action.peer, action.lane, action.slot, {}});
  const Source* source = nullptr;
  for (const auto& [key, candidate] : sources_) {
    const prefill::PushJob* job = core_->Find(key);
    if (job != nullptr && job->peers.contains(action.peer) && job->ticket == action.lane.ticket &&
        key.epoch == action.lane.epoch)
      source = &candidate;
  }
  if (source == nullptr || source->released) return world_.Break("a released source block was read");
  if (world_.faults_on && world_.Chance(world_.scenario.stale_source)) {
    Post(world_.Latency(), [this, flight] { Report(flight, absl::DataLossError("source digest differs")); });
    return;
  }
  uint32_t shift = 0;
  if (world_.faults_on && world_.Chance(world_.scenario.misplace)) shift = 1, flight->corrupted = true;
  for (uint32_t segment : action.segments) {
    const auto other = (segment + shift) % static_cast<uint32_t>(world_.scenario.segments);
    if (other == segment && shift > 0) flight->corrupted = false;
    flight->cells.push_back({segment, RightCell(source->request, action.lane.lane, other)});
  }
  if (world_.faults_on && world_.Chance(world_.scenario.corrupt))
    flight->corrupted = true, flight->cells[0].second += 5000;
  flights_[{action.peer, action.lane}].push_back(flight);
  Fly(flight);
}

void PrefillNode::Fly(FlightPtr flight) {
  if (world_.scenario.wire == Wire::kRecv) {  // the bytes travel with SlotFull
    return Post(microseconds(1), [this, flight] { Report(flight, absl::OkStatus()); });
  }
  const Duration landing = microseconds(world_.Pick(10, 400));
  if (world_.faults_on && world_.Chance(world_.scenario.late_write)) {  // an error first, the bytes later
    Post(landing, [this, flight] { Report(flight, absl::UnavailableError("write failed")); });
    world_.After(landing + milliseconds(world_.Pick(0, 3000)), [this, flight] { Land(*flight); });
    return;
  }
  world_.After(landing, [this, flight] {
    Land(*flight);
    Post(microseconds(world_.Pick(1, 50)), [this, flight] { Report(flight, absl::OkStatus()); });
  });
}

void PrefillNode::Report(const FlightPtr& flight, absl::Status status) {
  flight->ended = true, flight->ok = status.ok();
  Handle(prefill::Written{flight->connection, flight->lane, flight->slot, status});
  EndFlush(flight->connection, flight->lane);
}

/// The bytes reach the slot, unless the writer was fenced off by then.
void PrefillNode::Land(const Flight& flight) {
  const Connection& c = world_.connection(flight.connection);
  DecodeNode& d = *world_.decodes[static_cast<size_t>(c.decode)];
  if (c.cut || d.dead() || d.life() != c.decode_life) return;
  d.Land(flight.connection, flight.lane, flight.slot, {flight.cells, flight.corrupted});
}

void PrefillNode::Do(const prefill::FlushLane& action) {
  flushing_.insert({action.peer, action.lane});
  Post(microseconds(5), [this, action] { EndFlush(action.peer, action.lane); });
}

void PrefillNode::Do(const prefill::CutPeer& action) {
  if (world_.scenario.wire == Wire::kShm) return;  // only our exit would be a fence
  Post(microseconds(1), [this, action] { world_.Reset(world_.connection(action.peer)); });
}

void PrefillNode::EndFlush(uint64_t connection, const LaneKey& lane) {
  if (!flushing_.contains({connection, lane})) return;
  const auto& flights = flights_[{connection, lane}];
  if (std::any_of(flights.begin(), flights.end(), [](const FlightPtr& f) { return !f->ended; })) return;
  flushing_.erase({connection, lane});
  Handle(prefill::Drained{connection, lane});
  // After a failed write a flush may claim anything.
  const bool clean = std::all_of(flights.begin(), flights.end(), [](const FlightPtr& f) { return f->ok; });
  Handle(prefill::Flushed{connection, lane, clean || world_.Pick(0, 1) == 0});
}

void PrefillNode::Do(const prefill::Reply& action) {
  world_.Send([this, action, life = life()](Duration latency) {
    world_.After(latency, [this, action, life] { world_.router->OnPrefillReply(index_, life, action); });
  });
}

void PrefillNode::Do(const prefill::StopCompute& action) { sources_[action.key].stopping = true; }

void PrefillNode::Do(const prefill::ReleaseSource& action) {
  Source& source = sources_[action.key];
  if (source.released) world_.Break("a source was released twice");
  source.released = true;
  for (const auto& [name, flights] : flights_) {
    const prefill::PushJob* job = core_->Find(action.key);
    if (job == nullptr || !job->peers.contains(name.first) || name.second.ticket != job->ticket ||
        name.second.epoch != action.key.epoch)
      continue;
    for (const FlightPtr& flight : flights) {
      if (!flight->ended && !world_.connection(name.first).lost)
        world_.Break("a source was released before its writes had ended");
    }
  }
}

void PrefillNode::Do(const prefill::CancelAnswer& action) {
  cancelled_.insert(action.key);
  const prefill::PushJob* job = core_->Find(action.key);
  if (job != nullptr && !job->replied) {  // Stop answers first; the actions of one event come together
    Post(Duration::zero(), [this, key = action.key] {
      const prefill::PushJob* later = core_->Find(key);
      if (later != nullptr && !later->stopped) world_.Break("a cancelled prefill leg goes on");
    });
  } else if (job != nullptr && !job->stopped) {
    world_.Break("a cancelled prefill leg goes on");
  }
  world_.Send([this, key = action.key, life = life()](Duration latency) {
    world_.After(latency, [this, key, life] { world_.router->OnPrefillCancelled(index_, life, key); });
  });
}

/// A leg that the router gave up ends soon, whether or not its decode worker says a word.
void PrefillNode::CheckGivenUp() {
  if (world_.now - checked_at_ > milliseconds(200)) given_up_.clear();  // we were stopped
  checked_at_ = world_.now;
  for (const auto& [key, source] : sources_) {
    const prefill::PushJob* job = core_->Find(key);
    if (job == nullptr || job->stopped || job->Over() || !world_.router->GaveUp(key)) continue;
    const auto [since, fresh] = given_up_.try_emplace(key, world_.now);
    if (world_.now - since->second > milliseconds(2500)) world_.Break("a prefill leg that was given up goes on");
  }
}

std::string PrefillNode::Holds() const {
  const prefill::PushStats stats = core_->Stats();
  if (stats.jobs + stats.open_lanes + stats.held_sources == 0) return "";
  return StrCat(stats.jobs, " jobs, ", stats.open_lanes, " lanes, ", stats.held_sources, " sources");
}

void PrefillNode::CheckEnd() {
  if (dead() || stopped()) return;
  if (!Holds().empty()) world_.Break(StrCat("prefill ", index_, " still holds ", Holds()));
  const prefill::PushStats stats = core_->Stats();
  if (world_.scenario.faultless() && stats.unclean_closes + stats.source_mismatches + stats.no_room > 0) {
    world_.Break(
        StrCat("without a fault: ", stats.unclean_closes, " unclean closes, ", stats.no_room, " times no room"));
  }
}

}  // namespace baton::sim
