// Which tokens a grammar lets come next, worked out on threads of its own beside the steps: the mask of a token is made
// while the model computes the logits that it is for. Where a mask takes long its sequence sits out steps; no step
// waits for it longer than a moment. The masks of an answer whose masks have been costly are made on a thread of low
// priority: others' steps have the cores. Such a thread holds no lock of these, or a step would wait until it has a
// core.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/low_priority_thread.h"
#include "engine/sampling/grammar_shelf.h"
#include "engine/sampling/sampling_params.h"
#include "text/grammar.h"

namespace baton::engine {

class GrammarPool;

/// The grammar of one answer, where it stands. Made by GrammarPool::Follow. Thread-safe, but Mask and Advance are the
/// executor's.
class AnswerGrammar : public std::enable_shared_from_this<AnswerGrammar> {
 public:
  ~AnswerGrammar();

  /// The scheduler's question: is the mask there, or will it be soon? Not before the first mask, and not while one that
  /// was waited for in vain is made. Also true of a grammar that failed: its next step says so.
  bool MayBePlanned() const;

  /// The mask of the next token, [ceil(vocab / 32)] bit = allowed; empty: it was not there by `until`. Stays until
  /// Advance. The status is why the grammar failed: too costly here, or a token that it does not allow.
  absl::StatusOr<absl::Span<const uint32_t>> Mask(std::chrono::steady_clock::time_point until);
  /// The answer goes on with `token`: the next mask is begun.
  void Advance(int32_t token);

 private:
  friend class GrammarPool;
  AnswerGrammar(GrammarPool& pool, std::shared_ptr<const Grammar> grammar, std::vector<int32_t> output_so_far);
  enum class Worked { kDone, kIsForSlow, kNotCompiled };
  /// On a thread of the pool, with `back` on one of those of slow answers, else null: then what is for these is not
  /// done. Where there are no threads it does all.
  Worked Work(LowPriorityThread* back);
  /// False: its grammar is not compiled yet, and it is posted again when it is.
  bool Begin(absl::Status& status);
  absl::Status TakeAndMask(const std::vector<int32_t>& tokens);
  absl::Status MakeMask();

  GrammarPool& pool_;
  const std::shared_ptr<const Grammar> grammar_;
  // The working thread's, until it has worked:
  std::shared_ptr<ShelvedGrammar> shelved_;
  std::unique_ptr<GrammarMatcher> matcher_;
  std::vector<uint32_t> mask_;                              ///< may be read when nobody works
  bool mask_is_here_ = false;                               ///< it is that of where the matcher stands
  std::shared_ptr<std::atomic<Duration>> cost_of_grammar_;  ///< as cost_, of the answer to it that came last
  Duration cost_{};                                         ///< time of a core for the costliest mask of late
  bool was_ever_slow_ = false;                              ///< it has found out a lot, which takes long to give back

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable ready_;
  std::vector<int32_t> to_take_;
  bool working_ = true;
  bool came_late_ = true;  ///< or never yet, or it is known that it will
  bool is_slow_ = false;
  absl::Status status_;
};

/// What a pool has done since its start.
struct GrammarPoolCounts {
  int64_t following = 0;                         ///< gauge: answers that follow a grammar
  int64_t compiled = 0, known = 0, refused = 0;  ///< grammars of answers that began: new; compiled before; of no use
  Duration compile_time{};
  int64_t masks = 0, masks_late = 0;  ///< made; not there when a step wanted them, so that a sequence sat out
  int64_t masks_slow = 0;             ///< of these made where slow answers' are
  Duration mask_time{}, wait_time{};  ///< in which they were made, and in which steps waited for them
};

/// The threads. Must outlive the grammars it made. Thread-safe.
class GrammarPool {
 public:
  /// `threads` 0: work is done in Turn, and nobody waits for it (simulators). Of several threads the first begins no
  /// answers, whose first masks may take long. Half as many more, at least one, are for slow answers.
  /// `slow`: an answer is that whose masks take more of a core.
  GrammarPool(std::shared_ptr<const GrammarCompiler> compiler, int threads,
              Duration slow = std::chrono::milliseconds(2));
  /// Work that has not begun is dropped.
  ~GrammarPool();

  /// Called when a mask that was late is there: sequences may be planned that were not. From any thread, and not any
  /// more once another one is set, or none.
  void OnReady(std::function<void()> on_ready);

  GrammarPoolCounts counts() const;

  /// Does what `most` answers wait for, on the caller's thread; how many there were.
  int Turn(int most);

  /// For an answer that has these tokens already. Compiling begins at once.
  std::shared_ptr<AnswerGrammar> Follow(std::shared_ptr<const Grammar> grammar, std::vector<int32_t> output_so_far);
  /// For another answer that goes on from where `of` stands, with a mask that is there. Null: that of `of` is not, or
  /// it is a slow one, and has found out so much that copying it would take long: Follow does as well.
  std::shared_ptr<AnswerGrammar> Fork(const AnswerGrammar& of);

 private:
  friend class AnswerGrammar;
  /// GrammarPoolCounts, where each thread adds its own.
  struct Tally {
    std::atomic<int64_t> following{0}, masks{0}, masks_late{0}, masks_slow{0};
    std::atomic<int64_t> mask_ns{0}, wait_ns{0};
  };
  /// What a thread takes: answers that go on, of these and those that begin the latter first, slow ones alone.
  enum class Takes { kGoingOn, kBeginningToo, kSlow };

  void Post(const std::shared_ptr<AnswerGrammar>& answer, Takes by);
  /// The next answer that waits, null when none does.
  std::shared_ptr<AnswerGrammar> Next(Takes takes);
  bool HasWork(Takes takes) const;
  /// What a slow answer has found out, some ten thousand pieces of memory, is given back where nobody waits.
  void GiveBack(std::shared_ptr<void> what);
  void Run(Takes takes);
  void RunSlow();

  void SayReady();

  const std::shared_ptr<const GrammarCompiler> compiler_;
  const Duration slow_from_;
  Tally tally_;
  std::mutex ready_mutex_;  // guards what follows, and is held while it is called
  std::function<void()> on_ready_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::deque<std::weak_ptr<AnswerGrammar>> going_on_, beginning_, slow_;
  std::vector<std::shared_ptr<void>> given_back_;
  bool ends_ = false;
  std::vector<std::thread> threads_;
  GrammarShelf shelf_;  // last: what it has compiled it posts
};

/// Whether a draw has any token to draw: one of the mask, of `allowed` (empty: all), and not `banned` (sorted).
bool AnyTokenAllowed(absl::Span<const uint32_t> mask, const std::vector<int32_t>& allowed,
                     const std::vector<int32_t>& banned);

}  // namespace baton::engine
