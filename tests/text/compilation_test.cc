// Grammars that are compiled beside everything else.
#include "text/compilation.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>

#include "common/str_cat.h"
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
int PriorityHere() { return getpriority(PRIO_PROCESS, 0); }

TEST(Compilation, GivesWhatTheCompilerGives) {
  Compilation good(Compiler(), {GrammarKind::kRegex, "a|b"});
  ASSERT_TRUE(good.Wait(TimePoint::max()));
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
  const int own = PriorityHere();
  for (const char* schema : {R"({"multipleOf":4999})", R"({"multipleOf":9973})", R"({"multipleOf":19997})"}) {
    std::atomic<int> at_end{-100};
    auto compilation = std::make_unique<Compilation>(Compiler(), Grammar{GrammarKind::kJsonSchema, schema},
                                                     [&] { at_end = PriorityHere(); });
    if (compilation->Wait(SteadyClock().Now() + std::chrono::milliseconds(40))) continue;  // a fast machine
    EXPECT_TRUE(compilation->Wait(TimePoint::max()));
    EXPECT_TRUE(compilation->Take().ok());
    compilation.reset();
    EXPECT_EQ(at_end, std::max(own, 5)) << schema;
    EXPECT_EQ(PriorityHere(), own) << "whoever waits keeps its own";
    return;
  }
  FAIL() << "all were compiled within 40 ms: none takes long";
}

}  // namespace
}  // namespace baton
