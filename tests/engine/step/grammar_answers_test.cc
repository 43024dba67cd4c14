// Answers that follow grammars: what they promise, and Promise A for them. Masks come early, late and very late here,
// and steps are cancelled; sequences are preempted and resumed in the middle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <regex>

#include "common/str_cat.h"
#include "common/thread_priority.h"
#include "engine/sampling/answer_grammar.h"
#include "nlohmann/json.hpp"
#include "tests/engine/step/fake_tokenizer.h"
#include "tests/engine/step/requests.h"

namespace baton::engine {
namespace {

using testing::HasSubstr;

class GrammarAnswers : public ::testing::Test {
 protected:
  std::unique_ptr<Tokenizer> tokenizer_ = FakeTokenizer();
  std::shared_ptr<const GrammarCompiler> compiler_ = *GrammarCompiler::Make(*tokenizer_, {kEos}, kFakeVocab);

  std::string TextOf(const Answer& answer) const {
    std::vector<int32_t> ids;
    for (const auto& token : answer.tokens) ids.push_back(token.token);
    return tokenizer_->Decode(ids, true);
  }
  Request Asking(RequestKey key, GrammarKind kind, std::string text, int32_t max_tokens = 60) const {
    Request r = MakeRequest(key, RandomTokens(key, 5 + static_cast<int32_t>(key) * 7 % 90), max_tokens);
    r.sampling.temperature = 1;
    r.sampling.seed = key;
    r.sampling.eos_token_ids = {kEos};
    r.sampling.grammar = std::make_shared<Grammar>(Grammar{kind, std::move(text)});
    return r;
  }
};

struct Load {
  int32_t chunk = 2048, blocks = 600, max_seqs = 64;
  bool cancel_steps = false;
  int late = 0;  ///< in so many of ten steps no mask is made
};

SteppedEngineOptions OptionsFor(const Load& load, GrammarPool& pool) {
  SteppedEngineOptions o;
  o.num_blocks = {load.blocks};
  o.scheduler.max_model_len = 300;
  o.scheduler.max_num_batched_tokens = load.chunk;
  o.scheduler.max_num_seqs = load.max_seqs;
  o.scheduler.max_step_ms = 0;
  o.grammars = {std::shared_ptr<void>(), &pool};  // the caller's
  return o;
}

/// Runs all that lives, as `load` says.
void RunAllOf(SteppedEngine& h, GrammarPool& pool, const Load& load, unsigned seed = 1) {
  std::mt19937 dice(seed);
  for (int steps = 0; !h.scheduler().Idle(); ++steps) {
    ASSERT_LT(steps, 50000) << "somebody waits for ever";
    if (static_cast<int>(dice() % 10) >= load.late) pool.Turn(load.late == 0 ? 1000 : static_cast<int>(dice() % 4));
    const bool cancel = load.cancel_steps && dice() % 3 == 0;
    h.fake().before_forward = cancel ? std::function<absl::Status()>([&] {
      h.executor().Cancel();
      return absl::OkStatus();
    })
                                     : nullptr;
    h.Step();
  }
}

constexpr const char* kPerson =
    R"({"type":"object","additionalProperties":false,"required":["name","age"],"x-guidance":{"whitespace_flexible":false},
        "properties":{"name":{"type":"string","pattern":"^[a-z]{1,5}$"},"age":{"type":"integer","minimum":0,"maximum":99}}})";

TEST_F(GrammarAnswers, FollowTheirGrammar) {
  GrammarPool pool(compiler_, 0);
  SteppedEngine h(OptionsFor({}, pool));
  for (RequestKey key = 1; key <= 20; ++key) {
    ASSERT_TRUE(h.Add(key % 2 == 0 ? Asking(key, GrammarKind::kJsonSchema, kPerson)
                                   : Asking(key, GrammarKind::kRegex, "[ab]{3}(-[0-9])*"))
                    .ok());
  }
  RunAllOf(h, pool, {});
  int ended = 0;
  for (const auto& [key, answer] : h.answers) {
    if (answer.finish != FinishReason::kStop) continue;  // by length
    ++ended;
    const std::string text = TextOf(answer);
    if (key.first % 2 == 0) {
      const auto json = nlohmann::json::parse(text, nullptr, false);
      ASSERT_TRUE(json.is_object()) << text;
      EXPECT_LE(json["age"].get<int>(), 99);
    } else {
      EXPECT_TRUE(std::regex_match(text, std::regex("[ab]{3}(-[0-9])*"))) << text;
    }
  }
  EXPECT_GE(ended, 12);
}

