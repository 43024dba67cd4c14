#include "engine/sampling/answer_grammar.h"

#include <algorithm>
#include <bit>

#include "common/status.h"
#include "text/compilation.h"

namespace baton::engine {
namespace {

/// Nanoseconds of real time: these threads have no other.
class Stopwatch {
 public:
  explicit Stopwatch(std::atomic<int64_t>& sum) : sum_(sum) {}
  ~Stopwatch() { sum_ += std::chrono::nanoseconds(SteadyClock().Now() - begun_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  std::atomic<int64_t>& sum_;
  const TimePoint begun_ = SteadyClock().Now();
};

}  // namespace

AnswerGrammar::AnswerGrammar(GrammarPool& pool, std::shared_ptr<const Grammar> grammar,
                             std::vector<int32_t> output_so_far)
    : pool_(pool), grammar_(std::move(grammar)), to_take_(std::move(output_so_far)) {
  ++pool_.tally_.following;
}

AnswerGrammar::~AnswerGrammar() { --pool_.tally_.following; }

bool AnswerGrammar::MayBePlanned() const {
  std::lock_guard lock(mutex_);
  return !working_ || !came_late_;
}

absl::StatusOr<absl::Span<const uint32_t>> AnswerGrammar::Mask(std::chrono::steady_clock::time_point until) {
  std::unique_lock lock(mutex_);
  const Stopwatch waits(pool_.tally_.wait_ns);
  if (pool_.threads_.empty() ? working_ : !ready_.wait_until(lock, until, [this] { return !working_; })) {
    came_late_ = true;
    ++pool_.tally_.masks_late;
    return absl::Span<const uint32_t>();
  }
  if (!status_.ok()) return status_;
  return absl::MakeConstSpan(mask_);
}

void AnswerGrammar::Advance(int32_t token) {
  {
    std::lock_guard lock(mutex_);
    to_take_.push_back(token);
    working_ = true;
  }
  pool_.Post(shared_from_this(), false);
}

void AnswerGrammar::Work() {
  std::vector<int32_t> tokens;
  {
    std::lock_guard lock(mutex_);
    tokens.swap(to_take_);
  }
  absl::Status status = TakeAndMask(tokens);
  bool late = false;
  {
    std::lock_guard lock(mutex_);
    status_ = std::move(status);
    working_ = false;
    late = std::exchange(came_late_, false);
  }
  ready_.notify_all();
  if (late) pool_.SayReady();
}

absl::Status AnswerGrammar::TakeAndMask(const std::vector<int32_t>& tokens) {
  if (!matcher_) {
    BATON_ASSIGN_OR_RETURN(matcher_, pool_.NewMatcher(*grammar_));
    mask_.resize((static_cast<size_t>(pool_.compiler_->vocab_size()) + 31) / 32);
  }
  const Stopwatch makes(pool_.tally_.mask_ns);
  ++pool_.tally_.masks;
  BATON_RETURN_IF_ERROR(matcher_->Consume(tokens));
  return matcher_->Mask(absl::MakeSpan(mask_));
}

GrammarPool::GrammarPool(std::shared_ptr<const GrammarCompiler> compiler, int threads)
    : compiler_(std::move(compiler)) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this, begins = i > 0 || threads == 1] { Run(begins); });
}

GrammarPool::~GrammarPool() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void GrammarPool::OnReady(std::function<void()> on_ready) {
  std::lock_guard lock(ready_mutex_);
  on_ready_ = std::move(on_ready);
}

void GrammarPool::SayReady() {
  std::lock_guard lock(ready_mutex_);
  if (on_ready_) on_ready_();
}

std::shared_ptr<AnswerGrammar> GrammarPool::Follow(std::shared_ptr<const Grammar> grammar,
                                                   std::vector<int32_t> output_so_far) {
  std::shared_ptr<AnswerGrammar> answer(new AnswerGrammar(*this, std::move(grammar), std::move(output_so_far)));
  Post(answer, true);
  return answer;
}

std::shared_ptr<AnswerGrammar> GrammarPool::Fork(const AnswerGrammar& of) {
  std::lock_guard lock(of.mutex_);
  if (of.working_) return nullptr;
  std::shared_ptr<AnswerGrammar> answer(new AnswerGrammar(*this, of.grammar_, {}));
  if (of.matcher_) {
    absl::StatusOr<std::unique_ptr<GrammarMatcher>> matcher = of.matcher_->Copy();
    if (!matcher.ok()) return nullptr;
    answer->matcher_ = *std::move(matcher);
  }
  answer->mask_ = of.mask_;
  answer->status_ = of.status_;
  answer->working_ = answer->came_late_ = false;
  return answer;
}

