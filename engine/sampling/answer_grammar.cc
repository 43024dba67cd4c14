#include "engine/sampling/answer_grammar.h"

#include <time.h>

#include <algorithm>
#include <bit>

#include "common/status.h"

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

/// What the calling thread has had of a core.
Duration WorkedSoFar() {
  timespec worked{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &worked);
  return std::chrono::seconds(worked.tv_sec) + std::chrono::nanoseconds(worked.tv_nsec);
}

}  // namespace

AnswerGrammar::AnswerGrammar(GrammarPool& pool, std::shared_ptr<const Grammar> grammar,
                             std::vector<int32_t> output_so_far)
    : pool_(pool), grammar_(std::move(grammar)), to_take_(std::move(output_so_far)) {
  ++pool_.tally_.following;
}

AnswerGrammar::~AnswerGrammar() {
  --pool_.tally_.following;
  if (was_ever_slow_) pool_.GiveBack(std::move(matcher_));
}

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
  bool slow = false;
  {
    std::lock_guard lock(mutex_);
    to_take_.push_back(token);
    working_ = true;
    slow = is_slow_;
    if (slow) came_late_ = true;  // no step waits for it in vain
  }
  if (slow) ++pool_.tally_.masks_late;
  pool_.Post(shared_from_this(), slow ? GrammarPool::Takes::kSlow : GrammarPool::Takes::kGoingOn);
}

AnswerGrammar::Worked AnswerGrammar::Work(LowPriorityThread* back) {
  absl::Status status;
  if (!matcher_ && !Begin(status)) return Worked::kNotCompiled;
  const bool is_slow = cost_ > pool_.slow_from_ && !pool_.threads_.empty();
  if (is_slow && back == nullptr) return Worked::kIsForSlow;
  std::vector<int32_t> tokens;
  {
    std::lock_guard lock(mutex_);
    tokens.swap(to_take_);
  }
  const auto work = [&] { status = TakeAndMask(tokens); };
  if (status.ok()) back != nullptr ? back->Do(work) : work();
  bool late = false;
  {
    std::lock_guard lock(mutex_);
    status_ = std::move(status);
    is_slow_ = cost_ > pool_.slow_from_ && !pool_.threads_.empty();
    was_ever_slow_ = was_ever_slow_ || is_slow_;
    working_ = false;
    late = std::exchange(came_late_, false);
  }
  ready_.notify_all();
  if (late) pool_.SayReady();
  return Worked::kDone;
}

bool AnswerGrammar::Begin(absl::Status& status) {
  if (!shelved_) {
    std::weak_ptr<AnswerGrammar> self = weak_from_this();
    auto then = [self](const GrammarShelf::Shared& shelved) {
      const auto answer = self.lock();
      if (!answer) return;
      answer->shelved_ = shelved;
      answer->pool_.Post(answer, GrammarPool::Takes::kBeginningToo);
    };
    auto there = pool_.shelf_.Get(grammar_, self, std::move(then));
    if (!there) return false;  // from here on it may be another thread's
    shelved_ = std::move(there);
  }
  auto matcher = shelved_->NewMatcher();
  status = matcher.status();
  if (!status.ok()) return true;
  matcher_ = *std::move(matcher);
  cost_of_grammar_ = shelved_->cost();
  cost_ = *cost_of_grammar_;
  mask_.resize((static_cast<size_t>(pool_.compiler_->vocab_size()) + 31) / 32);
  return true;
}

// A mask is made at each token, also at those that are there already: what a grammar may cost is counted by what its
// matcher has found out, so that an answer which is too costly somewhere is so there when it goes on elsewhere, too.
absl::Status AnswerGrammar::TakeAndMask(const std::vector<int32_t>& tokens) {
  const Stopwatch makes(pool_.tally_.mask_ns);
  for (const int32_t token : tokens) {
    if (!mask_is_here_) BATON_RETURN_IF_ERROR(MakeMask());
    BATON_RETURN_IF_ERROR(matcher_->Consume({token}));
    mask_is_here_ = false;
  }
  return mask_is_here_ ? absl::OkStatus() : MakeMask();
}

absl::Status AnswerGrammar::MakeMask() {
  ++pool_.tally_.masks;
  const Duration begun = WorkedSoFar();
  const absl::Status status = matcher_->Mask(absl::MakeSpan(mask_));
  cost_ = std::max(WorkedSoFar() - begun, cost_ - cost_ / 16);
  *cost_of_grammar_ = cost_;
  mask_is_here_ = status.ok();
  return status;
}

