#include "engine/sampling/answer_grammar.h"

#include <algorithm>
#include <bit>

#include "common/status.h"

namespace baton::engine {

bool AnswerGrammar::MayBePlanned() const {
  std::lock_guard lock(mutex_);
  return !working_ || !came_late_;
}

absl::StatusOr<absl::Span<const uint32_t>> AnswerGrammar::Mask(std::chrono::steady_clock::time_point until) {
  std::unique_lock lock(mutex_);
  if (pool_.threads_.empty() ? working_ : !ready_.wait_until(lock, until, [this] { return !working_; })) {
    came_late_ = true;
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
  if (!std::exchange(compiled->done, true)) compiled->matcher = compiler_->Compile(grammar.kind, grammar.text);
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