TEST_F(GrammarAnswers, AllChoicesBeginInTheStepInWhichTheirPromptEnds) {
  for (const char* grammar : {"[ab]{3}", "(((["}) {
    GrammarPool pool(compiler_, 0);
    SteppedEngine h(OptionsFor({}, pool));
    Request r = Asking(1, GrammarKind::kRegex, grammar);
    r.sampling.n = 3;
    const auto prompt = static_cast<int64_t>(r.tokens.size());
    ASSERT_TRUE(h.Add(std::move(r)).ok());
    h.Step();
    pool.Turn(1000);  // and no more: who forks has its mask
    h.Step();
    EXPECT_EQ(h.answers.size(), 3u) << grammar;
    EXPECT_EQ(h.fake().rows_run, prompt)
        << "nothing of a prompt is computed twice, also where it is on its way already";
    EXPECT_EQ(pool.counts().masks_late, 0);
  }
}

TEST_F(GrammarAnswers, AreTheSameHoweverLateTheirMasksAreAndWhoeverIsBesideThem) {
  const auto ask = [&](RequestKey key) {
    Request r = key % 3 == 0 ? MixedRequest(key, 77 + key, 40)
                             : Asking(key, key % 2 == 0 ? GrammarKind::kJsonSchema : GrammarKind::kRegex,
                                      key % 2 == 0 ? kPerson : "([a-f]|[0-9]{2})*x");
    if (key % 4 == 1) r.sampling.n = 3;
    if (key % 5 == 1) r.sampling.repetition_penalty = 1.2f;
    if (key % 5 == 2) r.sampling.prompt_logprobs = 1;
    if (key % 5 == 4) r.sampling.logprobs = 2;
    return r;
  };
  std::map<AnswerKey, std::string> alone;
  for (RequestKey key = 1; key <= 24; ++key) {
    GrammarPool pool(compiler_, 0);
    SteppedEngine h(OptionsFor({}, pool));
    ASSERT_TRUE(h.Add(ask(key)).ok());
    RunAllOf(h, pool, {});
    for (const auto& [k, answer] : h.answers) alone[k] = answer.Text();
  }
  for (const Load& load : std::vector<Load>{{},
                                            {.late = 5},
                                            {.chunk = 16, .late = 8},
                                            {.chunk = 17, .cancel_steps = true, .late = 3},
                                            {.chunk = 64, .blocks = 22, .max_seqs = 12, .late = 6},
                                            {.blocks = 20, .max_seqs = 12, .cancel_steps = true}}) {
    SCOPED_TRACE(StrCat("chunks of ", load.chunk, ", ", load.blocks, " blocks, late ", load.late));
    GrammarPool pool(compiler_, 0);
    SteppedEngine h(OptionsFor(load, pool));
    for (RequestKey key = 1; key <= 24; ++key) ASSERT_TRUE(h.Add(ask(key)).ok());
    RunAllOf(h, pool, load, 9);
    EXPECT_EQ(h.answers.size(), alone.size());
    for (const auto& [key, answer] : h.answers)
      EXPECT_EQ(answer.Text(), alone.at(key)) << "request " << key.first << " choice " << key.second;
    EXPECT_TRUE(load.blocks > 22 || h.scheduler().Load().preemptions > 0);
  }
}

TEST_F(GrammarAnswers, GoOnFromEveryTokenAsIfTheyHadNeverStopped) {
  GrammarPool pool(compiler_, 0);
  SteppedEngine whole(OptionsFor({}, pool));
  ASSERT_TRUE(whole.Add(Asking(2, GrammarKind::kJsonSchema, kPerson)).ok());
  RunAllOf(whole, pool, {});
  const Answer& expected = whole.answers.at({2, 0});
  ASSERT_GT(expected.tokens.size(), 20u);
  for (size_t cut = 1; cut + 1 < expected.tokens.size(); ++cut) {
    SteppedEngine h(OptionsFor({}, pool));
    Request r = Asking(2, GrammarKind::kJsonSchema, kPerson);
    for (size_t i = 0; i < cut; ++i) r.tokens.push_back(expected.tokens[i].token);
    ASSERT_TRUE(h.Add(r).ok());
    RunAllOf(h, pool, {});
    const Answer& got = h.answers.at({2, 0});
    ASSERT_EQ(got.tokens.size(), expected.tokens.size() - cut) << cut;
    for (size_t i = cut; i < expected.tokens.size(); ++i)
      EXPECT_EQ(got.tokens[i - cut].token, expected.tokens[i].token) << cut << " " << i;
    EXPECT_EQ(got.finish, expected.finish);
  }
}

