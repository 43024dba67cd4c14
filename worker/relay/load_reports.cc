#include "worker/relay/load_reports.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace baton::worker {
namespace {

using std::chrono::milliseconds;

constexpr double kShareOfRate = 1.0 / 16;  // a cost predicted from it differs by as much
constexpr int64_t kPartsOfBlocks = 64;     // pressure is taken from nine tenths of the blocks on

bool RateMoved(double told, double now) { return std::abs(now - told) > kShareOfRate * std::abs(told); }

bool BlocksMoved(const v1::Load& told, const v1::Load& now) {
  return now.kv_blocks_total() != told.kv_blocks_total() ||
         std::abs(now.kv_blocks_used() - told.kv_blocks_used()) * kPartsOfBlocks > now.kv_blocks_total();
}

bool SamePeer(const v1::HandoffLoad::PeerPath& a, const v1::HandoffLoad::PeerPath& b) {
  return a.incarnation() == b.incarnation() && a.transport() == b.transport() && a.path() == b.path() &&
         a.gigabytes_per_second() == b.gigabytes_per_second();
}

// Gauges, and the ways to decode workers.
bool HandoffMoved(const v1::HandoffLoad& told, const v1::HandoffLoad& now) {
  const auto gauges = [](const v1::HandoffLoad& h) {
    return std::tuple(h.tickets(), h.jobs(), h.reserved_tokens(), h.granted_slots(), h.quarantined_slots(),
                      h.free_slots(), h.slots_waiting());
  };
  return told.transport() != now.transport() || gauges(told) != gauges(now) ||
         !std::ranges::equal(told.peers(), now.peers(), SamePeer);
}

// What ran since has ended: its counters stay as they are.
bool CameToRest(const v1::Load& told, const v1::Load& now) {
  return now.running() + now.waiting() == 0 && now.steps() != told.steps();
}

}  // namespace

LoadTerms LoadTermsOf(const v1::WatchRequest& request) {
  const uint32_t asked = request.load_interval_ms();
  return {.every = asked == 0 ? kLoadInterval : std::max<Duration>(milliseconds(asked), kLeastLoadInterval),
          .quiet = milliseconds(request.quiet_interval_ms())};
}

bool IsNews(const v1::Load& told, const v1::Load& now) {
  const auto counts = [](const v1::Load& l) {
    return std::tuple(l.running(), l.waiting(), l.queued_tokens(), l.leaked_kv_blocks(), l.grammars().following());
  };
  return counts(told) != counts(now) || CameToRest(told, now) || BlocksMoved(told, now) ||
         RateMoved(told.prefill_tokens_per_s(), now.prefill_tokens_per_s()) ||
         RateMoved(told.decode_step_ms(), now.decode_step_ms()) || HandoffMoved(told.handoff(), now.handoff());
}

// A quarter of an interval early rather than late: the caller's next turn may come after the time.
bool LoadReports::Due(const v1::Load& load, TimePoint now) {
  const TimePoint about = now + terms_.every / 4;
  if (about < next_ || (about < next_quiet_ && !IsNews(told_, load))) return false;
  next_ = now + terms_.every;
  next_quiet_ = now + std::max(terms_.every, terms_.quiet);
  if (terms_.quiet > terms_.every) told_ = load;
  return true;
}

}  // namespace baton::worker
