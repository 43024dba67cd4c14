// Whether a grammar that a client sent can be followed: it is compiled here as the workers will compile it, so that
// what is wrong with it is the client's to hear, with its place.
#pragma once

#include <atomic>
#include <deque>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "absl/status/statusor.h"
#include "common/semaphore.h"
#include "router/api_error.h"
#include "router/metrics/router_metrics.h"
#include "text/compilation.h"
#include "text/grammar.h"
#include "text/grammar_kind.h"
#include "text/tokenizer.h"

namespace baton::router {

/// Thread-safe.
class GrammarCheck {
 public:
  /// Begins to make a compiler, beside whatever comes next; `tokenizer` must outlive this. `least_work`: no grammar
  /// takes too long that has had less of a core: the longest that are good take some 260 ms. `busy_wait`: how much
  /// longer one is waited for that has had less.
  explicit GrammarCheck(const Tokenizer& tokenizer, Duration least_work = std::chrono::milliseconds(300),
                        Duration busy_wait = std::chrono::seconds(3));

  /// A 400 that names `field` and the place in the grammar, or says that it has not compiled by `until`, or, where the
  /// machine has no time for it, that and `busy_wait` later; a 429 where too many others compile until then, or where
  /// there was no time for it all the while; or what the workers lack (`their_digest`: of HandshakeReply). 0.1 to 50 ms
  /// for most grammars that are new: not on an io thread. What was given up compiles to its end, and is known then, or
  /// waited for by who asks for it again.
  std::optional<ApiError> Check(const Grammar& grammar, const std::string& field, const std::string& their_digest,
                                TimePoint until = TimePoint::max());
  /// It was found good before: Check takes no time.
  bool Knows(const Grammar& grammar) const;
  /// How many compile at once at most, those that nobody waits for any more included: half of them may take long and
  /// stand back beside as many that have just begun.
  static size_t MostAtOnce() { return 2 * FirstPlaces(); }

  GrammarCounts counts() const;

 private:
  static constexpr size_t kMaxBytes = 1 << 20;    ///< of a grammar
  static constexpr size_t kCheapBytes = 4 << 10;  ///< of one whose form is checked out of turn
  static constexpr size_t kKeptBytes = 16 << 20;

  static size_t FirstPlaces();
  static std::string KeyOf(const Grammar& grammar);
  bool IsKnown(const std::string& key);
  /// The place that a compilation has; null: it has ended, and its place is given back.
  using Place = std::atomic<Semaphore*>;
  struct Running {
    Running(std::string of, std::shared_ptr<Place> at, Duration most, std::shared_ptr<const GrammarCompiler> compiler,
            const Grammar& grammar)
        : key(std::move(of)),
          place(std::move(at)),
          most_work(most),
          compilation(std::move(compiler), grammar, [p = place] { GiveBack(*p); }, Compilation::Wanted::kToKnow) {}

    std::string key;  ///< empty: its result is taken
    const std::shared_ptr<Place> place;
    Duration most_work;  ///< of a core: with more it takes too long
    Compilation compilation;
  };
  std::optional<ApiError> Compile(const std::shared_ptr<const GrammarCompiler>& compiler, const Grammar& grammar,
                                  const std::string& key, const std::string& field, TimePoint until);
  static void GiveBack(Place& place);
  bool WaitFor(Running& running, TimePoint until);
  bool TakeTurn(TimePoint until);
  void KeepEnded();
  std::list<Running> TakeBack(const std::string& key);
  void Leave(std::list<Running> running);
  void Count(bool compiled, double seconds);
  void Keep(std::string key);

  const Duration least_work_, busy_wait_;
  const std::shared_future<absl::StatusOr<std::shared_ptr<const GrammarCompiler>>> compiler_;
  mutable std::mutex mutex_;  // guards what follows
  GrammarCounts counts_;
  std::unordered_set<std::string> good_;
  std::deque<std::string> order_;  ///< of good_, oldest first
  size_t kept_bytes_ = 0;
  std::mutex left_mutex_;    // guards left_, and is held for a moment only
  Semaphore turns_, long_;   ///< places that are free
  std::list<Running> left_;  ///< given up, or about to end; last: they use the above
};

}  // namespace baton::router
