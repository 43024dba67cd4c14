// Sequences without credit: as many tokens wait for their readers as are kept. They are in no step and take no place of
// max_num_seqs from others. They keep their blocks as long as nobody lacks them; then who has been without credit for
// the longest is parked first: it gives its blocks up, waits outside of the queue, and is computed again once all that
// it had for its reader has been taken. So nobody's reader can keep another from being served, and one who reads a
// little now and then has no more computed again than that allows.
#include <algorithm>

#include "engine/step/scheduler_state.h"

namespace baton::engine {

bool Scheduler::State::HasCredit(const Sequence& s) const {
  return static_cast<int32_t>(s.undelivered.size()) < options.max_undelivered_tokens;
}

bool Scheduler::State::MayBeParked(const Sequence& s) const {
  return !HasCredit(s) && s.in_plans == 0 && !s.kv.tables.empty();
}

int32_t Scheduler::State::RunningWithCredit() const {
  return static_cast<int32_t>(std::ranges::count_if(running, [&](const Sequence* s) { return HasCredit(*s); }));
}

// Those that share blocks have fewer than it says.
int64_t Scheduler::State::BlocksWithoutCredit(int32_t group) const {
  int64_t blocks = 0;
  for (const Sequence* s : running) {
    if (MayBeParked(*s)) blocks += s->kv.tables[static_cast<size_t>(group)].owned();
  }
  return blocks;
}

bool Scheduler::State::ParkFor(const std::function<int64_t(int32_t group)>& missing) {
  for (;;) {
    bool there = true;
    for (int32_t g = 0; g < cache.num_groups(); ++g) {
      const int64_t blocks = missing(g);
      if (blocks > BlocksWithoutCredit(g)) return false;
      there = there && blocks <= 0;
    }
    if (there) return true;
    if (!ParkOne()) return false;
  }
}

// Of those without credit since the same step it is the last in order. None is handed back to the router
// (RolePolicy::HandBackPreempted): another worker would compute it for nobody, too.
bool Scheduler::State::ParkOne() {
  Sequence* longest = nullptr;
  for (size_t i = running.size(); i-- > 0;) {
    Sequence* const s = running[i];
    if (MayBeParked(*s) && (longest == nullptr || s->last_planned < longest->last_planned)) longest = s;
  }
  if (longest == nullptr) return false;
  ++preemptions;
  GiveUpBlocks(*longest);
  longest->phase = Sequence::Phase::kParked;
  ++parked;
  return true;
}

void Scheduler::State::DeliverAndUnpark(Sequence& s, TimePoint now) {
  const bool was_parked = s.phase == Sequence::Phase::kParked;  // then it has not ended, and Deliver does not remove it
  Deliver(s, now);
  if (!was_parked || !s.undelivered.empty()) return;
  LeaveQueues(s);
  Enqueue(s);
}

}  // namespace baton::engine