GrammarPool::GrammarPool(std::shared_ptr<const GrammarCompiler> compiler, int threads, Duration slow)
    : compiler_(compiler),
      slow_from_(slow),
      shelf_(std::move(compiler), {.at_once = threads == 0 ? 0 : std::max(1, threads - 1),
                                   .costly = slow + Duration(1),
                                   .give_back = [this](std::shared_ptr<void> what) { GiveBack(std::move(what)); }}) {
  for (int i = 0; i < threads; ++i) {
    const Takes takes = i > 0 || threads == 1 ? Takes::kBeginningToo : Takes::kGoingOn;
    threads_.emplace_back([this, takes] { Run(takes); });
  }
  for (int i = 0; i < (threads + 1) / 2; ++i) threads_.emplace_back([this] { RunSlow(); });
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
  Post(answer, Takes::kBeginningToo);
  return answer;
}

std::shared_ptr<AnswerGrammar> GrammarPool::Fork(const AnswerGrammar& of) {
  std::lock_guard lock(of.mutex_);
  if (of.working_ || of.is_slow_) return nullptr;
  std::shared_ptr<AnswerGrammar> answer(new AnswerGrammar(*this, of.grammar_, {}));
  if (of.matcher_) {
    absl::StatusOr<std::unique_ptr<GrammarMatcher>> matcher = of.matcher_->Copy();
    if (!matcher.ok()) return nullptr;
    answer->matcher_ = *std::move(matcher);
    answer->cost_of_grammar_ = of.cost_of_grammar_;
    answer->cost_ = of.cost_;
    answer->was_ever_slow_ = of.was_ever_slow_;
    answer->mask_is_here_ = of.mask_is_here_;
  }
  answer->mask_ = of.mask_;
  answer->status_ = of.status_;
  answer->working_ = answer->came_late_ = false;
  return answer;
}

void GrammarPool::Post(const std::shared_ptr<AnswerGrammar>& answer, Takes by) {
  {
    std::lock_guard lock(mutex_);
    (by == Takes::kSlow ? slow_ : by == Takes::kGoingOn ? going_on_ : beginning_).push_back(answer);
  }
  wake_.notify_all();  // not every thread takes every one
}

std::shared_ptr<AnswerGrammar> GrammarPool::Next(Takes takes) {
  for (auto* waiting : {&slow_, &beginning_, &going_on_}) {
    if ((waiting == &slow_) != (takes == Takes::kSlow)) continue;
    if (waiting == &beginning_ && takes != Takes::kBeginningToo) continue;
    while (!waiting->empty()) {
      std::shared_ptr<AnswerGrammar> answer = waiting->front().lock();
      waiting->pop_front();
      if (answer) return answer;  // else nobody follows it any more
    }
  }
  return nullptr;
}

bool GrammarPool::HasWork(Takes takes) const {
  if (takes == Takes::kSlow) return !slow_.empty() || !given_back_.empty();
  return !going_on_.empty() || (takes == Takes::kBeginningToo && !beginning_.empty());
}

void GrammarPool::GiveBack(std::shared_ptr<void> what) {
  if (threads_.empty()) return;
  {
    std::lock_guard lock(mutex_);
    given_back_.push_back(std::move(what));
  }
  wake_.notify_all();
}

int GrammarPool::Turn(int most) {
  for (int done = 0; done < most; ++done) {
    std::unique_lock lock(mutex_);
    const std::shared_ptr<AnswerGrammar> answer = Next(Takes::kBeginningToo);
    lock.unlock();
    if (!answer) return done;
    answer->Work(/*back=*/nullptr);
  }
  return most;
}

void GrammarPool::Run(Takes takes) {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return ends_ || HasWork(takes); });
    if (ends_) return;
    std::shared_ptr<AnswerGrammar> answer = Next(takes);
    if (!answer) continue;
    lock.unlock();
    if (answer->Work(/*back=*/nullptr) == AnswerGrammar::Worked::kIsForSlow) Post(answer, Takes::kSlow);
    answer.reset();
    lock.lock();
  }
}

void GrammarPool::RunSlow() {
  LowPriorityThread back;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return ends_ || HasWork(Takes::kSlow); });
    if (ends_) return;
    std::shared_ptr<AnswerGrammar> answer = Next(Takes::kSlow);
    std::vector<std::shared_ptr<void>> given_back = std::exchange(given_back_, {});
    lock.unlock();
    if (answer && answer->Work(&back) == AnswerGrammar::Worked::kDone) ++tally_.masks_slow;
    answer.reset();
    if (!given_back.empty()) back.Do([&] { given_back.clear(); });
    lock.lock();
  }
}

GrammarPoolCounts GrammarPool::counts() const {
  const auto time = [](const std::atomic<int64_t>& ns) { return Duration(std::chrono::nanoseconds(ns)); };
  return {.following = tally_.following,
          .compiled = shelf_.counts().compiled,
          .known = shelf_.counts().known,
          .refused = shelf_.counts().refused,
          .compile_time = time(shelf_.counts().compile_ns),
          .masks = tally_.masks,
          .masks_late = tally_.masks_late,
          .masks_slow = tally_.masks_slow,
          .mask_time = time(tally_.mask_ns),
          .wait_time = time(tally_.wait_ns)};
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