TEST_F(GrammarAnswers, EndWhereNothingIsAllowed) {
  GrammarPool pool(compiler_, 0);
  SteppedEngine h(OptionsFor({}, pool));
  Request early = Asking(1, GrammarKind::kChoice, R"(["abba"])");
  early.sampling.min_tokens = 10;  // bans the end of the text, and the grammar has nothing else
  ASSERT_TRUE(h.Add(early).ok());
  Request none = Asking(2, GrammarKind::kChoice, R"(["ab"])");
  none.sampling.allowed_token_ids = {0, 20};  // "a", not "b"
  ASSERT_TRUE(h.Add(none).ok());
  none.key = 4, none.sampling.eos_token_ids = {};
  ASSERT_TRUE(h.Add(none).ok());
  Request bare = MakeRequest(3, RandomTokens(3, 9), 20);
  bare.sampling.eos_token_ids = {kEos};
  bare.sampling.allowed_token_ids = {kEos};
  bare.sampling.min_tokens = 1;
  ASSERT_TRUE(h.Add(bare).ok());
  RunAllOf(h, pool, {});
  EXPECT_EQ(TextOf(h.answers.at({1, 0})), "abba");
  EXPECT_EQ(h.answers.at({1, 0}).finish, FinishReason::kStop);
  EXPECT_FALSE(h.answers.at({1, 0}).nothing_allowed) << "the text is whole";
  EXPECT_EQ(TextOf(h.answers.at({2, 0})), "a");
  EXPECT_EQ(h.answers.at({2, 0}).finish, FinishReason::kStop);
  EXPECT_TRUE(h.answers.at({2, 0}).nothing_allowed && h.answers.at({4, 0}).nothing_allowed) << "with an eos, without";
  EXPECT_EQ(h.answers.at({3, 0}).tokens.size(), 0U);
  EXPECT_EQ(h.answers.at({3, 0}).finish, FinishReason::kStop);
  EXPECT_TRUE(h.answers.at({3, 0}).nothing_allowed) << "without a grammar, at the first token";
}

// Else the last token of those that waited for credit would be taken for an eos, and be no text.
TEST_F(GrammarAnswers, AnEndWithoutATokenComesBehindTheTokensThatWaited) {
  GrammarPool pool(compiler_, 0);
  SteppedEngine h(OptionsFor({}, pool));
  Request early = Asking(1, GrammarKind::kChoice, R"(["abba"])");
  early.sampling.min_tokens = 10;
  early.credit = early.prompt_len;
  ASSERT_TRUE(h.Add(early).ok());
  for (int steps = 0; steps < 100; ++steps) {
    pool.Turn(1000);
    h.Step();
  }
  EXPECT_EQ(h.cache().pool(0).used_blocks(), 0);
  h.scheduler().SetCredit(1, 0, kUnlimitedCredit, h.now);
  const std::vector<SequenceOutput> outputs = h.scheduler().TakeOutputs();
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_FALSE(outputs[0].tokens.empty());
  EXPECT_EQ(outputs[0].finish, FinishReason::kNone);
  EXPECT_TRUE(outputs[1].tokens.empty());
  EXPECT_EQ(outputs[1].finish, FinishReason::kStop);
  EXPECT_EQ(outputs[1].position, outputs[0].position + static_cast<int32_t>(outputs[0].tokens.size()));
  EXPECT_TRUE(h.scheduler().Idle());
}

