#include "tests/sim/checked_cluster.h"

#include <algorithm>

#include "common/check.h"
#include "common/log.h"
#include "common/str_cat.h"
#include "router/request/canary_request.h"
#include "tests/caught_log.h"
#include "tests/sim/oracle.h"

namespace baton::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

/// Faults begin in the first kFaultsLast. When the last one is over, every client has its end in kAnswersIn, and then
/// nobody holds anything in kMemoryBackIn.
/// One fault delays an answer by no more than it lasts, or what it takes to notice that a worker is lost, and then
/// kMadeGoodIn (and what is computed again).
constexpr Duration kNoticedIn = milliseconds(3500), kMadeGoodIn = seconds(3);
/// A worker whose rank stands still says that it lives: what is missed is a step (--step-stall-ms).
constexpr Duration kStallNoticedIn = seconds(30);
/// A worker that is lost while it is greeted is noticed by the handshake's limit.
constexpr Duration kGreetedIn = milliseconds(100), kGreetingEndsIn = milliseconds(5500);
/// A router that stood still carries out what it was ordered before.
constexpr Duration kObeyedIn = milliseconds(1);
/// A worker takes requests when its process is there.
constexpr Duration kTakenIn = seconds(15);
/// And when a canary has gone through it, the next of which may be that far away and end with no answer.
constexpr Duration kProvenIn = router::CanaryBook::kPauseMax + router::CanaryRequest::kMostTime;
/// Who sees that nobody decodes tells the one that it has changed to.
const Duration kDecodesAgainIn =
    milliseconds(router::RouterConfig{}.heartbeat_timeout_ms) + router::FlipBook::kWatchedBeyond + seconds(1);
constexpr auto kFaultsLast = seconds(6), kAnswersIn = seconds(40), kMemoryBackIn = seconds(5);

/// Tokens of a client's longest answer.
int64_t LongestOf(const ClientView& client) {
  int64_t longest = 0;
  for (const auto& [index, choice] : client.choices) longest = std::max(longest, choice.count);
  return longest;
}

Duration Takes(double seconds) { return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)); }

}  // namespace

bool LosesNothing(const ClusterScenario& s) {
  const bool ordered = s.one_fault == OneFault::kNone || s.one_fault == OneFault::kDrain ||
                       s.one_fault == OneFault::kFlip || s.one_fault == OneFault::kMeddle;
  const double losses = s.die + s.rank_dies + s.vanish + s.stop + s.cut + s.part + s.upgrade + s.router_stop +
                        s.router_die + s.router_vanish;
  return ordered && losses + s.late + s.flip_fails == 0;
}

/// Ends with what routers warned of, if there was nothing else.
std::string CheckedCluster::RunAndLoseNothing() {
  if (IsLogged(LogLevel::kWarning)) {  // somebody reads it
    const std::string wrong = RunAll();
    return wrong.empty() ? CheckNothingLost() : wrong;
  }
  const CaughtLog log;
  SetLogLevel("warning");
  std::string wrong = RunAll();
  if (wrong.empty()) wrong = CheckNothingLost();
  const std::string said = log.text();
  const size_t warned = said.find("[warning] worker ");
  if (!wrong.empty() || warned == std::string::npos) return wrong;
  return StrCat("nobody was lost, and a router warns: ", said.substr(warned, said.find('\n', warned) - warned));
}

/// What routers count in the end, of an order's consequences nothing.
std::string CheckedCluster::CheckNothingLost() const {
  std::string lost;
  for (const auto& router : cluster_.routers()) {
    for (const auto& worker : cluster_.workers()) {
      const std::optional<router::LinkView> view = router->ViewOf(*worker);
      if (view && view->losses + view->restarts > 0)
        lost += StrCat(" ", worker->name(), ": ", view->losses, " connections and ", view->restarts, " lives;");
    }
  }
  return lost.empty() ? "" : StrCat("nobody was lost, and routers count", lost);
}