void GrammarPool::Post(const std::shared_ptr<AnswerGrammar>& answer, bool begins) {
  {
    std::lock_guard lock(mutex_);
    (begins ? beginning_ : going_on_).push_back(answer);
  }
  wake_.notify_all();  // not every thread takes one that begins
}

std::shared_ptr<AnswerGrammar> GrammarPool::Next(bool begins) {
  for (auto* waiting : {&beginning_, &going_on_}) {
    if (waiting == &beginning_ && !begins) continue;
    while (!waiting->empty()) {
      std::shared_ptr<AnswerGrammar> answer = waiting->front().lock();
      waiting->pop_front();
      if (answer) return answer;  // else nobody follows it any more
    }
  }
  return nullptr;
}

int GrammarPool::Turn(int most) {
  for (int done = 0; done < most; ++done) {
    std::unique_lock lock(mutex_);
    const std::shared_ptr<AnswerGrammar> answer = Next(true);
    lock.unlock();
    if (!answer) return done;
    answer->Work();
  }
  return most;
}

void GrammarPool::Run(bool begins) {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return ends_ || !going_on_.empty() || (begins && !beginning_.empty()); });
    if (ends_) return;
    std::shared_ptr<AnswerGrammar> answer = Next(begins);
    if (!answer) continue;
    lock.unlock();
    answer->Work();
    answer.reset();
    lock.lock();
  }
}

// Where there are no threads it is compiled on the caller's.
absl::StatusOr<std::unique_ptr<GrammarMatcher>> GrammarPool::Compile(const Grammar& grammar) {
  const Stopwatch compiles(tally_.compile_ns);
  if (threads_.empty()) return compiler_->Compile(grammar.kind, grammar.text);
  Compilation compilation(compiler_, grammar);
  compilation.Wait(TimePoint::max());
  return compilation.Take();
}

GrammarPoolCounts GrammarPool::counts() const {
  const auto time = [](const std::atomic<int64_t>& ns) { return Duration(std::chrono::nanoseconds(ns)); };
  return {.following = tally_.following,
          .compiled = tally_.compiled,
          .known = tally_.known,
          .refused = tally_.refused,
          .compile_time = time(tally_.compile_ns),
          .masks = tally_.masks,
          .masks_late = tally_.masks_late,
          .mask_time = time(tally_.mask_ns),
          .wait_time = time(tally_.wait_ns)};
}

absl::StatusOr<std::unique_ptr<GrammarMatcher>> GrammarPool::NewMatcher(const Grammar& grammar) {
  std::shared_ptr<Compiled> compiled;
  {
    std::lock_guard lock(mutex_);
    const Key key(grammar.kind, grammar.text);
    std::shared_ptr<Compiled>& kept = compiled_[key];
    if (!kept) {
      kept = std::make_shared<Compiled>();
      order_.push_back(key);
    }
    compiled = kept;
    if (order_.size() > kKept) {
      compiled_.erase(order_.front());
      order_.pop_front();
    }
  }
  std::lock_guard lock(compiled->mutex);
  if (std::exchange(compiled->done, true)) {
    ++tally_.known;
  } else {
    compiled->matcher = Compile(grammar);
    ++(compiled->matcher.ok() ? tally_.compiled : tally_.refused);
  }
  BATON_RETURN_IF_ERROR(compiled->matcher.status());
  return (*compiled->matcher)->Copy();
}

bool AnyTokenAllowed(absl::Span<const uint32_t> mask, const std::vector<int32_t>& allowed,
                     const std::vector<int32_t>& banned) {
  const auto in_mask = [&](int32_t token) {
    const auto word = static_cast<size_t>(token / 32);
    return word < mask.size() && (mask[word] >> (token % 32) & 1) != 0;
  };
  const auto may = [&](int32_t token) {
    return in_mask(token) && !std::binary_search(banned.begin(), banned.end(), token);
  };
  if (!allowed.empty()) return std::any_of(allowed.begin(), allowed.end(), may);
  for (size_t word = 0; word < mask.size(); ++word) {
    for (uint32_t bits = mask[word]; bits != 0; bits &= bits - 1) {
      if (may(static_cast<int32_t>(word * 32) + std::countr_zero(bits))) return true;
    }
  }
  return false;
}

}  // namespace baton::engine
