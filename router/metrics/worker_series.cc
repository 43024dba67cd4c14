// The series of RouterMetrics that come from what workers report.
#include "router/metrics/metric_families.h"

namespace baton::router {

// A worker's report on its half of the handoffs, and on its KV blocks.
void RouterMetrics::Families::RenderHandoff(const prom::Labels& with, WorkerRole role, const std::string& incarnation,
                                            const WorkerLoad& load) {
  Gauge("baton_leaked_kv_blocks", "KV block owners that nobody accounts for", with)
      .Set(static_cast<double>(load.leaked_kv_blocks));
  Gauge("baton_kv_blocks_shared", "KV blocks that have several owners", with)
      .Set(static_cast<double>(load.kv_blocks_shared));
  const HandoffLoad& h = load.handoff;
  for (const auto& [port, count] : {std::pair{"worker", load.calls_refused}, {"landing", h.connections_refused}}) {
    prom::Labels labelled = with;
    labelled["port"] = port;
    Grow("baton_worker_refused_total", "Calls and connections that a worker refused: who made them did not greet",
         labelled, incarnation, count);
  }
  if (load.grammars) RenderGrammars(with, incarnation, *load.grammars);
  if (!h.transport.empty()) RenderHeld(with, h);
  if (!h.transport.empty() || role != WorkerRole::kBoth) RenderTransfers(with, incarnation, h);
}
// What grammars cost a worker.
void RouterMetrics::Families::RenderGrammars(const prom::Labels& with, const std::string& incarnation,
                                             const GrammarLoad& g) {
  Gauge("baton_worker_grammar_answers", "Answers that follow a grammar now", with)
      .Set(static_cast<double>(g.following));
  for (const auto& [outcome, count] : {std::pair{"known", g.known}, {"compiled", g.compiled}, {"refused", g.refused}}) {
    prom::Labels labelled = with;
    labelled["outcome"] = outcome;
    Grow("baton_worker_grammars_total", "Grammars of answers that a worker began: known, compiled, refused", labelled,
         incarnation, static_cast<double>(count));
  }
  const auto grow = [&](const char* name, const char* help, double value) {
    Grow(name, help, with, incarnation, value);
  };
  grow("baton_worker_grammar_compile_seconds_total", "Time in which a worker compiled grammars", g.compile_seconds);
  grow("baton_worker_grammar_masks_total", "Masks made: one for each token of an answer that follows a grammar",
       static_cast<double>(g.masks));
  grow("baton_worker_grammar_mask_seconds_total", "Time in which masks were made, beside the steps", g.mask_seconds);
  grow("baton_worker_grammar_wait_seconds_total", "Time in which steps waited for masks", g.wait_seconds);
  grow("baton_worker_grammar_masks_late_total", "Masks that a step did not wait for: the sequence sat out",
       static_cast<double>(g.masks_late));
  grow("baton_worker_grammar_masks_slow_total", "Masks made at a low priority: those of answers whose masks are costly",
       static_cast<double>(g.masks_slow));
}
void RouterMetrics::Families::RenderHeld(const prom::Labels& with, const HandoffLoad& h) {
  Gauge("baton_handoff_tickets", "Tickets of a decode worker that are not gone", with).Set(h.tickets);
  Gauge("baton_handoff_jobs", "Prefill legs that are not over", with).Set(h.jobs);
  Gauge("baton_handoff_reserved_tokens", "KV tokens that tickets have reserved", with)
      .Set(static_cast<double>(h.reserved_tokens));
  Gauge("baton_landing_slots_granted", "Landing slots that a writer may fill", with).Set(h.granted_slots);
  Gauge("baton_landing_slots_quarantined", "Landing slots whose writer is not fenced", with).Set(h.quarantined_slots);
  Gauge("baton_landing_slots_free", "Landing slots", with).Set(h.free_slots);
}
// A counter is there, as 0, before the first report.
void RouterMetrics::Families::RenderTransfers(const prom::Labels& with, const std::string& incarnation,
                                              const HandoffLoad& h) {
  prom::Labels transfer = with;
  transfer["transport"] = h.transport.empty() ? "unknown" : h.transport;
  const auto grow = [&](const char* name, const char* help, int64_t value) {
    Grow(name, help, with, incarnation, value);
  };
  Grow("baton_kv_transfer_bytes_total", "KV bytes sent (prefill) or placed (decode)", transfer, incarnation, h.bytes);
  Grow("baton_kv_transfer_slots_total", "Landing slots sent or placed", transfer, incarnation, h.slots);
  Grow("baton_kv_transfer_seconds_total", "Time with a slot under way (prefill) or being placed (decode)", transfer,
       incarnation, h.seconds);
  if (h.seconds > 0) {
    Gauge("baton_kv_transfer_gigabytes_per_second", "Bytes by time, since start", transfer)
        .Set(static_cast<double>(h.bytes) / h.seconds / 1e9);
  }
  const auto each = [&](const char* name, const char* help, const char* label,
                        std::initializer_list<std::pair<const char*, int64_t>> values) {
    for (const auto& [value, count] : values) {
      prom::Labels labelled = with;
      labelled[label] = value;
      Grow(name, help, labelled, incarnation, count);
    }
  };
  each("baton_kv_digest_mismatches_total",
       "KV that was not what it should be: wire: bytes changed on the way; slot: header or table unreadable or of "
       "another turn; source: blocks of the prefill worker no longer hold what was computed",
       "kind",
       {{"wire", h.wire_digest_mismatches}, {"slot", h.unreadable_slots}, {"source", h.source_digest_mismatches}});
  each("baton_kv_transfer_failures_total", "Transfers that did not go as they should", "reason",
       {{"wire_digest", h.wire_digest_mismatches},
        {"slot_unreadable", h.unreadable_slots},
        {"source_digest", h.source_digest_mismatches},
        {"peer_lost", h.peers_lost},
        {"self_test", h.self_tests_failed},
        {"no_room", h.no_room},
        {"unclean_close", h.unclean_closes}});
  for (size_t rank = 0; rank < h.rank_bytes.size(); ++rank)
    each("baton_kv_rank_bytes_total",
         "KV bytes sent (prefill) or placed (decode), by the rank process that carried them", "rank",
         {{std::to_string(rank).c_str(), h.rank_bytes[rank]}});
  each("baton_handoff_nacks_total", "Asks that were refused for now: reserve: a ticket; open: a lane", "kind",
       {{"reserve", h.reserves_refused}, {"open", h.opens_refused}});
  grow("baton_handoff_lanes_failed_total", "Lanes that could not be completed", h.lanes_failed);
  grow("baton_handoff_recomputes_total", "Prompts a decode worker computed because their KV was lost", h.recomputes);
  grow("baton_handoff_opens_refused_total", "Lanes told to ask again: no blocks or slots", h.opens_refused);
  grow("baton_handoff_rings_written_off_total", "Landing memories replaced: a frozen writer may still write them",
       h.rings_written_off);
  grow("baton_handoff_reserves_refused_total", "Tickets refused", h.reserves_refused);
  grow("baton_handoff_no_room_total", "Prefill legs that found no room on decode", h.no_room);
  grow("baton_handoff_resent_segments_total", "Segments sent again", h.resent_segments);
  grow("baton_handoff_unclean_closes_total", "Lanes closed after a failed flush", h.unclean_closes);
}
// The ways from prefill workers to decode workers, which have the names of their own series.
void RouterMetrics::Families::RenderPeers(const std::vector<LinkView>& workers) {
  std::map<std::string, std::string> names;
  for (const LinkView& w : workers) {
    if (w.facts) names[w.facts->incarnation] = w.name();
  }
  for (const LinkView& w : workers) {
    if (w.state != LinkState::kReady && w.state != LinkState::kDraining) continue;
    for (const PeerPath& peer : *w.load.handoff.peers) {
      const auto name = names.find(peer.incarnation);
      if (name == names.end()) continue;
      prom::Labels with = LabelsOf(w);
      with["peer"] = name->second;
      with["transport"] = peer.transport;
      with["path"] = peer.path;
      Gauge("baton_kv_peer_gigabytes_per_second",
            "Of a prefill worker to a decode worker (peer), in the self-test of their connection", with)
          .Set(peer.gigabytes_per_second);
    }
  }
}
// Sequences in each stage, slots in the transfer; over all workers.
void RouterMetrics::Families::RenderQueues(const std::vector<LinkView>& workers) {
  std::map<std::string, int64_t> depth = {
      {"queue_prefill", 0}, {"prefill", 0}, {"transfer", 0}, {"queue_decode", 0}, {"decode", 0}};
  for (const LinkView& w : workers) {
    if (!w.facts || (w.state != LinkState::kReady && w.state != LinkState::kDraining)) continue;
    const bool prefill = w.facts->role == WorkerRole::kPrefill;
    depth[prefill ? "queue_prefill" : "queue_decode"] += w.load.waiting;
    depth[prefill ? "prefill" : "decode"] += w.load.running;
    if (prefill) depth["transfer"] += w.load.handoff.slots_waiting;
  }
  for (const auto& [stage, count] : depth) {
    prom::Labels with = labels;
    with["stage"] = stage;
    Gauge("baton_queue_depth", "Sequences in a stage; transfer: slots that wait for a buffer", with)
        .Set(static_cast<double>(count));
  }
}

void RouterMetrics::Families::DropLongGone(const std::vector<LinkView>& workers) {
  ++scrapes;
  for (const LinkView& worker : workers) {
    if (const auto known = lasting.find(worker.name()); known != lasting.end()) known->second.seen = scrapes;
  }
  std::vector<std::pair<uint64_t, std::string>> gone;
  for (const auto& [name, one] : lasting) {
    if (one.seen < scrapes) gone.emplace_back(one.seen, name);
  }
  if (gone.size() <= kMostGoneWorkers) return;
  std::ranges::sort(gone);
  gone.resize(gone.size() - kMostGoneWorkers);
  for (const auto& [seen, name] : gone) {
    const auto node = lasting.extract(name);
    for (const auto& [series, remove] : node.mapped().series) remove();
    for (const std::string& key : node.mapped().grown) grown.erase(key);
    step_history.erase(name);
  }
}

}  // namespace baton::router
