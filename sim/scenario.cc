#include "sim/scenario.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "common/str_cat.h"

namespace baton::sim {
namespace {

/// The numbers of a scenario, by chance.
class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed * 0x9e3779b97f4a7c15ull + 1) {}
  int Pick(int low, int high) { return low + static_cast<int>(random_() % static_cast<uint64_t>(high - low + 1)); }
  double Rate(double most) { return most * Pick(1, 10) / 10; }
  bool OneOf(int n) { return Pick(1, n) == 1; }
  /// 100 to 60,000, as often below 2,450 as above.
  int PauseMs() { return static_cast<int>(100 * std::pow(600.0, Pick(0, 1000) / 1000.0)); }

 private:
  std::mt19937_64 random_;
};

void DrawCluster(ClusterScenario& s, Dice& dice) {
  s.prefills = dice.Pick(1, 2);
  s.decodes = dice.Pick(1, 2);
  s.requests = dice.Pick(1, 6);
  s.prefill_block = dice.OneOf(3) ? 64 : 16;
  s.decode_block = dice.OneOf(3) ? 64 : 16;
  s.window = dice.OneOf(6) ? 33 : 0;
  s.longest = dice.OneOf(4) ? 40 : 120;
  s.prefill_blocks = dice.OneOf(3) ? 24 : 64;
  s.decode_blocks = dice.OneOf(3) ? 24 : 64;
  s.landing_slots = dice.Pick(2, 6);
  s.chunk = dice.OneOf(2) ? 32 : 96;
  s.fence = dice.OneOf(3) ? FenceKind::kReceiverWrites : dice.OneOf(2) ? FenceKind::kForcedClose : FenceKind::kPeerExit;
  s.local_prefill_tokens = dice.OneOf(3) ? 24 : dice.OneOf(8) ? -1 : 0;
  s.round_robin = dice.OneOf(4);
  if (dice.OneOf(4)) s.credit_tokens = 8;
}

/// Chunks begin inside blocks that are being sent by a late thread, and others want those blocks.
void CrowdBlocks(ClusterScenario& s, Dice& dice) {
  s.chunk = dice.OneOf(2) ? 16 : 48;
  s.prefill_block = 64;
  s.prefill_blocks = 24;
  s.landing_slots = dice.Pick(2, 6);
  s.longest = 160;
  s.requests = std::max(s.requests, 6);
  s.arrive_ms = 10;
  s.us_per_token = dice.Pick(30, 200);  // lanes are bound long before a prompt is there
  s.most_turns = dice.Pick(1, 2);
  s.busy = std::max(s.busy, 0.3);
  if (dice.OneOf(2)) return;
  // Long ones, a piece in a slot: what is computed waits for credit while the next chunk runs.
  s.slot_bytes = 448;
  s.piece_tokens = 16;
  s.chunk = 16;
  s.decode_block = 16;
  s.decode_blocks = 64;
  s.max_model_len = 384;
  s.longest = 300;
  s.requests = dice.Pick(8, 12);
  s.us_per_token = dice.Pick(50, 300);
  s.landing_slots = 24;
  s.busy = std::max(s.busy, 0.6);
}

void DrawFaults(ClusterScenario& s, Dice& dice, int kind) {  // 0: none; 1: all
  const auto has = [&](int which) { return kind == 1 || kind == which || (kind != 0 && dice.OneOf(6)); };
  if (has(2)) s.lanes = {dice.Rate(0.05), dice.Rate(0.1), dice.Rate(0.1), dice.Rate(0.1), 0, 0};
  if (has(3)) {
    s.lanes.truncate = dice.Rate(0.02);
    s.lanes.corrupt = dice.Rate(0.03);
  }
  if (has(4)) {
    s.late = dice.Rate(0.1);
    s.part = dice.Rate(0.3);
  }
  if (has(5)) s.cut = dice.Rate(0.3);
  if (has(6)) {
    s.die = dice.Rate(0.4);
    s.vanish = dice.Rate(0.1);
  }
  if (has(7)) {
    s.stop = dice.Rate(0.4);
    s.slot_damage = dice.Rate(0.2);
    s.router_stop = dice.Rate(0.1);
  }
  if (kind == 0) return;
  if (dice.OneOf(3)) s.leave = 0.3;
  if (dice.OneOf(5)) (dice.OneOf(3) ? s.router_die : s.router_vanish) = 0.5;
  if (s.stop + s.part > 0 && dice.OneOf(6)) s.most_stop_ms = 60000;
}