TEST_F(GrammarAnswers, AGrammarThatIsWrongEndsItsRequestOnly) {
  GrammarPool pool(compiler_, 0);
  SteppedEngine h(OptionsFor({}, pool));
  ASSERT_TRUE(h.Add(Asking(1, GrammarKind::kRegex, "(a")).ok());
  Request resumed = Asking(2, GrammarKind::kChoice, R"(["ab"])");
  resumed.tokens.push_back(1);  // "b": no answer begins so
  ASSERT_TRUE(h.Add(resumed).ok());
  ASSERT_TRUE(h.Add(Asking(3, GrammarKind::kChoice, R"(["ab"])")).ok());
  RunAllOf(h, pool, {});
  EXPECT_EQ(h.answers.at({1, 0}).error.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(h.answers.at({2, 0}).error.message()), HasSubstr("does not allow token 1"));
  EXPECT_EQ(TextOf(h.answers.at({3, 0})), "ab");
}

TEST_F(GrammarAnswers, AWorkerWithoutATokenizerRefusesThem) {
  SteppedEngine h(SteppedEngineOptions{});
  EXPECT_THAT(std::string(h.Add(Asking(1, GrammarKind::kRegex, "a")).message()), HasSubstr("tokenizer"));
}

TEST_F(GrammarAnswers, BeamsHaveNone) {
  GrammarPool pool(compiler_, 0);
  SteppedEngine h(OptionsFor({}, pool));
  Request r = Asking(1, GrammarKind::kRegex, "a");
  r.sampling.use_beam_search = true;
  EXPECT_THAT(std::string(h.Add(r).message()), HasSubstr("a beam search has no grammar"));
}

// Whether an answer of 40 tokens came to its end before `pool`, which has them all to do, had compiled a dozen slow
// grammars.
bool OvertakesSlowGrammars(GrammarPool& pool, int attempt) {
  constexpr int kSlow = 12;
  std::atomic<int> begun{0};
  pool.OnReady([&] { ++begun; });
  const auto soon = [] { return std::chrono::steady_clock::now() + std::chrono::seconds(20); };
  const auto one =
      pool.Follow(std::make_shared<Grammar>(Grammar{GrammarKind::kRegex, "(a|b){40}"}), std::vector<int32_t>());
  EXPECT_TRUE(one->Mask(soon()).ok());
  std::vector<std::shared_ptr<AnswerGrammar>> slow;
  for (int i = 0; i < kSlow; ++i) {  // some 40 ms each, and none that the pool knows
    std::string choices = "[";
    for (int k = 0; k < 5000; ++k) choices += StrCat(k == 0 ? "" : ",", "\"", attempt, "-", i, "-", k * k, "\"");
    slow.push_back(pool.Follow(std::make_shared<Grammar>(Grammar{GrammarKind::kChoice, choices + "]"}), {}));
  }
  for (int token = 0; token < 40; ++token) {
    one->Advance(token % 2);
    EXPECT_FALSE((*one->Mask(soon())).empty());
  }
  const bool overtook = begun < 1 + kSlow;
  for (const auto& answer : slow) EXPECT_TRUE(answer->Mask(soon()).ok());
  pool.OnReady({});
  return overtook;
}

// A thread that never compiles makes it possible; a machine that lets it wait may need more than one attempt.
TEST_F(GrammarAnswers, GoOnBesideGrammarsThatTakeLongToCompile) {
  GrammarPool pool(compiler_, 2);
  bool overtook = false;
  for (int attempt = 0; attempt < 10 && !overtook; ++attempt) overtook = OvertakesSlowGrammars(pool, attempt);
  EXPECT_TRUE(overtook) << "all were compiled first";
}

TEST_F(GrammarAnswers, ThreadsMakeTheMasksOfManyAtOnce) {
  GrammarPool pool(compiler_, 2);
  std::atomic<int> ready{0};
  pool.OnReady([&] { ++ready; });
  const auto grammar = std::make_shared<Grammar>(Grammar{GrammarKind::kRegex, "(a|b){40}"});
  const auto soon = [] { return std::chrono::steady_clock::now() + std::chrono::seconds(20); };
  std::vector<std::shared_ptr<AnswerGrammar>> answers;
  for (int i = 0; i < 20; ++i) answers.push_back(pool.Follow(grammar, {0, 1}));
  for (int token = 0; token < 38; ++token) {
    for (const auto& answer : answers) {
      const auto mask = answer->Mask(soon());
      ASSERT_TRUE(mask.ok()) << mask.status();
      ASSERT_EQ((*mask)[0], 3u) << "a and b";
      answer->Advance(token % 2);
    }
    if (token == 20) answers.resize(10);  // work that nobody waits for is dropped
  }
  for (const auto& answer : answers) EXPECT_EQ((*answer->Mask(soon()))[0], 1u << kEos);
  for (const auto until = soon(); ready.load() < 20 && std::chrono::steady_clock::now() < until;)
    std::this_thread::yield();  // who makes a mask says so after it is there
  EXPECT_GE(ready.load(), 20) << "the first mask of each was waited for";
  const GrammarPoolCounts counts = pool.counts();
  EXPECT_EQ(counts.following, 10);
  EXPECT_EQ(counts.compiled, 1);
  EXPECT_EQ(counts.known, 19);
  EXPECT_EQ(counts.refused, 0);
  EXPECT_GE(counts.masks, 20 * 21 + 10 * 17);
  EXPECT_GT(counts.compile_time, Duration());
  EXPECT_GT(counts.mask_time, Duration());
}

