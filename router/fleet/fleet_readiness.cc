// When the fleet can take requests, and whom it waits for until then: since when, until when, and why.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "router/fleet/fleet.h"

namespace baton::router {
namespace {

AwaitedWorker Awaited(const LinkView& v, TimePoint now) {
  AwaitedWorker out{v.name(), v.held.empty() ? LinkStateName(v.shown_state()) : "held", v.shown_detail()};
  out.for_s = Seconds(now - v.since);
  const bool connected = v.state == LinkState::kReady || v.state == LinkState::kDraining;
  if (!connected) out.next_try_s = std::max(0.0, Seconds(v.dials_at - now));
  if (connected && v.held.empty() && v.canary_at) out.next_try_s = std::max(0.0, Seconds(*v.canary_at - now));
  return out;
}

std::string Sentence(const AwaitedWorker& w) {
  const char* what = w.state == "unproven" ? "the next one" : "dialled again";
  const std::string again = w.next_try_s ? absl::StrFormat("; %s in %.1f s", what, *w.next_try_s) : "";
  if (w.state == "held")
    return absl::StrFormat("worker %s takes no requests, for %.1f s: %s", w.worker, w.for_s, w.detail);
  return absl::StrFormat("worker %s %s for %.1f s%s%s%s", w.worker, w.state, w.for_s, w.detail.empty() ? "" : ": ",
                         w.detail, again);
}

/// What the roles that there are can do together.
struct Ability {
  bool both = false, decodes = false;  ///< one takes requests
  bool prefills = false;               ///< a prefill worker takes them
  bool missing = false;  ///< at the start a worker that was never there is waited for: it may be the one that prefills

  /// KV protocols of prefill workers that are connected, and no canary went through; of decode workers.
  std::vector<ProtocolVersions> of_unused, of_decodes;

  void Add(const LinkView& v) {
    const bool takes = v.takes_requests();
    missing |= v.facts == nullptr && v.held.empty() && v.state != LinkState::kMismatch;
    if (v.facts == nullptr) return;
    // Between its greeting and its first moment as a worker that serves.
    const bool joins = v.state == LinkState::kConnecting || v.state == LinkState::kLoading;
    missing |= joins && v.held.empty();
    both |= takes && v.facts->role == WorkerRole::kBoth;
    decodes |= takes && v.facts->role == WorkerRole::kDecode;
    prefills |= takes && v.facts->role == WorkerRole::kPrefill;
    const bool idle = v.state == LinkState::kReady && v.held.empty() && !takes;
    if (v.facts->role == WorkerRole::kPrefill && idle) of_unused.push_back(v.facts->kv_protocol);
    if (v.facts->role == WorkerRole::kDecode) of_decodes.push_back(v.facts->kv_protocol);
  }
  /// A prefill worker that no decode worker can take KV from is not waited for.
  bool unused() const {
    return std::ranges::any_of(of_unused, [this](const ProtocolVersions& p) {
      return std::ranges::any_of(of_decodes, [&p](const ProtocolVersions& d) { return d.Shares(p); });
    });
  }
  /// Workers that cannot hand over are no cluster yet. One prefills already: a node that is gone keeps no new router
  /// from serving once it was `patient`.
  bool begins(bool patient) const {
    const bool awaited = missing && (patient || !prefills);
    return both || (decodes && !awaited && (prefills || !unused()));
  }
  bool goes_on() const { return both || decodes; }
};

}  // namespace

Readiness Fleet::ReadinessNow() const {
  Readiness r;
  r.status = "no_worker";
  Ability able;
  const TimePoint now = clock_.Now();
  const bool patient = now - created_ < std::chrono::milliseconds(config_.failover_wait_ms);
  bool known = false;
  ForEachView([&](const LinkView& v) {
    known = true;
    if (v.duplicate) return;
    able.Add(v);
    if (v.takes_requests()) return;
    if (v.held.empty() && v.state == LinkState::kLoading && (r.status != "loading" || v.progress > r.progress)) {
      r.status = "loading";
      r.phase = v.phase;
      r.progress = v.progress;
    }
    if (r.awaited.size() == kAwaitedShown) {
      ++r.awaited_more;
      return;
    }
    r.awaited.push_back(Awaited(v, now));
    absl::StrAppend(&r.detail, r.detail.empty() ? "" : "; ", Sentence(r.awaited.back()));
  });
  if (r.awaited_more > 0) absl::StrAppend(&r.detail, "; and ", r.awaited_more, " more");
  if (was_ready_ ? able.goes_on() : able.begins(patient)) {
    r.ready = true;
    r.status = "ready", r.phase = "", r.progress = 1;
  }
  if (!known) r.detail = "no worker is known (--worker, --workers-file, --workers-dns, --workers-kubernetes)";
  return r;
}

}  // namespace baton::router