/// Faults find prompts and answers under way.
void SlowDown(ClusterScenario& s, Dice& dice) {
  s.slow = true;
  s.arrive_ms = dice.Pick(100, 6000);
  s.step_us = dice.Pick(2000, 60000);
  s.us_per_token = dice.Pick(100, 1000);
  if (dice.OneOf(3)) {  // as long as a prompt of thousands
    s.chunk = 16;
    s.us_per_token = dice.Pick(4000, 12000);
  }
  s.most_tokens = 64;
}

/// Deadlines pass while a writer stands still, and nobody tells the workers in time.
void MissDeadlines(ClusterScenario& s, Dice& dice) {
  s.slow = true;
  s.timeout_ms = dice.Pick(600, 2000);
  s.requests = dice.Pick(6, 12);
  s.arrive_ms = dice.Pick(500, 4000);
  s.us_per_token = dice.Pick(300, 3000);
  s.chunk = 16;
  s.piece_tokens = 16;
  s.landing_slots = dice.Pick(2, 4);
  s.busy = std::max(s.busy, 0.3);
  s.stop = 1;
  s.late = 0.5;
}

/// Prefill legs break off while their KV is on its way, and others go on with the same tickets.
void BreakLegs(ClusterScenario& s, Dice& dice) {
  s.slow = true;
  s.prefills = 2;
  s.cut = 0.6;
  s.requests = dice.Pick(6, 12);
  s.arrive_ms = dice.Pick(500, 4000);
  s.us_per_token = dice.Pick(1000, 4000);
  s.chunk = 16;
  s.piece_tokens = 16;
  s.landing_slots = dice.Pick(2, 4);
  s.most_turns = dice.Pick(10, 60);
  s.piece_bytes = 256;
  s.busy = std::max(s.busy, 0.3);
}

/// Long answers, many on each decode worker: who loses his worker waits for a share of the retry budget.
void LengthenAnswers(ClusterScenario& s, Dice& dice) {
  s.slow = true;
  s.requests = dice.Pick(12, 24);
  s.most_tokens = 64;
  s.chunk = 512;
  s.prefill_blocks = s.decode_blocks = 512;
  s.step_us = dice.Pick(60000, 200000);
  s.us_per_token = dice.Pick(10, 50);
  s.fault_at_ms = dice.Pick(500, 6000);
}

/// A small ring that a writer can fill, and that many want.
void CrowdRing(ClusterScenario& s, Dice& dice) {
  s.slow = true;
  s.fence = FenceKind::kPeerExit;
  s.landing_slots = dice.Pick(2, 4);
  s.decodes = 2;
  s.requests = dice.Pick(8, 16);
  s.arrive_ms = dice.Pick(500, 4000);
  s.fault_at_ms = dice.Pick(50, 2000);
  s.us_per_token = dice.Pick(1000, 4000);
  s.chunk = 16;
  s.piece_tokens = 16;
  s.slot_bytes = 896;
  s.longest = 120;
}

/// One thing happens, while answers run, and a spare worker is there.
void DrawOneFault(ClusterScenario& s, Dice& dice) {
  s.prefills = dice.Pick(2, 3);
  s.decodes = dice.Pick(2, 3);
  s.prefill_blocks = s.decode_blocks = 96;
  s.landing_slots = dice.Pick(6, 16);
  s.one_fault = static_cast<OneFault>(dice.Pick(1, 8));
  s.fault_at_ms = dice.Pick(1, 400);
  s.arrive_ms = dice.Pick(1, 500);
  s.requests = dice.Pick(2, 14);
  s.most_tokens = 64;
  s.step_us = dice.Pick(200, 2000);
  s.us_per_token = dice.Pick(10, 100);
  if (dice.OneOf(2)) {
    SlowDown(s, dice);
    s.fault_at_ms = dice.Pick(1, 6000);
  }
  if (dice.OneOf(4)) LengthenAnswers(s, dice);
  if (dice.OneOf(4)) CrowdRing(s, dice);
  s.most_stop_ms = dice.PauseMs();
  if (!dice.OneOf(4)) return;
  ++s.prefills;  // no spare: nobody needs it
  s.odd_prefills = 1;
  s.odd_dtype = dice.OneOf(2);
  if (!dice.OneOf(2)) return;
  ++s.decodes;  // answers begin here, too, and go on elsewhere
  s.odd_decodes = 1;
}

