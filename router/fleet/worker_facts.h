// What a worker said of itself: the handshake's answer and the last load report, as plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/protocol_versions.h"
#include "common/step_sizes.h"
#include "router/request_types.h"

namespace baton::router {

struct WorkerFacts {
  std::string worker_id, incarnation, version;
  WorkerRole role = WorkerRole::kUnknown;
  std::string model_digest;      ///< must match across workers
  std::string kv_layout;         ///< must match; text form of the layout
  std::string kv_digest;         ///< must match this router's build
  std::string tokenizer_digest;  ///< what grammars see of its tokenizer: must match across workers; empty: no grammars
  std::string numerics_id;
  ProtocolVersions kv_protocol = kKvProtocolUnnamed;  ///< workers that share no version hand nothing over
  std::string model_name;
  int32_t max_model_len = 0;  ///< tokens
  int32_t vocab_size = 0;
  std::vector<int32_t> eos_token_ids;
  int64_t kv_bytes_per_token = 0;  ///< of all layers
  int64_t kv_blocks = 0;
  int32_t tokens_per_block = 16;
  int32_t max_num_seqs = 0;
  double prefill_tokens_per_s = 0;
  double decode_step_ms = 0;
  std::string hash_key;         ///< 32 bytes, or empty
  std::string landing_address;  ///< where it takes KV; empty: nowhere
};

/// How a prefill worker reaches a decode worker.
struct PeerPath {
  std::string incarnation;  ///< of the decode worker
  std::string transport, path;
  double gigabytes_per_second = 0;  ///< in the self-test
};

/// Shared: whoever looks at a load takes no copy. Never null.
using PeerPaths = std::shared_ptr<const std::vector<PeerPath>>;

/// proto HandoffLoad.
struct HandoffLoad {
  std::string transport;
  int32_t tickets = 0, jobs = 0, granted_slots = 0, quarantined_slots = 0, free_slots = 0;
  int64_t reserved_tokens = 0;
  int64_t bytes = 0, slots = 0;
  double seconds = 0;
  int64_t wire_digest_mismatches = 0, source_digest_mismatches = 0, lanes_failed = 0, recomputes = 0, opens_refused = 0,
          reserves_refused = 0, no_room = 0, resent_segments = 0, unclean_closes = 0, self_tests_failed = 0,
          peers_lost = 0, unreadable_slots = 0, rings_written_off = 0;
  int32_t slots_waiting = 0;
  PeerPaths peers = std::make_shared<const std::vector<PeerPath>>();
  double mean_peer_gigabytes_per_second = 0;  ///< of `peers`; 0: none
  int64_t connections_refused = 0;
  std::vector<int64_t> rank_bytes{};  ///< of `bytes`, by rank
};

/// proto GrammarLoad.
struct GrammarLoad {
  int64_t following = 0;
  int64_t known = 0, compiled = 0, refused = 0, masks = 0, masks_late = 0, masks_slow = 0;
  double compile_seconds = 0, mask_seconds = 0, wait_seconds = 0;
};

struct WorkerLoad {
  int32_t running = 0, waiting = 0;  ///< sequences
  int32_t unread = 0;                ///< sequences without credit
  int64_t queued_tokens = 0;
  int64_t kv_blocks_used = 0, kv_blocks_total = 0, kv_blocks_shared = 0;
  uint64_t steps = 0;
  double last_step_ms = 0, predicted_step_ms = 0;
  double prefill_tokens_per_s = 0, decode_step_ms = 0;
  int64_t prefix_queries_tokens = 0, prefix_hits_tokens = 0;  ///< counters since its start, here and below
  int64_t preemptions = 0, prompt_tokens = 0, generation_tokens = 0;
  int64_t leaked_kv_blocks = 0;
  int64_t calls_refused = 0;
  int64_t kv_empty_tokens = 0;
  StepSizes step_sizes;
  HandoffLoad handoff;
  std::optional<GrammarLoad> grammars{};  ///< none: the worker has no tokenizer
};

/// kUnproven is only shown (LinkView::shown_state): a worker that is ready, but no canary has gone through it.
enum class LinkState : uint8_t { kConnecting, kLoading, kReady, kDraining, kLost, kMismatch, kUnproven };
inline const char* LinkStateName(LinkState state) {
  switch (state) {
    case LinkState::kConnecting: return "connecting";
    case LinkState::kLoading: return "loading";
    case LinkState::kReady: return "ready";
    case LinkState::kDraining: return "draining";
    case LinkState::kLost: return "lost";
    case LinkState::kMismatch: return "mismatch";
    case LinkState::kUnproven: return "unproven";
  }
  return "unknown";
}

}  // namespace baton::router
