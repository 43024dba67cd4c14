// Grammars that are compiled beside everything else.
#include "text/compilation.h"

#include <gtest/gtest.h>
#include <time.h>

#include <atomic>
#include <thread>

#include "common/str_cat.h"
#include "common/thread_priority.h"
#include "golden.h"

namespace baton {
namespace {

std::shared_ptr<const GrammarCompiler> Compiler() {
  static const std::shared_ptr<const GrammarCompiler> compiler = [] {
    const auto tokenizer = *Tokenizer::FromHfDirectory(StrCat(golden::kFolder, "gpt2"));
    auto eos = tokenizer->eos_ids();
    if (eos.empty()) eos = {0};
    return std::shared_ptr<const GrammarCompiler>(*GrammarCompiler::Make(*tokenizer, eos, tokenizer->vocab_size()));
  }();
  return compiler;
}

/// Some 100 ms of work.
const Grammar kLong{GrammarKind::kJsonSchema, R"({"multipleOf":19997})"};

TEST(Compilation, GivesWhatTheCompilerGives) {
  Compilation good(Compiler(), {GrammarKind::kRegex, "a|b"}, nullptr, Compilation::Wanted::kMatcher,
                   std::chrono::hours(1));
  ASSERT_TRUE(good.Wait(TimePoint::max()));
  EXPECT_FALSE(good.TookLong()) << "its moment is not over";
  const auto matcher = good.Take();
  ASSERT_TRUE(matcher.ok()) << matcher.status();
  EXPECT_FALSE((*matcher)->HasEnded());
  Compilation wrong(Compiler(), {GrammarKind::kRegex, "(a"});
  ASSERT_TRUE(wrong.Wait(TimePoint::max()));
  EXPECT_EQ(wrong.Take().status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Compilation, OneThatTakesLongCanBeGivenUpAndEndsAllTheSame) {
  std::atomic<int> ended{0};
  {
    Compilation compilation(Compiler(), kLong, [&] { ++ended; });
    EXPECT_FALSE(compilation.Wait(TimePoint())) << "not by a time that is over";
  }
  EXPECT_EQ(ended, 1) << "its thread is joined";
}

TEST(Compilation, OneThatTakesLongIsMovedBehindItsNeighbours) {
  for (const char* schema : {R"({"multipleOf":4999})", R"({"multipleOf":9973})", R"({"multipleOf":19997})"}) {
    std::atomic<bool> stood_back{false};
    auto compilation = std::make_unique<Compilation>(Compiler(), Grammar{GrammarKind::kJsonSchema, schema},
                                                     [&] { stood_back = StandsBack(); });
    if (compilation->Wait(SteadyClock().Now() + std::chrono::milliseconds(40))) continue;  // a fast machine
    EXPECT_TRUE(compilation->Wait(TimePoint::max()));
    EXPECT_TRUE(compilation->Take().ok());
    EXPECT_TRUE(compilation->TookLong());
    compilation.reset();
    EXPECT_TRUE(stood_back) << schema;
    EXPECT_FALSE(StandsBack()) << "whoever waits does not";
    return;
  }
  FAIL() << "all were compiled within 40 ms: none takes long";
}

/// What the calling thread has had of a core.
Duration Worked() {
  timespec worked{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &worked);
  return std::chrono::seconds(worked.tv_sec) + std::chrono::nanoseconds(worked.tv_nsec);
}

TEST(Compilation, ItsWorkIsCountedUntilThereIsAResultAndItIsOverWhenItsThreadHasNothingLeft) {
  Duration behind{};  // what its thread had worked when the last that it calls was done
  Compilation compilation(Compiler(), {GrammarKind::kRegex, "a|b"}, [&] {
    const Duration result = Worked();
    while (Worked() - result < std::chrono::milliseconds(5)) {
    }
    behind = Worked();
  });
  while (!compilation.Over()) std::this_thread::yield();
  EXPECT_TRUE(compilation.Ended());
  EXPECT_GT(compilation.WorkedFor(), Duration());
  EXPECT_LT(compilation.WorkedFor(), behind - std::chrono::milliseconds(4));
}

}  // namespace
}  // namespace baton
