// What a seed stands for.
#pragma once

#include <cstdint>
#include <string>

namespace baton::sim {

/// How often each message is harmed.
struct MessageFaults {
  double drop = 0, duplicate = 0, delay = 0, reorder = 0, truncate = 0, corrupt = 0;
  double sum() const { return drop + duplicate + delay + reorder + truncate + corrupt; }
};

struct ClusterScenario {
  uint64_t seed = 0;
  int prefills = 1, decodes = 1, requests = 4;
  int prefill_block = 16, decode_block = 16, window = 0;
  int prefill_blocks = 64, decode_blocks = 64;  ///< of a worker's pool
  int landing_slots = 4, chunk = 48, longest = 120;
  int slot_bytes = 2048, piece_tokens = 32, max_model_len = 200;
  bool receiver_writes = false;  ///< else the sender writes landing memory
  uint32_t local_prefill_tokens = 0;
  int us_per_token = 10;              ///< of a step
  int arrive_ms = 500;                ///< between the first request and the last, at most
  int expiry_ms = 6000;               ///< of tickets
  int no_room_ms = 20000;             ///< PushOptions::no_room_after
  double busy = 0;                    ///< share of a transfer thread's turns that come late
  int most_turns = 6;                 ///< SimPace
  int piece_bytes = 64 << 10;         ///< SimPace
  MessageFaults lanes, control;       ///< between prefill and decode, between the router and workers
  double slot_damage = 0;             ///< share of slots whose bytes are harmed
  double die = 0, stop = 0, cut = 0;  ///< per worker and second; a stopped one goes on after some seconds
  double leave = 0;                   ///< share of clients that leave
  int router_dies_ms = 0;             ///< after so long, and no worker hears of it; another one comes. 0: never
  bool faultless() const {
    return lanes.sum() + control.sum() + slot_damage + die + stop + cut + leave + router_dies_ms == 0;
  }

  /// Every eighth seed is without faults, every eighth has all of them.
  static ClusterScenario FromSeed(uint64_t seed);
  std::string Text() const;
};

}  // namespace baton::sim
