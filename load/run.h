// One measured run: offers requests when the schedule says so, at most so many at a time, and keeps what became of
// each. Runs on the caller's thread until the last one has ended.
#pragma once

#include <functional>
#include <vector>

#include "load/asker.h"
#include "load/faults.h"
#include "load/outcome.h"
#include "load/prompts.h"

namespace baton::load {

struct RunResult {
  std::vector<Outcome> outcomes;  ///< in the order of the prompts; of an interrupted run those that had ended
  Duration duration{};            ///< from the start to the last end
  int64_t connections = 0;
  int most_at_a_time = 0;
  bool real_time = false;         ///< the thread that sent was
  double started_at_s = 0;        ///< of the wall clock, seconds since 1970
  std::vector<FaultSeen> faults;  ///< in the order of time
  bool interrupted = false;       ///< by Run::stop_fd
  int64_t unfinished = 0;         ///< requests that were under way then
  int64_t unsent = 0;             ///< and those that were not sent yet

  size_t planned() const { return outcomes.size() + static_cast<size_t>(unfinished + unsent); }
};

struct Run {
  MakeAsker asker;
  const std::vector<Prompt>& prompts;
  std::vector<Duration> due;   ///< per prompt, never falling; all zero: a closed loop
  int64_t most_at_a_time = 0;  ///< 0: no limit
  std::string request_id_prefix;
  std::function<void(size_t ended, size_t failed)> on_end{};  ///< after each request; may be empty
  std::vector<Fault> faults{};                                ///< those after the last answer do not happen
  bool real_time = false;                                     ///< the thread that sends is, where that is allowed
  TimePoint until = TimePoint::max();                         ///< no answer is waited for beyond it
  int stop_fd = -1;                                           ///< once it can be read, the run ends at once
};

RunResult Execute(const Run& run, const Clock& clock);

/// What asking again showed.
struct Verified {
  int64_t compared = 0;
  int64_t different = 0;
  int64_t failed = 0;           ///< had no second answer
  int64_t unasked = 0;          ///< were not asked again: the run was interrupted
  std::vector<size_t> which{};  ///< that differ
};

/// Asks everything again, one at a time, and compares the bytes of the answers that were whole.
Verified VerifyIdentical(const Run& run, const std::vector<Outcome>& outcomes, const Clock& clock);

}  // namespace baton::load