// The masks of an answer of so many tokens. Nobody is told of one by a thread that stands back: it could be told under
// a lock that a step waits for.
std::vector<uint32_t> MasksOf(GrammarPool& pool, int tokens) {
  std::atomic<bool> stands_back{false};
  pool.OnReady([&] { stands_back = stands_back || StandsBack(); });
  const auto answer =
      pool.Follow(std::make_shared<Grammar>(Grammar{GrammarKind::kRegex, "(a|b)+c"}), std::vector<int32_t>());
  std::vector<uint32_t> masks;
  for (int token = 0; token < tokens; ++token) {
    const auto mask = answer->Mask(std::chrono::steady_clock::time_point::max());
    EXPECT_TRUE(mask.ok()) << mask.status();
    masks.push_back(mask.value()[0]);
    if (token + 1 < tokens) answer->Advance(token % 2);
  }
  pool.OnReady({});
  EXPECT_FALSE(stands_back);
  return masks;
}

// Counted behind the mask.
void AwaitSlowMasks(const GrammarPool& pool, int64_t count) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (pool.counts().masks_slow < count && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_EQ(pool.counts().masks_slow, count);
}

TEST_F(GrammarAnswers, WhoseMasksAreCostlyHaveThemMadeByOneThatStandsBack) {
  GrammarPool quick(compiler_, 2, std::chrono::hours(1)), slow(compiler_, 2, Duration());
  const std::vector<uint32_t> masks = MasksOf(quick, 30);
  EXPECT_EQ(quick.counts().masks, 30) << "one for each token";
  EXPECT_LE(quick.counts().masks_slow, 1) << "the first alone, where compiling had to wait for a core";
  EXPECT_EQ(MasksOf(slow, 30), masks) << "who makes them changes nothing";
  AwaitSlowMasks(slow, 29);  // what one costs is known when the first is there
  EXPECT_EQ(slow.counts().masks_late, 29) << "no step waits for one";
  MasksOf(slow, 1);
  AwaitSlowMasks(slow, 30);  // of a grammar that is known to be costly the first, too
}

TEST_F(GrammarAnswers, NoneIsForkedFromOneWhoseMasksAreCostly) {
  GrammarPool quick(compiler_, 2, std::chrono::hours(1)), slow(compiler_, 2, Duration());
  const auto grammar = std::make_shared<Grammar>(Grammar{GrammarKind::kRegex, "(a|b)+c"});
  const auto soon = [] { return std::chrono::steady_clock::now() + std::chrono::seconds(60); };
  for (GrammarPool* pool : {&quick, &slow}) {
    const auto answer = pool->Follow(grammar, {});
    ASSERT_TRUE(answer->Mask(soon()).ok());
    answer->Advance(0);
    ASSERT_FALSE((*answer->Mask(soon())).empty());
    const auto fork = pool->Fork(*answer);
    EXPECT_EQ(fork == nullptr, pool == &slow) << "what it has found out is copied by whoever plans steps";
    const auto other = fork ? fork : pool->Follow(grammar, {0});
    EXPECT_EQ(*other->Mask(soon()), *answer->Mask(soon()));
  }
}

