#include "worker/process/rank_load.h"

#include <algorithm>

#include "worker/ranks/kv_lines.h"

namespace baton::worker {
namespace {

constexpr Duration kBeginWithin = std::chrono::seconds(30);

}  // namespace

void FillRankLoad(const std::vector<RankFigures>& ranks, v1::HandoffLoad& load) {
  RankFigures all;
  for (const RankFigures& rank : ranks) {
    all.bytes += rank.bytes;
    all.slots += rank.slots;
    all.nanoseconds = std::max(all.nanoseconds, rank.nanoseconds);  // they move at once
    all.waiting += rank.waiting;
    all.peers_lost += rank.peers_lost;
    all.refused += rank.refused;
    all.digest_mismatches += rank.digest_mismatches;
    all.unreadable_slots += rank.unreadable_slots;
    all.self_tests_failed += rank.self_tests_failed;
    for (const RankWay& way : rank.ways) {
      v1::HandoffLoad::PeerPath& peer = *load.add_peers();
      peer.set_incarnation(way.incarnation);
      peer.set_transport(way.transport);
      peer.set_path(way.path);
      peer.set_gigabytes_per_second(way.gigabytes_per_second);
    }
    load.add_rank_bytes(rank.bytes);
  }
  load.set_bytes(all.bytes);
  load.set_slots(all.slots);
  load.set_seconds(static_cast<double>(all.nanoseconds) / 1e9);
  load.set_slots_waiting(static_cast<int32_t>(all.waiting));
  load.set_peers_lost(all.peers_lost);
  load.set_connections_refused(all.refused);
  load.set_wire_digest_mismatches(all.digest_mismatches);
  load.set_unreadable_slots(all.unreadable_slots);
  load.set_self_tests_failed(all.self_tests_failed);
}

absl::Status BeginLines(const RoleContext& context) {
  if (context.loaded.lines == nullptr) return absl::OkStatus();
  return context.loaded.lines->Begin(context.incarnation, context.loaded.numerics_id,
                                     context.role == v1::WORKER_ROLE_DECODE, kBeginWithin);
}

}  // namespace baton::worker
