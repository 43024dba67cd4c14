#include "engine/sampling/grammar_shelf.h"

#include <algorithm>
#include <utility>

#include "common/status.h"

namespace baton::engine {

absl::StatusOr<std::unique_ptr<GrammarMatcher>> ShelvedGrammar::NewMatcher() {
  std::lock_guard lock(mutex_);
  BATON_RETURN_IF_ERROR(matcher_.status());
  return (*matcher_)->Copy();
}

GrammarShelf::GrammarShelf(std::shared_ptr<const GrammarCompiler> compiler, GrammarShelfOptions options)
    : compiler_(std::move(compiler)), options_(std::move(options)) {
  if (options_.at_once > 0) thread_ = std::thread([this] { Run(); });
}

GrammarShelf::~GrammarShelf() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  news_.Give();
  if (thread_.joinable()) thread_.join();
}

GrammarShelf::Shared GrammarShelf::Get(const std::shared_ptr<const Grammar>& grammar, std::weak_ptr<void> who,
                                       std::function<void(const Shared&)> then) {
  const bool compiles_here = options_.at_once == 0;
  Shared found, oldest;
  bool is_new = false, there = false;
  {
    std::lock_guard lock(mutex_);
    Shared& kept = shelf_[Key(grammar->kind, grammar->text)];
    is_new = kept == nullptr;
    if (is_new) {
      kept = std::make_shared<ShelvedGrammar>(grammar);  // with the text that the key is of
      order_.push_back(kept);
      if (!compiles_here) new_.push_back(kept);
    } else {
      ++counts_.known;
    }
    found = kept;
    there = found->there_;
    if (!there && !compiles_here) found->waiting_.push_back({std::move(who), std::move(then)});
    if (order_.size() > kKept) {
      oldest = std::move(order_.front());
      order_.pop_front();
      shelf_.erase(KeyOf(*oldest));
    }
  }
  if (oldest) options_.give_back(std::move(oldest));
  if (is_new && compiles_here) CompileHere(found);
  if (is_new) news_.Give();
  return there || compiles_here ? found : nullptr;
}

void GrammarShelf::CompileHere(const Shared& grammar) {
  const TimePoint begun = SteadyClock().Now();
  Compilation::Result result = compiler_->Compile(grammar->grammar_->kind, grammar->grammar_->text);
  counts_.compile_ns += (SteadyClock().Now() - begun).count();
  Put(grammar, std::move(result));
}

void GrammarShelf::Put(const Shared& grammar, Compilation::Result result) {
  ++(result.ok() ? counts_.compiled : counts_.refused);
  {
    std::lock_guard lock(grammar->mutex_);
    grammar->matcher_ = std::move(result);
  }
  std::vector<ShelvedGrammar::Waits> waiting;
  {
    std::lock_guard lock(mutex_);
    grammar->there_ = true;
    waiting.swap(grammar->waiting_);
  }
  for (const auto& [who, then] : waiting) {
    if (!who.expired()) then(grammar);
  }
}

void GrammarShelf::Run() {
  for (;;) {
    TakeEnded();
    while (HasFirstPlace()) {
      Shared next = Next();
      if (!next) break;
      Begin(std::move(next));
    }
    {
      std::lock_guard lock(mutex_);
      if (ends_) return;
    }
    AwaitNews();
  }
}

void GrammarShelf::TakeEnded() {
  leaving_.remove_if([](const auto& compilation) { return compilation->Over(); });
  for (auto it = running_.begin(); it != running_.end();) {
    const auto running = it++;
    Compilation& compilation = *running->compilation;
    if (!compilation.Ended()) continue;
    counts_.compile_ns += (SteadyClock().Now() - running->begun).count();
    // Its first mask may be as costly: it is made where that harms nobody.
    if (compilation.TookLong()) *running->grammar->cost_ = options_.costly;
    Put(running->grammar, compilation.Take());
    leaving_.push_back(std::move(running->compilation));
    running_.erase(running);
  }
}

bool GrammarShelf::HasFirstPlace() const {
  const auto stand_back = static_cast<int>(
      std::count_if(running_.begin(), running_.end(), [](const Running& r) { return r.compilation->TookLong(); }));
  return static_cast<int>(running_.size()) - std::min(stand_back, kLong) < options_.at_once;
}

GrammarShelf::Shared GrammarShelf::Next() {
  std::lock_guard lock(mutex_);
  while (!new_.empty()) {
    Shared next = std::move(new_.front());
    new_.pop_front();
    if (std::any_of(next->waiting_.begin(), next->waiting_.end(), [](const auto& w) { return !w.who.expired(); }))
      return next;
    const auto kept = std::find(order_.begin(), order_.end(), next);
    if (kept == order_.end()) continue;
    order_.erase(kept);
    shelf_.erase(KeyOf(*next));
  }
  return nullptr;
}

void GrammarShelf::Begin(Shared grammar) {
  const Grammar& text = *grammar->grammar_;
  auto compilation = std::make_unique<Compilation>(compiler_, text, [this] { news_.Give(); });
  running_.push_back({std::move(grammar), std::move(compilation), SteadyClock().Now()});
}

/// A new grammar, one that has ended, or the end of a moment.
void GrammarShelf::AwaitNews() {
  TimePoint until = TimePoint::max();
  for (const Running& r : running_) {
    if (!r.compilation->TookLong()) until = std::min(until, r.compilation->moment_ends());
  }
  news_.TakeBy(until);
  const TimePoint now = SteadyClock().Now();
  for (Running& r : running_) {
    if (now >= r.compilation->moment_ends() && !r.compilation->Ended()) r.compilation->StandBack();
  }
}

}  // namespace baton::engine