std::string CheckedCluster::RunAll() {
  const Duration answers_in = kAnswersIn + Takes(2 * scenario_.WorkSeconds());
  cluster_.Start();
  while (!cluster_.AllEnded() && cluster_.broken().empty()) {
    BATON_CHECK(cluster_.Step());
    if (cluster_.now() > cluster_.begin() + kFaultsLast) cluster_.EndFaults();
    if (cluster_.now() > std::max(cluster_.begin() + kFaultsLast, cluster_.faults_over_at()) + answers_in) break;
  }
  if (!cluster_.broken().empty()) return cluster_.broken();
  if (!cluster_.AllEnded()) return StrCat("a client waits for ever:", cluster_.Waiting(), "; held: ", cluster_.Held());
  cluster_.EndFaults();
  if (std::string wrong = CheckClients(); !wrong.empty()) return wrong;
  if (std::string wrong = CheckOneFault(); !wrong.empty()) return wrong;
  cluster_.ResumeAll();
  const TimePoint by =
      std::max(cluster_.now(), cluster_.faults_over_at()) + kMemoryBackIn + Takes(2 * scenario_.StepSeconds());
  while (cluster_.now() < by && cluster_.broken().empty() && !cluster_.Held().empty()) cluster_.Step();
  if (!cluster_.broken().empty()) return cluster_.broken();
  return cluster_.Held().empty() ? CheckChanges() : StrCat("held: ", cluster_.Held());
}

/// Every change of a role has its end in time; who is drained then was so by the last order. When that is taken back,
/// every router gives requests to every worker.
std::string CheckedCluster::CheckChanges() {
  if (!scenario_.roles_change()) return "";
  const auto run = [this](TimePoint until, const std::function<bool()>& enough) {
    while (cluster_.now() < until && cluster_.broken().empty() && !enough()) cluster_.Step();
  };
  // What ran there has ended by now, which may have taken longer than anything else.
  const TimePoint flips_end = cluster_.now() + router::FlipBook::kReturnWithin + seconds(1);
  run(std::max(cluster_.flips_over_by(), flips_end), [this] { return cluster_.OpenFlips().empty(); });
  if (!cluster_.OpenFlips().empty()) return StrCat("a change of a role never ends:", cluster_.OpenFlips());
  if (scenario_.one_fault == OneFault::kFlip && !cluster_.FailedFlips().empty())
    return StrCat("nothing else happened, and a change of a role failed:", cluster_.FailedFlips());
  run(cluster_.now() + kObeyedIn, [] { return false; });
  if (const std::string wrong = cluster_.Disobeyed(); !wrong.empty())
    return StrCat("the last order is not what is seen:", wrong);
  run(cluster_.now() + kDecodesAgainIn, [this] { return cluster_.SomeDecode() && cluster_.OpenFlips().empty(); });
  if (!cluster_.SomeDecode()) return "no worker decodes any more";
  drains_held_ = cluster_.drains_held();
  cluster_.ResumeDrained();
  const Duration taken_in = kTakenIn + (scenario_.canaries ? kProvenIn : Duration::zero());
  run(std::max(cluster_.now(), cluster_.faults_over_at()) + taken_in, [this] { return cluster_.Shunned().empty(); });
  return cluster_.Shunned().empty() ? cluster_.broken() : StrCat("gets no requests:", cluster_.Shunned());
}

std::string CheckedCluster::CheckClients() const {
  for (size_t i = 0; i < cluster_.asked().size(); ++i) {
    const std::string wrong = CheckClient(scenario_, cluster_.asked()[i], *cluster_.clients()[i], cluster_.deaths());
    if (!wrong.empty()) return StrCat(cluster_.asked()[i].request_id, " ", wrong);
  }
  return "";
}

std::string CheckedCluster::CheckOneFault() const {
  if (scenario_.one_fault == OneFault::kNone || scenario_.calm) return "";
  std::string wrong = CheckLinks();
  return wrong.empty() ? CheckDelay() : wrong;
}

