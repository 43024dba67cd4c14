#include "router/fleet/link_flow.h"

#include <algorithm>

#include "common/planted_bug.h"
#include "common/str_cat.h"

namespace baton::router {
namespace {

constexpr Duration kLoadingPoll = std::chrono::milliseconds(200);

absl::Status Ended(const char* stream, const absl::Status& why) {
  return absl::UnavailableError(StrCat(stream, " ended: ", why.ok() ? "the worker closed it" : why.message()));
}

}  // namespace

void LinkFlow::Start(TimePoint) {
  if (state_ == State::kIdle) Dial();
}

void LinkFlow::Dial() {
  state_ = State::kDialling;
  actions_.emplace_back(DialWorker{other_key_});
}

void LinkFlow::DialNow() {
  if (state_ == State::kPausing) Dial();
}

void LinkFlow::PauseFor(Duration pause, TimePoint now) {
  state_ = State::kPausing;
  actions_.emplace_back(ArmLink{now + pause});
}

Duration LinkFlow::NextBackoff() {
  const Duration pause = std::min(limits_.backoff_max, limits_.backoff_min * (int64_t{1} << std::min(failures_, 16)));
  ++failures_;
  return pause;
}

void LinkFlow::Unreachable(const absl::Status& why, TimePoint now) {
  if (state_ != State::kDialling) return;
  actions_.emplace_back(ShowLink{LinkState::kConnecting, std::string(why.message())});
  PauseFor(NextBackoff(), now);
}

void LinkFlow::KeyRefused(const absl::Status& why, bool may_adopt, TimePoint now) {
  if (state_ != State::kDialling) return;
  if (other_key_ || !may_adopt) return Mismatch(why, now);
  other_key_ = true;
  Dial();
}

void LinkFlow::Loading(const std::string& phase, double progress, TimePoint now) {
  if (state_ != State::kDialling) return;
  failures_ = 0;
  actions_.emplace_back(ShowLink{LinkState::kLoading, "", phase, progress});
  PauseFor(kLoadingPoll, now);
}

void LinkFlow::Mismatch(const absl::Status& why, TimePoint now) {
  if (state_ != State::kDialling) return;
  actions_.emplace_back(ShowLink{LinkState::kMismatch, std::string(why.message())});
  PauseFor(limits_.backoff_max, now);
}

void LinkFlow::Admitted(uint64_t session, std::string incarnation, TimePoint now) {
  if (state_ != State::kDialling) return;
  state_ = State::kServing;
  session_ = session;
  incarnation_ = std::move(incarnation);
  admitted_ = now;
  steps_ = 0;
  predicted_step_ms_ = 0;
  own_ = OwnTime(now);
  heard_ = steps_changed_ = renewed_ = now;
  unread_ = {};
  shown_ = LinkState::kReady;
  actions_.emplace_back(OpenSession{session});
  Watch();
  actions_.emplace_back(ShowLink{LinkState::kReady});
  actions_.emplace_back(NowServing{});
  actions_.emplace_back(ArmLink{now + OwnTime::kTick});
}

void LinkFlow::Watch() {
  next_sequence_ = 1;
  digest_ = 0;
  snapshot_open_ = true;
  actions_.emplace_back(OpenWatch{++round_});
}

/// What is known of this worker's cache cannot be trusted.
void LinkFlow::WatchAgain(const std::string& why) {
  ++snapshots_again_;
  actions_.emplace_back(ShowLink{shown_, StrCat(why, "; asking for a snapshot")});
  Watch();
}

void LinkFlow::Watched(uint64_t round, const WatchEvent& event, TimePoint now) {
  if (state_ != State::kServing || round != round_) return;
  if (event.incarnation != incarnation_) {
    return Lost(absl::UnavailableError(StrCat("incarnation ", event.incarnation, " answers, the session is with ",
                                              incarnation_, ": the worker restarted or changed its role")),
                now);
  }
  heard_ = Listened(now);
  unread_ = {};
  if (event.stray_bytes != 0) {
    return Lost(
        absl::DataLossError(StrCat("event ", event.sequence_number, " has ", event.keys.size() * 16 + event.stray_bytes,
                                   " bytes of hashes, not a multiple of 16")),
        now);
  }
  if (event.sequence_number != next_sequence_)
    return WatchAgain(StrCat("event ", event.sequence_number, " came, expected ", next_sequence_));
  ++next_sequence_;
  switch (event.kind) {
    case WatchEvent::Kind::kLoad: {
      const bool moved = event.load.steps != steps_, idle = event.load.running + event.load.waiting == 0;
      if (moved || idle) steps_changed_ = heard_;
      steps_ = event.load.steps;
      predicted_step_ms_ = event.load.predicted_step_ms;
      actions_.emplace_back(TakeLoad{});
      return;
    }
    case WatchEvent::Kind::kState:
      if (event.state != LinkState::kDraining && event.state != LinkState::kReady) return;
      shown_ = event.state;
      actions_.emplace_back(ShowLink{event.state, event.detail});
      return;
    default: UnitsChanged(event);
  }
}

void LinkFlow::UnitsChanged(const WatchEvent& event) {
  uint64_t sum = 0;
  for (const uint64_t key : event.keys) sum += key;
  if (event.kind == WatchEvent::Kind::kRemoved) {
    actions_.emplace_back(RemoveUnits{});
    digest_ -= sum;
  } else {
    const bool first = event.kind == WatchEvent::Kind::kSnapshot && !snapshot_open_;
    if (first) digest_ = 0;
    actions_.emplace_back(StoreUnits{first});
    digest_ += sum;
  }
  if (event.kind == WatchEvent::Kind::kSnapshot) {
    snapshot_open_ = !event.snapshot_last;
  } else if (digest_ != event.digest) {
    WatchAgain(StrCat("prefix digest differs after event ", event.sequence_number));
  }
}

void LinkFlow::WatchClosed(uint64_t round, const absl::Status& why, TimePoint now) {
  if (state_ == State::kServing && round == round_) Lost(Ended("the event stream", why), now);
}

void LinkFlow::RelayClosed(uint64_t session, const absl::Status& why, TimePoint now) {
  if (state_ == State::kServing && session == session_) Lost(Ended("the relay", why), now);
}

void LinkFlow::Lost(const absl::Status& why, TimePoint now) {
  if (now - admitted_ >= limits_.backoff_max) failures_ = 0;
  session_ = 0;
  ++round_;
  actions_.emplace_back(ShowLink{LinkState::kLost, std::string(why.message())});
  actions_.emplace_back(EndSession{why});
  PauseFor(NextBackoff(), now);
}

TimePoint LinkFlow::Listened(TimePoint now) const {
  return PlantedBug("liveness without own-stall rule") ? now : own_.Now();
}

void LinkFlow::Timer(TimePoint now, bool has_unread) {
  if (state_ == State::kPausing) return Dial();
  if (state_ != State::kServing) return;
  has_unread ? unread_ += own_.Skip(now) : own_.Tick(now);
  const Duration silent = Listened(now) - heard_, stalled = Listened(now) - steps_changed_;
  const double stall_limit_ms =
      std::max(Milliseconds(limits_.step_stall), limits_.step_stall_factor * predicted_step_ms_);
  if (silent > limits_.heartbeat) {
    return Lost(absl::UnavailableError(StrCat("no report for ", static_cast<int64_t>(Milliseconds(silent)),
                                              " ms (--heartbeat-timeout-ms ",
                                              static_cast<int64_t>(Milliseconds(limits_.heartbeat)), ")")),
                now);
  }
  if (unread_ > LinkLimits::kUnreadHeartbeats * limits_.heartbeat) {
    return Lost(absl::UnavailableError(StrCat("what it says lies unread, and no report has come for ",
                                              static_cast<int64_t>(Milliseconds(unread_)), " ms (",
                                              LinkLimits::kUnreadHeartbeats, " times --heartbeat-timeout-ms ",
                                              static_cast<int64_t>(Milliseconds(limits_.heartbeat)), ")")),
                now);
  }
  if (Milliseconds(stalled) > stall_limit_ms) {
    return Lost(
        absl::UnavailableError(StrCat("no step for ", static_cast<int64_t>(Milliseconds(stalled)), " ms, limit ",
                                      static_cast<int64_t>(stall_limit_ms), " (--step-stall-ms, --step-stall-factor)")),
        now);
  }
  if (now - renewed_ >= kRenewEvery) {
    renewed_ = now;
    actions_.emplace_back(RenewLegs{});
  }
  actions_.emplace_back(ArmLink{now + OwnTime::kTick});
}

void LinkFlow::Stop(const absl::Status& why) {
  if (state_ == State::kServing) actions_.emplace_back(EndSession{why});
  session_ = 0;
  state_ = State::kStopped;
}

std::vector<LinkAction> LinkFlow::TakeActions() { return std::exchange(actions_, {}); }

}  // namespace baton::router