/// Operators change roles while requests run, and while all else happens.
void DrawChange(ClusterScenario& s, Dice& dice) {
  if (s.one_fault != OneFault::kNone) {
    s.one_fault = OneFault::kFlip;
    s.fault_at_ms = dice.Pick(1, s.arrive_ms);
    if (dice.OneOf(2)) s.routers = 2;
    if (dice.OneOf(2)) s.late = 0.1;
    return;
  }
  s.prefills = std::max(s.odd_prefills, dice.Pick(1, 3));
  s.decodes = std::max(s.odd_decodes, dice.Pick(1, 3));
  s.flip = dice.Rate(1.5);
  if (dice.OneOf(2)) s.routers = 2;
  if (dice.OneOf(3)) s.flip_fails = 0.3;
  if (dice.OneOf(3)) s.flip_patience_ms = dice.Pick(20, 2000);
}

/// Two releases side by side, whose KV protocols share no version in every second seed.
void DrawUpgrades(ClusterScenario& s, Dice& dice) {
  s.canaries = true;
  if (s.one_fault != OneFault::kNone) return;
  s.upgrade = dice.Rate(0.8);
  s.flip /= 2;
}

/// Ranks that carry their own KV, cut alike on both sides or not.
void DrawRanks(ClusterScenario& s, Dice& dice) {
  s.heads = 2;
  s.slot_bytes *= s.heads;  // a segment has all heads of its lane
  s.layers = 2;
  s.stage_cut = dice.Pick(0, 2);
  s.prefill_tensor = dice.Pick(1, 2), s.prefill_stages = dice.Pick(1, 2);
  s.decode_tensor = dice.Pick(1, 2), s.decode_stages = dice.Pick(1, 2);
  if (s.ranks_of(true) == 1 && s.ranks_of(false) == 1) s.prefill_tensor = s.decode_stages = 2;
  s.landing_slots = std::max(s.landing_slots, 16);  // of a ring; a ticket's lanes to one rank take at most half
  if (!s.faultless() && s.one_fault == OneFault::kNone && dice.OneOf(2)) s.rank_dies = dice.Rate(0.3);
}

/// Which worker's, and for how long; before its KV travels, meanwhile or after it.
void DrawOneRank(ClusterScenario& s, Dice& dice) {
  s.one_fault = dice.OneOf(2) ? OneFault::kLoseRank : OneFault::kHangRank;
  s.rank_prefills = dice.OneOf(2);
  if (s.ranks_of(s.rank_prefills) == 1) (s.rank_prefills ? s.prefill_tensor : s.decode_stages) = 2;
  s.most_stop_ms = dice.PauseMs();
  s.rank_timeout_ms = std::max(1000, dice.PauseMs());
}

ClusterScenario Unchanged(uint64_t seed, bool one_fault);

/// Answers longer than what is kept for who does not read, in little memory.
ClusterScenario WithReaders(uint64_t seed) {
  ClusterScenario s = Unchanged(seed, /*one_fault=*/false);
  Dice dice(~seed);
  s.credit_tokens = dice.Pick(2, 8);
  s.undelivered_tokens = dice.Pick(1, 4);
  s.pauses = 0.7;
  s.requests = std::max(s.requests, dice.Pick(6, 12));
  s.most_tokens = 64;
  if (dice.OneOf(2) && s.max_model_len <= 200) s.decode_blocks = 24;
  return s;
}

