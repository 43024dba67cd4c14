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

GrammarCheck::GrammarCheck(const Tokenizer& tokenizer, Duration least_work)
    : least_work_(least_work),
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
  auto error = Compile(*compiler, grammar, field, until);
  Count(!error, Seconds(SteadyClock().Now() - begun));
  if (!error) Keep(std::move(key));
  return error;
}

std::optional<ApiError> GrammarCheck::Compile(const std::shared_ptr<const GrammarCompiler>& compiler,
                                              const Grammar& grammar, const std::string& field, TimePoint until) {
  // Beside others' costly ones a fault that is cheap to find does not wait for a turn.
  if (turns_.count() == 0 && grammar.text.size() <= kCheapBytes) {
    if (const absl::Status form = CheckForm(grammar); !form.ok()) return Refused(field, form);
  }
  if (!TakeTurn(until)) {
    return Overloaded(StrCat("`", field, "` waits for grammars that take long, ", MostAtOnce(), " compile at once"),
                      Overload{static_cast<int64_t>(MostAtOnce()), 1000, "the number of cores"});
  }
  std::list<Compilation> mine;
  const auto place = std::make_shared<Place>(&turns_);
  const auto leave_place = [place] {
    if (Semaphore* taken = place->exchange(nullptr)) taken->Give();
  };
  Compilation& compilation = mine.emplace_back(compiler, grammar, leave_place, Compilation::Wanted::kToKnow);
  if (WaitFor(compilation, *place, until)) {
    leave_place();  // the compiling thread may not have come to it yet
    const absl::Status status = compilation.Take().status();
    Leave(std::move(mine));
    if (!status.ok()) return Refused(field, status);
    return std::nullopt;
  }
  const Duration worked = compilation.WorkedFor();
  Leave(std::move(mine));
  if (worked < least_work_) {
    return Overloaded(
        StrCat("`", field, "` has had ", static_cast<int64_t>(Milliseconds(worked)), " ms to compile"),
        Overload{static_cast<int64_t>(MostAtOnce()) - turns_.count() - long_.count(), 1000, "the number of cores"});
  }
  return BadRequest(StrCat("`", field, "` is a grammar of ", grammar.text.size(),
                           " bytes that takes too long to compile here: it was given up."),
                    field);
}

// One that takes long leaves its turn to the next when its moment is over. What the machine has had no time for may be
// as simple as any.
bool GrammarCheck::WaitFor(Compilation& compilation, Place& place, TimePoint until) {
  const SteadyClock clock;
  bool done = compilation.Wait(std::min(until, compilation.moment_ends()));
  if (done) return true;
  if (long_.TakeBy(TimePoint())) {
    Semaphore* turn = &turns_;
    (place.compare_exchange_strong(turn, &long_) ? turns_ : long_).Give();
  }
  done = compilation.Wait(until);
  const TimePoint last = std::max(until, clock.Now()) + kBusyWait;
  while (!done && clock.Now() < last && compilation.WorkedFor() < least_work_) {
    done = compilation.Wait(clock.Now() + std::chrono::milliseconds(10));
  }
  return done;
}

bool GrammarCheck::TakeTurn(TimePoint until) {
  std::list<Compilation> over;  // ends outside of the lock
  {
    std::lock_guard lock(left_mutex_);
    for (auto it = left_.begin(); it != left_.end();) {
      const auto left = it++;
      if (left->Over()) over.splice(over.end(), left_, left);
    }
  }
  return turns_.TakeBy(until);
}

/// Nobody waits for the thread's end, which may have a low priority.
void GrammarCheck::Leave(std::list<Compilation> compilation) {
  std::lock_guard lock(left_mutex_);
  left_.splice(left_.end(), compilation);
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
