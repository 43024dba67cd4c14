// What a seed stands for.
#pragma once

#include <cstdint>
#include <string>

#include "kvtransfer/transport.h"

namespace baton::sim {

/// Of seeds from here on some answers follow a grammar; all others are drawn as those of smaller ones.
inline constexpr uint64_t kSeedsWithGrammars = 1'000'000;
/// And from here on workers change: their roles while requests run.
inline constexpr uint64_t kSeedsOfChange = 2'000'000;

/// And from here on, as often as that, to another release; and workers are proven by canaries.
inline constexpr uint64_t kSeedsOfUpgrades = 4'000'000;

/// Of seeds from here on workers have several ranks, which carry their own KV and may die one by one; all else is as
/// in smaller seeds without change.
inline constexpr uint64_t kSeedsOfRanks = 6'000'000;
/// And from here on those workers change their roles.
inline constexpr uint64_t kSeedsOfRanksThatChange = 7'000'000;
/// And from here on they do not, and in every seed one thing happens: one of their ranks dies or stands still.
inline constexpr uint64_t kSeedsOfOneRank = 8'000'000;
/// And from here on workers of several ranks change their roles and their releases.
inline constexpr uint64_t kSeedsOfRankUpgrades = 9'000'000;
/// And from here on operators drain them, too, and take back what they ordered.
inline constexpr uint64_t kSeedsOfOrders = 10'000'000;
/// From here on they are as seeds with grammars, and many clients stop reading now and then.
inline constexpr uint64_t kSeedsOfReaders = 11'000'000;
/// And from here on they read, and routers say keys of each other's legs; in every second seed nothing else happens.
inline constexpr uint64_t kSeedsOfMeddlers = 12'000'000;
/// And from here on as those of readers, with API keys and few places in a router.
inline constexpr uint64_t kSeedsOfKeys = 13'000'000;
/// And from here on operators who know nothing of each other order all that decode to prefill at once, at two routers
/// or three; in every second seed nothing else happens.
inline constexpr uint64_t kSeedsOfRivals = 14'000'000;

/// How often each message is harmed.
struct MessageFaults {
  double drop = 0, duplicate = 0, delay = 0, reorder = 0, truncate = 0, corrupt = 0;
  double sum() const { return drop + duplicate + delay + reorder + truncate + corrupt; }
};

/// What happens once, in a cluster that is well otherwise.
enum class OneFault : uint8_t {
  kNone,
  kKill,         ///< a worker's process; it comes back after a while
  kVanish,       ///< a worker's machine; it comes back after a while
  kStop,         ///< a worker's process goes on after a while
  kCut,          ///< the connection between the router and a worker breaks
  kPart,         ///< nothing passes between the router and a worker for a while
  kPauseRouter,  ///< the router's process goes on after a while
  kPauseAll,     ///< every process does
  kDrain,        ///< an operator drains a worker, which takes requests again after a while
  kFlip,         ///< an operator changes a worker's role
  kLoseRank,     ///< a rank of a worker dies; the others notice, end as well, and come back after a while
  kHangRank,     ///< a rank of a worker stands still: it goes on after a while, or the others end and all come back
  kMeddle,       ///< routers say keys of each other's legs: again and again, and nothing else
};

struct ClusterScenario {
  uint64_t seed = 0;
  int prefills = 1, decodes = 1, requests = 4, routers = 1;
  bool round_robin = false;  ///< else by predicted time
  int prefill_block = 16, decode_block = 16, window = 0;
  int prefill_blocks = 64, decode_blocks = 64;  ///< of a worker's pool
  int landing_slots = 4, chunk = 48, longest = 120, most_tokens = 24;
  int slot_bytes = 2048, piece_tokens = 32, max_model_len = 200;
  // How workers cut their KV over ranks: heads of `heads`, and layers in one or two stages.
  int heads = 1, layers = 1;  ///< layers of each group
  int prefill_tensor = 1, prefill_stages = 1, decode_tensor = 1, decode_stages = 1;
  int stage_cut = 0;                          ///< where the second stage begins
  int64_t max_reserved_tokens = 0;            ///< of a decode worker's tickets; 0: ten longest sequences
  FenceKind fence = FenceKind::kForcedClose;  ///< who writes landing memory, and what ends that
  int local_prefill_tokens = 0;               ///< -1: as the router measures
  int us_per_token = 10;                      ///< of a step
  int step_us = 200;                          ///< of every step
  int arrive_ms = 500;                        ///< between the first request and the last, at most
  // The last so many workers of a role compute with other numerics.
  int odd_prefills = 0, odd_decodes = 0;
  bool odd_dtype = false;      ///< they keep KV in another element type as well
  int credit_tokens = 0;       ///< of --relay-credit-tokens; 0: the default
  int undelivered_tokens = 0;  ///< SchedulerOptions::max_undelivered_tokens; 0: the default
  double pauses = 0;           ///< share of clients that stop reading now and then
  int most_pause_ms = 2000;    ///< how long
  int keys = 0;                ///< API keys that clients have; 0: none
  int most_running = 0;        ///< --max-running-requests; 0: the default
  bool slow = false;           ///< prompts and answers take seconds
  int timeout_ms = 0;          ///< of some requests; 0: of none
  int no_room_ms = 20000;      ///< PushOptions::no_room_after
  double busy = 0;             ///< share of a transfer thread's turns that come late
  int most_turns = 6;          ///< SimPace
  int piece_bytes = 64 << 10;  ///< SimPace
  MessageFaults lanes;         ///< between prefill and decode workers
  double late = 0;             ///< share of the messages between routers and workers that take up to 300 ms
  double slot_damage = 0;      ///< share of slots whose bytes are harmed
  // Per worker (and connection, and router) and second:
  double die = 0, vanish = 0, stop = 0, cut = 0, part = 0;
  double flip = 0;           ///< operators change its role, one at a time
  double flip_fails = 0;     ///< share of those whose new role cannot be made
  int flip_patience_ms = 0;  ///< for what runs there to end; 0: as long as it takes
  int rivals_at_ms = 0;      ///< when all that decode are ordered to prefill, each at any router; 0: never
  double drain = 0;          ///< operators drain it at a router, or take back what they ordered there
  double upgrade = 0;        ///< its process ends and comes back as one of the other release
  bool canaries = false;     ///< a worker takes requests when one has gone through it
  double rank_dies = 0;      ///< one of its ranks but rank 0; the others follow within 1.5 s
  double router_stop = 0, router_die = 0, router_vanish = 0;
  bool meddles = false;     ///< routers cancel, renew and attach legs of others
  int most_stop_ms = 4000;  ///< what is stopped or parted goes on after 100 ms to this
  double leave = 0;         ///< share of clients that leave
  OneFault one_fault = OneFault::kNone;
  int fault_at_ms = 0;          ///< of that
  bool rank_prefills = false;   ///< the rank's worker
  int rank_timeout_ms = 60000;  ///< of --rank-timeout-ms: so long the others wait for one that stands still
  bool calm = false;            ///< it does not happen: to see what would have been
  bool faultless() const {
    return lanes.sum() + late + slot_damage + die + rank_dies + vanish + stop + cut + part + router_stop + router_die +
                   router_vanish + leave + timeout_ms ==
               0 &&
           one_fault == OneFault::kNone && rivals_at_ms == 0;
  }

  /// Every fourth seed has one fault and spare workers; of the others every eighth is without faults, every eighth has
  /// all of them.
  static ClusterScenario FromSeed(uint64_t seed);
  /// Workers change their roles: who asks one may find it with another.
  bool roles_change() const { return flip > 0 || one_fault == OneFault::kFlip || rivals_at_ms > 0; }
  int ranks_of(bool prefills) const {
    return prefills ? prefill_tensor * prefill_stages : decode_tensor * decode_stages;
  }
  bool one_numerics() const { return odd_prefills + odd_decodes == 0; }
  /// A whole step, at most.
  double StepSeconds() const { return 2e-6 * (step_us + 2.0 * chunk * us_per_token); }
  /// What all prompts take one after the other, at most.
  double PromptSeconds() const { return 2e-6 * requests * longest * (us_per_token + 1.0 * step_us / chunk); }
  /// And all their tokens.
  double WorkSeconds() const {
    return PromptSeconds() + 1e-6 * requests * 3.0 * most_tokens * 2 * (step_us + us_per_token);
  }
  std::string Text() const;
};

}  // namespace baton::sim
