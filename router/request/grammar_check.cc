#include "router/request/grammar_check.h"

#include <algorithm>
#include <iterator>
#include <thread>
#include <utility>

#include "common/foreign_text.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "text/grammar_form.h"

namespace baton::router {
namespace {

absl::StatusOr<std::shared_ptr<const GrammarCompiler>> MakeCompiler(const Tokenizer& tokenizer) {
  BATON_ASSIGN_OR_RETURN(auto compiler, GrammarCompiler::Make(tokenizer, tokenizer.eos_ids(), tokenizer.vocab_size()));
  return std::shared_ptr<const GrammarCompiler>(std::move(compiler));
}

ApiError Refused(const std::string& field, const absl::Status& why) {
  return BadRequest(StrCat("`", field, "`: ", why.message(), "."), field);
}

}  // namespace

GrammarCheck::GrammarCheck(const Tokenizer& tokenizer, Duration least_work, Duration busy_wait)
    : least_work_(least_work),
      busy_wait_(busy_wait),
      compiler_(std::async(std::launch::async, [&tokenizer] { return MakeCompiler(tokenizer); }).share()),
      turns_(static_cast<unsigned>(FirstPlaces())),
      long_(static_cast<unsigned>(FirstPlaces())) {}

std::optional<ApiError> GrammarCheck::Check(const Grammar& grammar, const std::string& field,
                                            const std::string& their_digest, TimePoint until) {
  if (grammar.text.size() > kMaxBytes) {
    return BadRequest(
        StrCat("`", field, "` is a grammar of ", grammar.text.size(), " bytes, at most ", kMaxBytes, " are possible."),
        field);
  }
  const auto& compiler = compiler_.get();
  if (!compiler.ok()) return FromStatus(compiler.status());
  const std::string& digest = (*compiler)->digest();
  if (their_digest.empty()) {
    return FromStatus(absl::UnimplementedError(
        StrCat("`", field, "` needs workers that have the model's tokenizer, and these have none.")));
  }
  if (their_digest != digest) {
    return FromStatus(absl::FailedPreconditionError(
        StrCat("`", field, "`: the workers' tokenizer (", their_digest, ") is not this router's (", digest, ").")));
  }
  std::string key = KeyOf(grammar);
  if (IsKnown(key)) return std::nullopt;
  const TimePoint begun = SteadyClock().Now();
  auto error = Compile(*compiler, grammar, key, field, until);
  Count(!error, Seconds(SteadyClock().Now() - begun));
  if (!error) Keep(std::move(key));
  return error;
}

std::optional<ApiError> GrammarCheck::Compile(const std::shared_ptr<const GrammarCompiler>& compiler,
                                              const Grammar& grammar, const std::string& key, const std::string& field,
                                              TimePoint until) {
  std::list<Running> mine = TakeBack(key);
  if (mine.empty()) {
    // Beside others' costly ones a fault that is cheap to find does not wait for a turn.
    if (turns_.count() == 0 && grammar.text.size() <= kCheapBytes) {
      if (const absl::Status form = CheckForm(grammar); !form.ok()) return Refused(field, form);
    }
    if (!TakeTurn(until)) {
      return Overloaded(StrCat("`", field, "` waits for grammars that take long, ", MostAtOnce(), " compile at once"),
                        Overload{static_cast<int64_t>(MostAtOnce()), 1000, "the number of cores"});
    }
    mine.emplace_back(key, std::make_shared<Place>(&turns_), least_work_, compiler, grammar);
  }
  Running& running = mine.front();
  running.most_work = std::max(running.most_work, until - SteadyClock().Now());
  const bool done = WaitFor(running, until);
  const Duration worked = running.compilation.WorkedFor();
  const bool too_long = worked >= least_work_ && (!done || worked > running.most_work);
  absl::Status status;
  if (done && !too_long) {
    status = running.compilation.Take().status();
    running.key.clear();
  }
  Leave(std::move(mine));
  if (too_long) {
    return BadRequest(StrCat("`", field, "` is a grammar of ", grammar.text.size(),
                             " bytes that takes too long to compile here: it was given up."),
                      field);
  }
  if (!done) {
    return Overloaded(
        StrCat("`", field, "` has had ", static_cast<int64_t>(Milliseconds(worked)), " ms to compile"),
        Overload{static_cast<int64_t>(MostAtOnce()) - turns_.count() - long_.count(), 1000, "the number of cores"});
  }
  if (!status.ok()) return Refused(field, status);
  return std::nullopt;
}

void GrammarCheck::GiveBack(Place& place) {
  if (Semaphore* taken = place.exchange(nullptr)) taken->Give();
}

// One that takes long leaves its turn to the next when its moment is over. What the machine has had no time for may be
// as simple as any.
bool GrammarCheck::WaitFor(Running& running, TimePoint until) {
  const SteadyClock clock;
  Compilation& compilation = running.compilation;
  bool done = compilation.Wait(std::min(until, compilation.moment_ends()));
  if (!done) {
    if (long_.TakeBy(TimePoint())) {
      Semaphore* turn = &turns_;
      (running.place->compare_exchange_strong(turn, &long_) ? turns_ : long_).Give();
    }
    done = compilation.Wait(until);
    const TimePoint last = std::max(until, clock.Now()) + busy_wait_;
    while (!done && clock.Now() < last && compilation.WorkedFor() < least_work_) {
      done = compilation.Wait(clock.Now() + std::chrono::milliseconds(10));
    }
  }
  if (done) GiveBack(*running.place);  // the compiling thread may not have come to it yet
  return done;
}

bool GrammarCheck::TakeTurn(TimePoint until) {
  KeepEnded();
  return turns_.TakeBy(until);
}

/// Of those that nobody waits for.
void GrammarCheck::KeepEnded() {
  std::list<Running> over;  // ends outside of the lock
  {
    std::lock_guard lock(left_mutex_);
    for (auto it = left_.begin(); it != left_.end();) {
      const auto left = it++;
      if (left->compilation.Over()) over.splice(over.end(), left_, left);
    }
  }
  for (Running& ended : over) {
    const bool in_time = !ended.key.empty() && ended.compilation.WorkedFor() <= ended.most_work;
    if (in_time && ended.compilation.Take().ok()) Keep(std::move(ended.key));
  }
}

/// The one of that grammar that nobody waits for, if there is one.
std::list<GrammarCheck::Running> GrammarCheck::TakeBack(const std::string& key) {
  std::list<Running> mine;
  std::lock_guard lock(left_mutex_);
  const auto it = std::find_if(left_.begin(), left_.end(), [&](const Running& left) { return left.key == key; });
  if (it != left_.end()) mine.splice(mine.end(), left_, it);
  return mine;
}

/// Nobody waits for the thread's end, which may have a low priority.
void GrammarCheck::Leave(std::list<Running> running) {
  std::lock_guard lock(left_mutex_);
  left_.splice(left_.end(), running);
}

size_t GrammarCheck::FirstPlaces() { return std::max<size_t>(2, std::thread::hardware_concurrency() / 4); }

std::string GrammarCheck::KeyOf(const Grammar& grammar) { return StrCat(static_cast<int>(grammar.kind), grammar.text); }

bool GrammarCheck::Knows(const Grammar& grammar) const {
  const std::string key = KeyOf(grammar);
  std::lock_guard lock(mutex_);
  return good_.contains(key);
}

bool GrammarCheck::IsKnown(const std::string& key) {
  std::lock_guard lock(mutex_);
  const bool known = good_.contains(key);
  counts_.known += known;
  return known;
}

void GrammarCheck::Count(bool compiled, double seconds) {
  std::lock_guard lock(mutex_);
  ++(compiled ? counts_.compiled : counts_.refused);
  counts_.compile_s += seconds;
}

GrammarCounts GrammarCheck::counts() const {
  std::lock_guard lock(mutex_);
  return counts_;
}

void GrammarCheck::Keep(std::string key) {
  std::lock_guard lock(mutex_);
  if (!good_.insert(key).second) return;
  kept_bytes_ += key.size();
  order_.push_back(std::move(key));
  for (; kept_bytes_ > kKeptBytes; order_.pop_front()) {
    kept_bytes_ -= order_.front().size();
    good_.erase(order_.front());
  }
}

}  // namespace baton::router