/// Clients of several API keys, who find the router full of answers that others do not read.
ClusterScenario WithKeys(uint64_t seed) {
  ClusterScenario s = WithReaders(seed);
  Dice dice(seed);
  s.routers = 1;
  s.decode_blocks = std::max(s.decode_blocks, 64);
  s.keys = dice.Pick(2, 3);
  s.most_running = dice.Pick(4, 8);
  s.pauses = 0.9;
  s.most_pause_ms = 30000;
  s.requests = dice.Pick(40, 60);
  s.arrive_ms = 15000;
  return s;
}

ClusterScenario WithMeddlers(uint64_t seed) {
  ClusterScenario s = Unchanged(seed, /*one_fault=*/seed % 2 == 1);
  Dice dice(~seed);
  if (s.one_fault != OneFault::kNone) s.one_fault = OneFault::kMeddle;
  s.routers = dice.Pick(2, 3);
  s.requests = std::max(s.requests, dice.Pick(6, 12));
  s.meddles = true;
  return s;
}

ClusterScenario WithRivals(uint64_t seed) {
  ClusterScenario s = Unchanged(seed, /*one_fault=*/seed % 2 == 1);
  Dice dice(~seed);
  s.one_fault = OneFault::kNone;
  s.router_stop = s.router_die = s.router_vanish = 0;  // one that dies forgets what it has changed
  s.routers = dice.Pick(2, 3);
  s.decodes = std::max(s.odd_decodes, dice.Pick(2, 3));
  s.requests = std::max(s.requests, dice.Pick(6, 12));
  s.rivals_at_ms = dice.Pick(1, s.arrive_ms);
  if (dice.OneOf(3)) s.flip_patience_ms = dice.Pick(20, 2000);
  if (dice.OneOf(3)) s.late = 0.1;
  return s;
}

}  // namespace

ClusterScenario ClusterScenario::FromSeed(uint64_t seed) {
  if (seed >= kSeedsOfRivals) return WithRivals(seed);
  if (seed >= kSeedsOfKeys) return WithKeys(seed);
  if (seed >= kSeedsOfMeddlers) return WithMeddlers(seed);
  if (seed >= kSeedsOfReaders) return WithReaders(seed);
  const bool has_ranks = seed >= kSeedsOfRanks, upgrades = seed >= kSeedsOfRankUpgrades;
  const bool one_rank = seed >= kSeedsOfOneRank && !upgrades;
  ClusterScenario s = Unchanged(seed, one_rank || seed % 4 == 3);
  Dice dice(~seed);
  if (seed >= kSeedsOfChange && (!has_ranks || seed >= kSeedsOfRanksThatChange) && !one_rank) DrawChange(s, dice);
  if (seed >= kSeedsOfUpgrades && (!has_ranks || upgrades)) DrawUpgrades(s, dice);
  if (has_ranks) DrawRanks(s, dice);
  if (one_rank) DrawOneRank(s, dice);
  if (seed >= kSeedsOfOrders && s.one_fault == OneFault::kNone) s.drain = dice.Rate(4);
  return s;
}