// The tokens of an answer that begins with `so_far` and goes on with those of `then`, else with any of `letters`, until
// it is too costly; what is said then.
std::string GrowsTooCostly(const std::shared_ptr<const Grammar>& grammar, GrammarPool& pool,
                           const std::vector<int32_t>& letters, const std::vector<int32_t>& so_far,
                           const std::vector<int32_t>& then, std::vector<int32_t>& tokens) {
  std::mt19937 dice(5);
  const auto answer = pool.Follow(grammar, so_far);
  tokens = so_far;
  while (tokens.size() < 1000) {
    pool.Turn(1);
    const auto mask = answer->Mask({});
    if (!mask.ok()) return std::string(mask.status().message());
    tokens.push_back(tokens.size() < then.size() ? then[tokens.size()] : letters[dice() % letters.size()]);
    answer->Advance(tokens.back());
  }
  return "";
}

TEST_F(GrammarAnswers, OneThatGrowsTooCostlyEndsAtTheSameTokenWhereverItGoesOn) {
  const auto tokenizer = *Tokenizer::FromHfDirectory("tests/text/golden/gpt2");
  const std::shared_ptr<const GrammarCompiler> compiler =
      *GrammarCompiler::Make(*tokenizer, {0}, tokenizer->vocab_size());
  GrammarPool pool(compiler, 0);
  const auto grammar = std::make_shared<Grammar>(Grammar{GrammarKind::kRegex, "(.*[aeiou].{1,150}){1,3}z"});
  const std::vector<int32_t> letters = *tokenizer->Encode("abcdefghiouxy", false);
  std::vector<int32_t> whole, again;
  const std::string said = GrowsTooCostly(grammar, pool, letters, {}, {}, whole);
  ASSERT_THAT(said, HasSubstr("too costly here"));
  ASSERT_GT(whole.size(), 10u);
  for (const size_t cut : {size_t{1}, whole.size() / 2, whole.size()}) {
    EXPECT_EQ(GrowsTooCostly(grammar, pool, letters, {whole.begin(), whole.begin() + static_cast<ptrdiff_t>(cut)},
                             whole, again),
              said)
        << cut;
    EXPECT_EQ(again, whole) << "from token " << cut << " on";
  }
}

// A grammar of choices that nobody has asked for before, of some 40 ms.
std::shared_ptr<const Grammar> NewLong(int which) {
  std::string choices = "[";
  for (int k = 0; k < 5000; ++k) choices += StrCat(k == 0 ? "" : ",", "\"", which, "-", k * k, "\"");
  return std::make_shared<Grammar>(Grammar{GrammarKind::kChoice, choices + "]"});
}

// Told when its grammar is there: in which order they come is what counts.
TEST_F(GrammarAnswers, AGrammarThatIsKnownDoesNotWaitForOnesThatAreNew) {
  GrammarPool pool(compiler_, 2);
  const auto soon = [] { return std::chrono::steady_clock::now() + std::chrono::seconds(60); };
  const auto known = std::make_shared<Grammar>(Grammar{GrammarKind::kRegex, "(a|b){40}"});
  ASSERT_TRUE(pool.Follow(known, {})->Mask(soon()).ok());
  bool overtook = false;
  for (int attempt = 0; attempt < 10 && !overtook; ++attempt) {
    std::vector<std::shared_ptr<AnswerGrammar>> long_ones;
    for (int i = 0; i < 12; ++i) long_ones.push_back(pool.Follow(NewLong(attempt * 100 + i), {}));
    const int64_t before = pool.counts().compiled;
    ASSERT_FALSE((*pool.Follow(known, {})->Mask(soon())).empty());
    overtook = pool.counts().compiled < before + 12 - 1;
    for (const auto& answer : long_ones) EXPECT_TRUE(answer->Mask(soon()).ok());
  }
  EXPECT_TRUE(overtook) << "it waited for a dozen grammars to be compiled";
}

TEST_F(GrammarAnswers, WhatNobodyWaitsForAnyMoreIsNotCompiled) {
  GrammarPool pool(compiler_, 2);
  const auto soon = [] { return std::chrono::steady_clock::now() + std::chrono::seconds(60); };
  for (int i = 0; i < 200; ++i) pool.Follow(NewLong(i), {});  // and gone
  ASSERT_TRUE(pool.Follow(NewLong(1000), {})->Mask(soon()).ok());
  EXPECT_LT(pool.counts().compiled, 200);
  ASSERT_TRUE(pool.Follow(NewLong(0), {})->Mask(soon()).ok()) << "and is where it is asked for again";
}

}  // namespace
}  // namespace baton::engine
