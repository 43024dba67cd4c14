// A world in virtual time for the two handoff cores: prefill and decode workers with their memory, a router, and a
// network that drops, repeats, delays and reorders. One seed decides everything. The first broken promise ends the run.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/str_cat.h"

namespace baton::sim {

class PrefillNode;
class DecodeNode;
class RouterModel;

enum class Wire : uint8_t {
  kRdma,  ///< one-sided puts; the receiver can cut a writer off
  kShm,   ///< one-sided puts; only the writer's exit ends them
  kRecv,  ///< the receiver writes what it receives
};

/// Rates are per message, write or second; 0: never.
struct Scenario {
  uint32_t seed = 0;
  Wire wire = Wire::kRdma;
  int prefills = 2, decodes = 2, requests = 4, lanes = 1, segments = 3;
  int ring_slots = 4, slots_per_lane = 1, blocks = 3, tokens = 6;
  bool own_ways = false;  ///< each lane has a connection of its own, as between ranks that are processes
  int expiry_ms = 12000;  ///< of tickets
  int spread_ms = 30;     ///< requests arrive within it
  double drop = 0, duplicate = 0, delay = 0, late_write = 0, corrupt = 0, misplace = 0, stale_source = 0;
  double reset = 0;                                     ///< connections per second
  double die = 0, stop = 0;                             ///< per worker per second
  double freeze = 0;                                    ///< for ever; per prefill worker per second
  double give_up = 0, client_leaves = 0, reattach = 0;  ///< per request and second
  bool faultless() const {
    return drop + duplicate + delay + late_write + corrupt + misplace + stale_source + reset + die + stop + freeze +
               give_up + client_leaves + reattach ==
           0;
  }
  /// What a seed stands for; every fifth is without faults.
  static Scenario FromSeed(uint32_t seed);
  std::string Text() const;
};

/// The bug in force; see common/planted_bug.h. The router's and the placer's own are asked for here as well.
void PlantBug(std::string name);
bool Planted(std::string_view name);

class World;

/// A process: may be stopped and resumed, may die and come back as a new one. Its clock is its own.
class Node {
 public:
  explicit Node(World& world);
  virtual ~Node() = default;
  /// Runs `work` in this process after `delay`, unless the process died meanwhile; a stopped one does it on resuming.
  void Post(Duration delay, std::function<void()> work);
  TimePoint Local() const;
  void Stop() { stopped_ = true; }
  /// For ever.
  void Freeze() { stopped_ = frozen_ = true; }
  void Resume();
  void Kill();
  void Restart();
  bool dead() const { return dead_; }
  bool stopped() const { return stopped_; }
  uint64_t life() const { return life_; }

 protected:
  virtual void Reborn() = 0;  ///< memory is lost
  World& world_;

 private:
  bool dead_ = false, stopped_ = false, frozen_ = false;
  uint64_t life_ = 1;
  Duration skew_;
  double rate_;
  std::deque<std::function<void()>> held_;
};

/// A connection of one prefill incarnation to one decode incarnation: PeerId here, WriterId there.
struct Connection {
  uint64_t id = 0;
  int prefill = 0, decode = 0;
  uint64_t prefill_life = 0, decode_life = 0;
  uint32_t memory = 0;    ///< of the decode worker: the landing memory that it writes
  int way = 0;            ///< of several between the two
  bool lost = false;      ///< no message passes any more; writes may still land
  bool cut = false;       ///< nothing lands any more
  bool released = false;  ///< its fence is told to nobody
};

class World {
 public:
  explicit World(const Scenario& scenario);
  ~World();
  /// Runs the scenario to its end; the broken promise, or nothing.
  std::string Run();

  void After(Duration delay, std::function<void()> work);
  /// A message: may be lost, repeated, delayed, overtaken. `deliver` runs at the other end.
  void Send(std::function<void(Duration)> deliver);
  Duration Latency();
  bool Chance(double probability) { return probability > 0 && std::bernoulli_distribution(probability)(random); }
  int Pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); }
  Connection& Connect(int prefill, int decode, uint32_t memory, int way = 0);
  Connection& connection(uint64_t id) { return *connections_[id - 1]; }
  /// Breaks a connection: both ends are told.
  void Reset(Connection& connection);
  /// Those to this life of a decode worker that write `memory` can write no more, and both ends hear of it.
  void DropMemory(int decode, uint64_t life, uint32_t memory);
  void Break(const std::string& promise);
  bool broken() const { return !broken_.empty(); }

  const Scenario scenario;
  std::mt19937 random;
  TimePoint now{std::chrono::seconds(100)};
  bool faults_on = true;
  std::vector<std::unique_ptr<PrefillNode>> prefills;
  std::vector<std::unique_ptr<DecodeNode>> decodes;
  std::unique_ptr<RouterModel> router;

 private:
  struct Timer {
    TimePoint at;
    uint64_t order;
    std::function<void()> work;
    bool operator<(const Timer& other) const { return at != other.at ? at > other.at : order > other.order; }
  };
  void RunFor(Duration time, const std::function<bool()>& enough);
  void Disturb();
  void DisturbNode(Node& node);
  void KillNode(Node& node);
  void Settle();
  bool Empty() const;

  std::priority_queue<Timer> timers_;
  uint64_t order_ = 0;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::string broken_;
};

/// The right content of one segment of a request's KV.
inline uint64_t RightCell(int request, uint32_t lane, uint32_t segment) {
  return 1 + static_cast<uint64_t>(request) * 10000 + lane * 100 + segment;
}

}  // namespace baton::sim
