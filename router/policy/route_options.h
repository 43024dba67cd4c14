// Every way to serve a prompt: a worker that prefills and decodes, or a pair of a prefill and a decode worker. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "common/protocol_versions.h"
#include "router/request_types.h"

namespace baton::router {

/// One worker as the rule sees it, for one prompt.
struct Candidate {
  WorkerId id;
  WorkerRole role = WorkerRole::kBoth;
  double queued_tokens = 0;  ///< uncached prompt tokens ahead of this request
  int32_t running = 0;       ///< sequences
  int32_t max_num_seqs = 1;
  double kv_used_fraction = 0;      ///< 0…1
  double prefill_tokens_per_s = 0;  ///< learnt; 0 = not known yet
  double decode_step_ms = 0;
  uint32_t cached_tokens = 0;                         ///< of this prompt
  std::string_view numerics{};                        ///< what decides the bits of its results; empty: not known
  ProtocolVersions kv_protocol = kKvProtocolUnnamed;  ///< prefill and decode workers that share no version make no pair
  std::string_view name{};  ///< what people call the worker: the same in every router, and after a restart
};

/// One way to serve it. Indices of candidates.
struct RouteOption {
  size_t worker = 0;  ///< decodes, and prefills when there is no `prefill`
  std::optional<size_t> prefill{};
  // With `prefill`:
  double transfer_tokens_per_s = 0;   ///< from it to `worker`
  double handoff_ms = 0;              ///< beside the prefill and the transfer
  uint32_t local_prefill_tokens = 0;  ///< so many uncached ones `worker` computes itself all the same

  bool operator==(const RouteOption&) const = default;
};

/// A decode candidate that a prefill candidate is connected to.
struct MetPeer {
  size_t decode = 0;
  double tokens_per_s = 0;
};

/// The known costs and limits of handing KV over.
struct HandoffTerms {
  double handoff_ms = 0;                                              ///< beside the prefill and the transfer
  int64_t local_prefill_max_tokens = -1;                              ///< -1: by break-even
  std::function<double(size_t prefill, size_t decode)> tokens_per_s;  ///< between two candidates; > 0
  // The same for a large fleet, in which few pairs have met. Without `met` each pair is asked for by itself.
  double unmet_tokens_per_s = 0;                                           ///< between two that have not met; > 0
  std::function<absl::Span<const MetPeer>(size_t prefill)> met = nullptr;  ///< each decode candidate at most once
};

/// Equal bits come first where there is a choice.
struct NumericsRule {
  std::string_view so_far{};  ///< of what the client has already; empty: nothing
  bool require = false;       ///< others are no choice
};

/// What is asked of a policy: who may serve a prompt, and by which rules. Refers to what it is made of.
struct RouteQuestion {
  absl::Span<const Candidate> candidates;
  uint32_t prompt_tokens = 0;
  const HandoffTerms* handoff = nullptr;  ///< null: no pairs
  NumericsRule numerics{};
  std::string_view session{};  ///< of the client, whose requests are to stay together; empty: none
};

/// A "both" worker alone; every pair; a decode worker alone where it lacks no more of the prompt than breaks even, or
/// where there are no pairs. Without `handoff` there are no pairs. A decode worker pairs with prefill workers that
/// share a version of the KV protocol with it: with those of its own numerics, and with others when there are none.
/// Empty: nobody decodes, or nobody as `numerics` requires.
std::vector<RouteOption> OptionsOf(const RouteQuestion& question);
/// Those in which `worker`, an index of question.candidates, decodes. The rule of numerics is applied among them alone.
std::vector<RouteOption> OptionsWith(const RouteQuestion& question, size_t worker);

/// Whether KV can go from one to the other.
inline bool MakePair(const Candidate& prefill, const Candidate& decode) {
  return prefill.role == WorkerRole::kPrefill && decode.role == WorkerRole::kDecode &&
         prefill.kv_protocol.Shares(decode.kv_protocol);
}

/// Whether the options are better not all written out: more than 256 pairs, which take about 5 us to cost.
bool ManyPairs(const RouteQuestion& question);

/// How many tokens of a prompt `decode` computes itself rather than take them over a path of that rate.
uint32_t LocalPrefillTokens(const Candidate& decode, double transfer_tokens_per_s, const HandoffTerms& handoff);

/// Why there is no option.
const char* WhyNoOption(const NumericsRule& numerics);

/// Drops options of other numerics than the answer has so far, unless nothing would be left and that is allowed.
void KeepNumerics(absl::Span<const Candidate> candidates, const NumericsRule& numerics,
                  std::vector<RouteOption>& options);

/// More would hold up the sequences that decode.
inline constexpr uint32_t kMostBreakEvenTokens = 64;
/// Tokens of which computing takes no longer than a handoff, which costs `handoff_ms` and the transfer; at most
/// kMostBreakEvenTokens. 0 while the prefill rate is not known.
uint32_t BreakEvenTokens(double prefill_tokens_per_s, double transfer_tokens_per_s, double handoff_ms);

}  // namespace baton::router