/// How often no step comes of a worker for so long that it is given up, while one of its ranks stands still.
int CheckedCluster::Stalls() const {
  if (scenario_.one_fault != OneFault::kHangRank) return 0;
  return static_cast<int>(milliseconds(std::min(scenario_.most_stop_ms, scenario_.rank_timeout_ms)) / kStallNoticedIn);
}

/// Nobody who lives is taken for dead.
std::string CheckedCluster::CheckLinks() const {
  const OneFault fault = scenario_.one_fault;
  const bool pause = fault == OneFault::kPauseRouter || fault == OneFault::kPauseAll;
  const bool short_silence = (fault == OneFault::kStop || fault == OneFault::kPart) && scenario_.most_stop_ms < 2500;
  for (const auto& router : cluster_.routers()) {
    const int lost = router->counters().sessions - router->links();
    if (lost > (pause || short_silence || fault == OneFault::kDrain || fault == OneFault::kMeddle ? 0 : 1) + Stalls())
      return StrCat("a router lost ", lost, " connections");
  }
  const bool alike = fault == OneFault::kPauseAll && scenario_.most_stop_ms < scenario_.no_room_ms;
  // Another router's order is heard of a moment later.
  const bool known =
      fault == OneFault::kDrain || fault == OneFault::kMeddle || (fault == OneFault::kFlip && scenario_.routers == 1);
  if ((alike || short_silence || known) && cluster_.wires().again > 0)
    return StrCat(cluster_.wires().again, " legs were begun again, and nobody was lost");
  return "";
}

/// What was lost is made good soon.
std::string CheckedCluster::CheckDelay() const {
  ClusterScenario calm = scenario_;
  calm.calm = true;
  CheckedCluster other(calm);
  if (const std::string wrong = other.Run(); !wrong.empty()) return StrCat("and without the fault: ", wrong);
  const OneFault fault = scenario_.one_fault;
  const bool all_wait = fault == OneFault::kPauseRouter || fault == OneFault::kPauseAll;
  const Duration lasts =
      std::max(cluster_.faults_over_at() - cluster_.begin() - milliseconds(scenario_.fault_at_ms), Duration::zero());
  const Duration noticed_in = fault == OneFault::kHangRank ? kStallNoticedIn + kNoticedIn : kNoticedIn;
  Duration unnoticed = all_wait ? lasts : fault == OneFault::kDrain ? Duration::zero() : std::min(lasts, noticed_in);
  if (milliseconds(scenario_.fault_at_ms) < kGreetedIn) unnoticed = std::max(unnoticed, kGreetingEndsIn);
  Duration most = unnoticed + kMadeGoodIn + Takes(2 * scenario_.PromptSeconds());
  if (fault == OneFault::kFlip) most += Takes(scenario_.WorkSeconds());  // the others have its part for good
  for (size_t i = 0; i < cluster_.clients().size(); ++i) {
    const ClientView &client = *cluster_.clients()[i], &undisturbed = *other.cluster().clients()[i];
    // An answer that went on with other numerics may be longer.
    const int64_t more_tokens = std::max<int64_t>(LongestOf(client) - LongestOf(undisturbed), 0);
    const Duration late = (client.ended - cluster_.begin()) - (undisturbed.ended - other.cluster().begin());
    // Of a beam search nothing is told before its end: it starts over, and what it had done by then was in vain.
    const bool starts_over = cluster_.asked()[i].sampling.use_beam_search.value_or(false);
    const Duration ran = cluster_.begin() + milliseconds(scenario_.fault_at_ms) - client.asked;
    const Duration in_vain = starts_over ? std::max(ran, Duration::zero()) : Duration::zero();
    if (late > most + in_vain + Takes(static_cast<double>(more_tokens) * scenario_.StepSeconds())) {
      return StrCat(cluster_.asked()[i].request_id, " was ", Seconds(late), " s late, the most is ",
                    Seconds(most + in_vain));
    }
  }
  return "";
}

}  // namespace baton::sim
