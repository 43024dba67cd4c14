#include "sim/scenario.h"

#include <algorithm>
#include <random>

#include "common/str_cat.h"

namespace baton::sim {

ClusterScenario ClusterScenario::FromSeed(uint64_t seed) {
  std::mt19937_64 random(seed * 0x9e3779b97f4a7c15ull + 1);
  const auto pick = [&random](int low, int high) {
    return low + static_cast<int>(random() % static_cast<uint64_t>(high - low + 1));
  };
  const auto rate = [&](double most) { return most * pick(1, 10) / 10; };
  ClusterScenario s;
  s.seed = seed;
  s.prefills = pick(1, 2), s.decodes = pick(1, 2), s.requests = pick(1, 6);
  s.prefill_block = pick(0, 2) == 0 ? 64 : 16, s.decode_block = pick(0, 2) == 0 ? 64 : 16;
  s.window = pick(0, 5) == 0 ? 33 : 0;
  s.longest = pick(0, 3) == 0 ? 40 : 120;
  s.prefill_blocks = pick(0, 2) == 0 ? 24 : 64, s.decode_blocks = pick(0, 2) == 0 ? 24 : 64;
  s.landing_slots = pick(2, 6);
  s.chunk = pick(0, 1) == 0 ? 32 : 96;
  s.receiver_writes = pick(0, 1) == 0;
  s.local_prefill_tokens = pick(0, 2) == 0 ? 24 : 0;
  const int kind = static_cast<int>(seed % 8);  // 0: no faults; 1: all
  const auto has = [&](int which) { return kind == 1 || kind == which || (kind != 0 && pick(0, 5) == 0); };
  if (has(2)) s.lanes = {rate(0.05), rate(0.1), rate(0.1), rate(0.1), 0, 0};
  if (has(3)) s.lanes.truncate = rate(0.02), s.lanes.corrupt = rate(0.03);
  if (has(4)) s.control = {rate(0.05), rate(0.1), rate(0.1), rate(0.1), 0, 0};
  if (has(5)) s.control.truncate = rate(0.02), s.control.corrupt = rate(0.02), s.cut = rate(0.3);
  if (has(6)) s.die = rate(0.4);
  if (has(7)) s.stop = rate(0.4), s.slot_damage = rate(0.2);
  if (kind != 0 && pick(0, 2) == 0) s.leave = 0.3;
  if (pick(0, 3) == 0) s.requests += pick(2, 6), s.us_per_token = kind == 0 ? 50 : pick(50, 150);  // a queue
  if (kind != 0 && pick(0, 1) == 0) s.no_room_ms = 200;
  if (pick(0, 2) == 0) s.busy = rate(0.1);
  if (pick(0, 2) == 0) s.most_turns = kind == 0 ? 8 : pick(6, 60), s.piece_bytes = 256;
  if (s.die + s.stop > 0 && pick(0, 3) == 0) s.expiry_ms = pick(600, 1500);
  if (kind != 0 && pick(0, 7) == 0) s.router_dies_ms = pick(1, 600);
  if (seed % 5 == 2) {  // chunks begin inside blocks that are being sent by a late thread, and others want those blocks
    s.chunk = pick(0, 1) == 0 ? 16 : 48, s.prefill_block = 64, s.prefill_blocks = 24, s.landing_slots = pick(2, 6);
    s.longest = 160, s.requests = std::max(s.requests, 6), s.arrive_ms = 10;
    s.us_per_token = pick(30, 200), s.most_turns = pick(1, 2);  // lanes are bound long before a prompt is computed
    s.busy = std::max(s.busy, 0.3);
    if (pick(0, 1) == 0) {  // long ones, a piece in a slot: what is computed waits for credit while the next chunk runs
      s.slot_bytes = 448, s.piece_tokens = 16, s.chunk = 16, s.decode_block = 16, s.decode_blocks = 64;
      s.max_model_len = 384, s.longest = 300, s.requests = pick(8, 12), s.us_per_token = pick(50, 300);
      s.landing_slots = 24, s.busy = std::max(s.busy, 0.6);
    }
  }
  return s;
}

std::string ClusterScenario::Text() const {
  const auto faults = [](const MessageFaults& f) {
    return StrCat("drop ", f.drop, " duplicate ", f.duplicate, " delay ", f.delay, " reorder ", f.reorder, " truncate ",
                  f.truncate, " corrupt ", f.corrupt);
  };
  return StrCat("seed ", seed, ": ", prefills, "P ", decodes, "D, ", requests, " requests to ", longest,
                " tokens, blocks ", prefill_blocks, "x", prefill_block, " and ", decode_blocks, "x", decode_block,
                window > 0 ? ", window" : "", ", ", landing_slots, " slots of ", slot_bytes, " bytes, pieces of ",
                piece_tokens, ", ", receiver_writes ? "the receiver writes" : "the sender writes", ", ", us_per_token,
                " us a token, chunks of ", chunk, ", asked within ", arrive_ms, " ms, tickets for ", expiry_ms,
                " ms, busy ", busy, ", ", most_turns, " turns; lanes ", faults(lanes), "; control ", faults(control),
                "; slots damaged ", slot_damage, ", die ", die, ", stop ", stop, ", cut ", cut, ", leave ", leave,
                router_dies_ms > 0 ? StrCat(", the router dies after ", router_dies_ms, " ms") : "");
}

}  // namespace baton::sim