namespace {

ClusterScenario Unchanged(uint64_t seed, bool one_fault) {
  Dice dice(seed);
  ClusterScenario s;
  s.seed = seed;
  DrawCluster(s, dice);
  if (one_fault) {
    DrawOneFault(s, dice);
    return s;
  }
  const int kind = static_cast<int>(seed % 4 + seed / 4 % 2 * 4);  // 0…2, 4…6
  DrawFaults(s, dice, kind == 2 && dice.OneOf(3) ? 3 : kind == 6 && dice.OneOf(2) ? 7 : kind);
  if (dice.OneOf(4)) {  // a queue
    s.requests += dice.Pick(2, 6);
    s.us_per_token = kind == 0 ? 50 : dice.Pick(50, 150);
  }
  if (kind != 0 && dice.OneOf(2)) s.no_room_ms = 200;
  if (dice.OneOf(3)) s.busy = dice.Rate(0.1);
  if (dice.OneOf(3)) {
    s.most_turns = kind == 0 ? 8 : dice.Pick(6, 60);
    s.piece_bytes = 256;
  }
  if (s.die + s.stop > 0 && dice.OneOf(3)) s.timeout_ms = dice.Pick(300, 1500);
  if (dice.OneOf(5)) CrowdBlocks(s, dice);
  if (dice.OneOf(4)) s.routers = 2;
  if (dice.OneOf(4)) {
    s.odd_prefills = dice.Pick(0, s.prefills);
    s.odd_decodes = dice.Pick(0, s.decodes);
    s.odd_dtype = dice.OneOf(2);
  }
  if (s.odd_dtype) s.slot_bytes *= 2;
  if (kind != 0 && dice.OneOf(3)) SlowDown(s, dice);
  if (kind != 0 && dice.OneOf(10)) MissDeadlines(s, dice);
  if (kind != 0 && dice.OneOf(8)) BreakLegs(s, dice);
  return s;
}

constexpr const char* kWrites[] = {"the receiver writes", "the sender writes", "the sender's process writes"};
constexpr const char* kOne[] = {"",
                                "kill a worker",
                                "a worker's machine vanishes",
                                "stop a worker",
                                "cut a link",
                                "part a link",
                                "pause the router",
                                "pause everything",
                                "drain a worker",
                                "change a worker's role",
                                "kill a rank",
                                "stop a rank",
                                "routers meddle"};

}  // namespace

std::string ClusterScenario::Text() const {
  const auto list = [](std::initializer_list<std::pair<const char*, double>> values) {
    std::string text;
    for (const auto& [name, value] : values) text += value == 0 ? "" : StrCat(", ", name, " ", value);
    return text;
  };
  return StrCat(
      "seed ", seed, ": ", routers, "R ", prefills, "P ", decodes, "D, ", requests, " requests to ", longest, " + ",
      most_tokens, " tokens, blocks ", prefill_blocks, "x", prefill_block, " and ", decode_blocks, "x", decode_block,
      window > 0 ? ", window" : "", round_robin ? ", round robin" : "", ", ", landing_slots, " slots of ", slot_bytes,
      " bytes, pieces of ", piece_tokens, ", ", kWrites[static_cast<int>(fence)], ", ", us_per_token, " us a token, ",
      step_us, " us a step, chunks of ", chunk, ", asked within ", arrive_ms, " ms",
      list({{"odd prefill workers", odd_prefills},
            {"odd decode workers", odd_decodes},
            {"of another dtype", odd_dtype ? 1 : 0},
            {"credit", credit_tokens},
            {"kept", undelivered_tokens},
            {"pauses", pauses},
            {"API keys", keys},
            {"timeout ms", timeout_ms},
            {"busy", busy},
            {"turns", most_turns},
            {"drop", lanes.drop},
            {"duplicate", lanes.duplicate},
            {"delay", lanes.delay},
            {"reorder", lanes.reorder},
            {"truncate", lanes.truncate},
            {"corrupt", lanes.corrupt},
            {"late", late},
            {"slots damaged", slot_damage},
            {"die", die},
            {"vanish", vanish},
            {"stop", stop},
            {"cut", cut},
            {"part", part},
            {"change roles", flip},
            {"cannot", flip_fails},
            {"patience ms", flip_patience_ms},
            {"all that decode at ms", rivals_at_ms},
            {"drain", drain},
            {"upgrade", upgrade},
            {"canaries", canaries ? 1 : 0},
            {"more tensor ranks to prefill", prefill_tensor - 1},
            {"more stages", prefill_stages - 1},
            {"more tensor ranks to decode", decode_tensor - 1},
            {"more stages", decode_stages - 1},
            {"ranks die", rank_dies},
            {"of a prefill worker", rank_prefills ? 1 : 0},
            {"rank timeout ms", rank_timeout_ms == 60000 ? 0 : rank_timeout_ms},
            {"meddle", meddles ? 1 : 0},
            {"router stop", router_stop},
            {"router die", router_die},
            {"router vanish", router_vanish},
            {"to ms", most_stop_ms},
            {"leave", leave}}),
      one_fault == OneFault::kNone ? "" : StrCat("; ", kOne[static_cast<int>(one_fault)], " at ", fault_at_ms, " ms"));
}

}  // namespace baton::sim
