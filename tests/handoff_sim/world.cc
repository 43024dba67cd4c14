#include "world.h"

#include <utility>

#include "common/check.h"
#include "common/planted_bug.h"
#include "decode_node.h"
#include "prefill_node.h"
#include "router_model.h"

namespace baton {
namespace {
std::string& BugInForce() {
  static std::string name;
  return name;
}
}  // namespace
std::string_view PlantedBugInForce() { return BugInForce(); }
namespace sim {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

void PlantBug(std::string name) { BugInForce() = std::move(name); }
bool Planted(std::string_view name) { return BugInForce() == name; }

Scenario Scenario::FromSeed(uint32_t seed) {
  std::mt19937 random(seed * 2654435761u + 1);
  const auto pick = [&random](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  Scenario s;
  s.seed = seed;
  s.wire = static_cast<Wire>(pick(0, 2));
  s.prefills = pick(1, 2), s.decodes = pick(1, 2), s.requests = pick(2, 6);
  s.lanes = pick(1, 3), s.segments = pick(1, 5);
  s.own_ways = seed % 2 == 1;
  s.slots_per_lane = pick(1, 2);
  s.ring_slots = 2 * s.lanes;  // the least that can bind a ticket
  if (pick(0, 1) == 0) s.ring_slots += pick(1, 5);
  s.blocks = pick(1, 4), s.tokens = pick(1, 8);
  s.expiry_ms = pick(3000, 12000), s.spread_ms = pick(0, 1) * 30;
  if (seed % 5 == 0) return s;
  if (pick(0, 1) == 0) s.expiry_ms = pick(800, 3000);
  const auto maybe = [&pick](double rate) { return pick(0, 2) == 0 ? rate : 0.0; };
  s.drop = maybe(0.05), s.duplicate = maybe(0.1), s.delay = maybe(0.05);
  s.late_write = maybe(0.1), s.corrupt = maybe(0.1), s.misplace = maybe(0.1), s.stale_source = maybe(0.05);
  s.reset = maybe(1), s.die = maybe(0.3), s.stop = maybe(0.5);
  if (s.wire == Wire::kShm) s.freeze = maybe(0.2);
  s.give_up = maybe(5), s.client_leaves = maybe(1), s.reattach = maybe(5);
  return s;
}

std::string Scenario::Text() const {
  return StrCat("seed ", seed, ": wire ", static_cast<int>(wire), " P ", prefills, " D ", decodes, " requests ",
                requests, own_ways ? " own ways, lanes " : " lanes ", lanes, " segments ", segments, " ring ",
                ring_slots, "/", slots_per_lane, " blocks ", blocks, " tokens ", tokens, " expiry ", expiry_ms,
                " drop ", drop, " duplicate ", duplicate, " delay ", delay, " late ", late_write, " corrupt ", corrupt,
                " misplace ", misplace, " stale ", stale_source, " reset ", reset, " die ", die, " stop ", stop,
                " freeze ", freeze, " give up ", give_up, " leaves ", client_leaves, " reattach ", reattach);
}

// ---- processes

Node::Node(World& world)
    : world_(world), skew_(seconds(world.Pick(-1000, 1000))), rate_(1.0 + world.Pick(-100, 100) * 1e-5) {}

TimePoint Node::Local() const {
  const auto elapsed = world_.now - TimePoint(seconds(100));
  return TimePoint(seconds(5000)) + skew_ + std::chrono::duration_cast<Duration>(elapsed * rate_);
}

void Node::Post(Duration delay, std::function<void()> work) {
  world_.After(delay, [this, life = life_, work = std::move(work)]() mutable {
    if (dead_ || life != life_) return;
    if (stopped_) {
      held_.push_back(std::move(work));
    } else {
      work();
    }
  });
}

void Node::Resume() {
  if (frozen_) return;
  stopped_ = false;
  for (auto& work : std::exchange(held_, {})) {
    if (!dead_) work();
  }
}

void Node::Kill() {
  dead_ = true, stopped_ = frozen_ = false;
  held_.clear();
}

void Node::Restart() {
  dead_ = false;
  ++life_;
  Reborn();
}

// ---- the world

World::World(const Scenario& s) : scenario(s), random(s.seed) {
  for (int i = 0; i < s.prefills; ++i) prefills.push_back(std::make_unique<PrefillNode>(*this, i));
  for (int i = 0; i < s.decodes; ++i) decodes.push_back(std::make_unique<DecodeNode>(*this, i));
  router = std::make_unique<RouterModel>(*this);
}

World::~World() = default;

void World::After(Duration delay, std::function<void()> work) {
  timers_.push({now + delay, order_++, std::move(work)});
}

Duration World::Latency() {
  Duration latency = microseconds(Pick(20, 300));
  if (Pick(0, 19) == 0) latency += milliseconds(Pick(0, 5));
  if (faults_on && Chance(scenario.delay)) latency += milliseconds(Pick(0, 1500));
  return latency;
}

void World::Send(std::function<void(Duration)> deliver) {
  if (faults_on && Chance(scenario.drop)) return;
  const int copies = faults_on && Chance(scenario.duplicate) ? 2 : 1;
  for (int i = 0; i < copies; ++i) deliver(Latency() * (i + 1));
}

Connection& World::Connect(int prefill, int decode, uint32_t memory, int way) {
  const uint64_t p_life = prefills[static_cast<size_t>(prefill)]->life(),
                 d_life = decodes[static_cast<size_t>(decode)]->life();
  for (auto& c : connections_) {
    if (!c->lost && c->prefill == prefill && c->decode == decode && c->prefill_life == p_life &&
        c->decode_life == d_life && c->memory == memory && c->way == way)
      return *c;
  }
  connections_.push_back(
      std::make_unique<Connection>(Connection{connections_.size() + 1, prefill, decode, p_life, d_life, memory, way}));
  Connection& made = *connections_.back();
  if (prefills[static_cast<size_t>(prefill)]->dead() || decodes[static_cast<size_t>(decode)]->dead()) {
    After(milliseconds(1), [this, &made] { Reset(made); });
  }
  return made;
}

void World::Reset(Connection& c) {
  if (std::exchange(c.lost, true)) return;
  PrefillNode& p = *prefills[static_cast<size_t>(c.prefill)];
  DecodeNode& d = *decodes[static_cast<size_t>(c.decode)];
  const uint64_t id = c.id;
  if (p.life() == c.prefill_life) p.Post(milliseconds(Pick(0, 100)), [&p, id] { p.OnPeerLost(id); });
  if (d.life() == c.decode_life) d.Post(milliseconds(Pick(0, 100)), [&d, id] { d.OnWriterLost(id); });
}

void World::DropMemory(int decode, uint64_t life, uint32_t memory) {
  for (size_t i = 0; i < connections_.size(); ++i) {
    Connection& c = *connections_[i];
    if (c.decode != decode || c.decode_life != life || c.memory != memory) continue;
    c.cut = true;
    Reset(c);
  }
}

void World::Break(const std::string& promise) {
  if (broken_.empty()) broken_ = StrCat(promise, " at ", Seconds(now - TimePoint(seconds(100))), " s");
}

/// Every 10 ms while faults are on.
void World::Disturb() {
  if (!faults_on) return;
  After(milliseconds(10), [this] { Disturb(); });
  for (auto& node : prefills) {
    DisturbNode(*node);
    if (Chance(scenario.freeze / 100) && !node->dead()) node->Freeze();
  }
  for (auto& node : decodes) DisturbNode(*node);
  for (size_t i = 0; i < connections_.size(); ++i) {
    if (Chance(scenario.reset / 100)) Reset(*connections_[i]);
  }
}

void World::DisturbNode(Node& node) {
  if (node.dead()) return;
  if (Chance(scenario.die / 100)) {
    KillNode(node);
    After(milliseconds(Pick(50, 3000)), [&node] { node.Restart(); });
  } else if (!node.stopped() && Chance(scenario.stop / 100)) {
    node.Stop();
    After(milliseconds(Pick(100, 8000)), [&node] { node.Resume(); });
  }
}

/// Peers hear of it: the connection breaks; on shared memory the exit itself is seen, and is the fence.
void World::KillNode(Node& node) {
  node.Kill();
  for (size_t i = 0; i < connections_.size(); ++i) {
    Connection& c = *connections_[i];
    const bool prefill_died = &node == prefills[static_cast<size_t>(c.prefill)].get() && c.prefill_life == node.life();
    const bool decode_died = &node == decodes[static_cast<size_t>(c.decode)].get() && c.decode_life == node.life();
    if (!prefill_died && !decode_died) continue;
    Reset(c);
    if (decode_died) c.cut = true;
    if (prefill_died && scenario.wire == Wire::kShm) {
      c.cut = true;
      DecodeNode& d = *decodes[static_cast<size_t>(c.decode)];
      if (d.life() == c.decode_life) d.Post(milliseconds(Pick(0, 200)), [&d, id = c.id] { d.OnWriterFenced(id); });
    }
  }
}

void World::RunFor(Duration time, const std::function<bool()>& enough) {
  const TimePoint end = now + time;
  while (!timers_.empty() && timers_.top().at <= end && broken_.empty() && !enough()) {
    Timer next = std::move(const_cast<Timer&>(timers_.top()));  // popped at once, so its order no longer matters
    timers_.pop();
    now = next.at;
    next.work();
  }
  if (broken_.empty() && !enough()) now = end;
}

bool World::Empty() const {
  for (const auto& d : decodes) {
    if (!d->dead() && !d->Holds().empty()) return false;
  }
  for (const auto& p : prefills) {
    if (!p->dead() && !p->stopped() && !p->Holds().empty()) return false;
  }
  return true;
}

/// Faults have ended: what every worker holds must come back. A prefill worker that is frozen for ever holds up nobody.
void World::Settle() {
  faults_on = false;
  const auto run = [this](int most_seconds) {
    for (int i = 0; i < most_seconds && broken_.empty() && !Empty(); ++i) RunFor(seconds(1), [] { return false; });
  };
  run(40);
  for (auto& d : decodes) d->CheckEnd();
  for (auto& p : prefills) p->CheckEnd();
}

std::string World::Run() {
  Disturb();
  router->Begin();
  RunFor(seconds(90), [this] { return router->AllEnded(); });
  if (broken_.empty() && !router->AllEnded()) Break("a request never ended");
  if (broken_.empty()) Settle();
  return broken_;
}

}  // namespace sim
}  // namespace baton
