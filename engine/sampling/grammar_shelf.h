// Grammars that were asked for lately, compiled. New ones are compiled beside everything else, each on a thread of its
// own: one that takes long makes room for the next when it stands back, so that what compiles soon waits for a moment
// of each before it and for no more.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/semaphore.h"
#include "text/compilation.h"
#include "text/grammar.h"

namespace baton::engine {

/// One grammar, compiled. Thread-safe.
class ShelvedGrammar {
 public:
  explicit ShelvedGrammar(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {}

  /// One at the beginning, or what is wrong with the grammar.
  absl::StatusOr<std::unique_ptr<GrammarMatcher>> NewMatcher();
  /// What a mask of it costs: AnswerGrammar keeps it.
  const std::shared_ptr<std::atomic<Duration>>& cost() const { return cost_; }

 private:
  friend class GrammarShelf;
  struct Waits {
    std::weak_ptr<void> who;
    std::function<void(const std::shared_ptr<ShelvedGrammar>&)> then;
  };

  const std::shared_ptr<const Grammar> grammar_;
  const std::shared_ptr<std::atomic<Duration>> cost_ = std::make_shared<std::atomic<Duration>>(Duration());
  // Under the shelf's lock:
  bool there_ = false;
  std::vector<Waits> waiting_;
  std::mutex mutex_;  // guards what follows
  Compilation::Result matcher_{nullptr};
};

struct GrammarShelfOptions {
  int at_once = 1;    ///< grammars that compile in their first moment; 0: Get compiles, on the caller's thread
  Duration costly{};  ///< what a mask of a grammar that took long is taken to cost
  std::function<void(std::shared_ptr<void>)> give_back;  ///< takes what is large, to end it where nobody waits
};

/// The shelf, and the thread that has grammars compiled. Thread-safe.
class GrammarShelf {
 public:
  using Shared = std::shared_ptr<ShelvedGrammar>;
  struct Counts {
    std::atomic<int64_t> compiled{0}, known{0}, refused{0}, compile_ns{0};
  };

  GrammarShelf(std::shared_ptr<const GrammarCompiler> compiler, GrammarShelfOptions options);
  /// Waits for those that compile; what waits for a place never is compiled.
  ~GrammarShelf();

  /// Null: it is not compiled yet; `then` is called with it once it is, on the shelf's thread (perhaps before this
  /// returns), unless `who` has gone by then. What nobody waits for any more is not compiled.
  Shared Get(const std::shared_ptr<const Grammar>& grammar, std::weak_ptr<void> who,
             std::function<void(const Shared&)> then);

  const Counts& counts() const { return counts_; }

 private:
  using Key = std::pair<GrammarKind, std::string_view>;  ///< of the text that its value holds
  struct Running {
    Shared grammar;
    std::unique_ptr<Compilation> compilation;
    TimePoint begun;
  };
  static constexpr size_t kKept = 64;  ///< compiled grammars, some MB each at most
  static constexpr int kLong = 4;      ///< that stand back at once: further ones keep a first place

  static Key KeyOf(const ShelvedGrammar& g) { return {g.grammar_->kind, g.grammar_->text}; }
  void CompileHere(const Shared& grammar);
  void Put(const Shared& grammar, Compilation::Result result);
  // The shelf's thread:
  void Run();
  void TakeEnded();
  bool HasFirstPlace() const;
  Shared Next();
  void Begin(Shared grammar);
  void AwaitNews();

  const std::shared_ptr<const GrammarCompiler> compiler_;
  const GrammarShelfOptions options_;
  Counts counts_;
  std::mutex mutex_;  // guards what follows
  std::map<Key, Shared> shelf_;
  std::deque<Shared> order_;  ///< of shelf_, oldest first
  std::deque<Shared> new_;    ///< to be compiled
  bool ends_ = false;
  Semaphore news_;
  std::list<Running> running_;                       // the shelf's thread's
  std::list<std::unique_ptr<Compilation>> leaving_;  // which end soon; the shelf's thread's
  std::thread thread_;                               // last: it uses the above
};

}  // namespace baton::engine
