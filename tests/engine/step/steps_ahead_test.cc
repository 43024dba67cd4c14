// Steps planned while the one before them runs. Whatever is stopped, cancelled, preempted or aborted meanwhile, every
// answer has the bytes that the request gets alone in an engine that plans one step at a time, every block comes back,
// and nothing is published behind an answer's end. Where there are other ranks, each step that rank 0 waits for is one
// that they run to its end without another word from it. STEPS_AHEAD_SEEDS: how many schedules, STEPS_AHEAD_FIRST: the
// first.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <set>

#include "tests/engine/step/requests.h"

namespace baton::engine {
namespace {

uint64_t Number(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): one thread
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

/// The counts of all schedules: one that never happened was not tested.
struct Counts {
  int64_t steps = 0, ahead = 0, named = 0, preempted = 0, stopped = 0, cancelled = 0, failed = 0, hits = 0;
  int64_t behind = 0;  ///< waits of rank 0 while other ranks have the step behind that
};

SteppedEngineOptions OptionsFor(uint64_t seed, bool ahead) {
  std::mt19937_64 rng(seed);
  const int32_t window = rng() % 4 == 0 ? 24 : 0, per_block = rng() % 4 == 0 ? 32 : 16;
  SteppedEngineOptions o;
  o.layout = FakeLayout(per_block, window);
  o.scheduler.max_model_len = 160;
  o.scheduler.max_num_batched_tokens = 16 << rng() % 4;
  o.scheduler.max_num_seqs = 2 + static_cast<int32_t>(rng() % 8);
  o.scheduler.max_undelivered_tokens = rng() % 3 == 0 ? 3 : 64;
  const auto least = static_cast<int32_t>(160 / per_block + 3);
  o.num_blocks.assign(o.layout.groups.size(), least + static_cast<int32_t>(rng() % 10));
  o.ahead = ahead;
  o.later = rng() % 2 == 0;  // the step behind is given before the tokens of the running one are read
  return o;
}

/// Most steps that mix nothing else in: the kind that can be planned ahead. One in sixteen has banned words, whose
/// steps cannot.
Request SomeRequest(RequestKey key, uint64_t seed) {
  std::mt19937_64 rng(seed);
  Request r = MixedRequest(key, rng(), 1 + static_cast<int32_t>(rng() % 70));
  SamplingParams& p = r.sampling;
  p.max_tokens += static_cast<int32_t>(rng() % 30);
  if (rng() % 3 != 0) p.ignore_eos = true;
  if (rng() % 16 == 0) p.bad_words = {4, 5, -1};
  return r;
}

/// The links to other ranks, and what those do, each on a device that runs what it is asked for when it is waited for.
class OtherRanks final : public Communicator {
 public:
  OtherRanks() : Communicator(0, 2) {}
  absl::Status Broadcast(int, std::span<std::byte> data) override {
    if (length_ == 0) {
      std::memcpy(&length_, data.data(), sizeof(length_));
      return absl::OkStatus();
    }
    std::vector<int32_t> words(std::exchange(length_, 0));
    BATON_CHECK(words.size() * sizeof(int32_t) == data.size());
    std::memcpy(words.data(), data.data(), data.size());
    const StepBatch batch = StepBatch::Decode(words).value();
    given_ += batch.has_rows();
    ended_ = batch.open ? given_ - 1 : given_;
    return absl::OkStatus();
  }
  absl::Status Send(int, std::span<const std::byte>) override { return absl::OkStatus(); }
  absl::Status Recv(int, std::span<std::byte>) override { return absl::OkStatus(); }
  absl::Status AllGather(std::span<const std::byte>, std::span<std::byte>) override { return absl::OkStatus(); }
  absl::Status TreeAllReduce(std::span<float>) override { return absl::OkStatus(); }
  void Abort(const absl::Status&) override { ended_ = given_; }
  int64_t ended() const { return ended_; }
  int64_t given() const { return given_; }

 private:
  uint64_t length_ = 0;  ///< of the words that come next
  int64_t given_ = 0, ended_ = 0;
};

/// One schedule: what comes when is drawn from the seed.
class Schedule {
 public:
  Schedule(uint64_t seed, Counts& counts) : seed_(seed), rng_(seed * 2 + 1), counts_(counts) {}

  void Run() {
    h_.fake().on_wait = [this](int64_t steps) {
      if (!ranks_) return;
      EXPECT_NE(channel_.running()->load(), 0u) << "seed " << seed_ << ": what is waited for is over";
      EXPECT_GE(others_.ended(), steps) << "seed " << seed_ << ": rank 0 waits, the other ranks for its next word";
      counts_.behind += others_.given() > others_.ended();
    };
    for (int turn = 0; turn < 120; ++turn) Turn(turn);
    LetLandingsGo(landings_.size());
    for (const Request& r : requests_) Credit(r.key, kUnlimitedCredit);
    h_.RunAll();
    Check();
  }

 private:
  bool OneIn(uint64_t n) { return rng_() % n == 0; }
  RequestKey Some() { return 1 + rng_() % requests_.size(); }

  void Turn(int turn) {
    if (turn < 80 && requests_.size() < 12 && OneIn(7)) Ask();
    if (OneIn(6)) Land();
    if (OneIn(4)) LetLandingsGo(1);
    if (OneIn(40)) FailOnce(absl::CancelledError("test"));
    if (OneIn(150)) FailOnce(absl::InternalError("test"));
    if (OneIn(40)) h_.cancel_behind = true;
    const bool began = h_.Begin();
    h_.fake().before_forward = nullptr;
    if (!requests_.empty()) {
      if (OneIn(40)) h_.scheduler().Cancel(Some(), h_.now);
      if (OneIn(40)) h_.scheduler().CancelSequence(Some(), static_cast<uint32_t>(rng_() % 3), h_.now);
      if (OneIn(5)) Credit(Some(), static_cast<int32_t>(rng_() % 160));
    }
    if (began) h_.Finish();
    h_.Collect(h_.scheduler().TakeOutputs());
    TakePublished();
  }

  /// The next step that is executed; not the one behind it.
  void FailOnce(absl::Status with) {
    h_.fake().before_forward = [with = std::move(with)]() mutable { return std::exchange(with, absl::OkStatus()); };
  }

  /// KV of a handoff comes into free blocks, whatever runs: no row may be written there.
  void Land() {
    SequenceKv kv = h_.cache().Start("", "");
    if (!h_.scheduler().BindForHandoff(kv, 1 + static_cast<int32_t>(rng_() % 64)).ok()) return;
    h_.pinned += kv.tables[0].owned();
    ForEachByte(kv, [](uint8_t& byte) { byte = kLanded; });
    landings_.push_back(std::move(kv));
  }

  void LetLandingsGo(size_t count) {
    for (; count > 0 && !landings_.empty(); --count) {
      int64_t changed = 0;
      ForEachByte(landings_.front(), [&](uint8_t& byte) { changed += byte != kLanded; });
      EXPECT_EQ(changed, 0) << "seed " << seed_ << ": bytes of a handoff were overwritten";
      h_.pinned -= landings_.front().tables[0].owned();
      landings_.pop_front();
    }
  }

  template <class F>
  void ForEachByte(const SequenceKv& kv, F&& f) {
    for (size_t g = 0; g < kv.tables.size(); ++g) {
      for (const kernels::KvLayerView& layer : h_.memory().groups()[g].layers) {
        for (const kernels::KvPlaneView* plane : {&layer.k, &layer.v}) {
          for (const BlockId block : kv.tables[g].blocks()) {
            if (block == kNoBlock || plane->base == nullptr) continue;
            auto* const bytes = static_cast<uint8_t*>(plane->base) + block * plane->block_stride_bytes;
            const auto size =
                static_cast<int64_t>(DTypeBytes(plane->dtype)) * plane->tokens_per_block * plane->heads * plane->dim;
            for (int64_t i = 0; i < size; ++i) f(bytes[i]);
          }
        }
      }
    }
  }

  void Ask() {
    const RequestKey key = requests_.size() + 1;
    Request r = SomeRequest(key, rng_());
    r.sampling.n = std::min(r.sampling.n, h_.scheduler().options().max_num_seqs);
    if (!requests_.empty() && OneIn(2)) GoOn(requests_[Some() - 1], r);
    requests_.push_back(r);
    if (OneIn(6)) r.credit = r.prompt_len + static_cast<int32_t>(rng_() % 4);
    if (OneIn(10)) r.deadline = h_.now + std::chrono::milliseconds(1 + rng_() % 100);
    ASSERT_TRUE(h_.Add(std::move(r)).ok());
  }

  /// The next turn of a conversation: what was answered is in the prefix cache.
  void GoOn(const Request& before, Request& r) {
    std::vector<int32_t> prompt = before.tokens;
    for (const kernels::SampleResult& t : h_.answers[{before.key, 0}].tokens) prompt.push_back(t.token);
    prompt.push_back(static_cast<int32_t>(rng_() % kFakeVocab));
    if (prompt.size() > 100) return;
    r.prompt_len = static_cast<int32_t>(prompt.size());
    r.tokens = std::move(prompt);
  }

  void Credit(RequestKey key, int32_t position) {
    for (uint32_t i = 0; i < 4; ++i) h_.scheduler().SetCredit(key, i, position, h_.now);
  }

  void TakePublished() {
    for (const KvEvent& event : h_.cache().TakeEvents().events)
      if (event.kind == KvEvent::Kind::kStored) published_.insert({event.hash.lo, event.hash.hi});
  }

  void Check() {
    TakePublished();
    std::set<std::pair<uint64_t, uint64_t>> may_be_published;
    const PrefixHasher hasher{HashKey{}};
    for (const Request& r : requests_) {
      SteppedEngineOptions options = OptionsFor(seed_, /*ahead=*/false);
      options.prefix_caching = false;
      SteppedEngine alone(options);
      ASSERT_TRUE(alone.Add(r).ok());
      alone.RunAll();
      for (uint32_t i = 0; i < static_cast<uint32_t>(r.sampling.n); ++i) {
        const Answer& want = alone.answers[{r.key, i}];
        Compare(r, i, want);
        std::vector<int32_t> computed = r.tokens;
        for (const kernels::SampleResult& t : want.tokens) computed.push_back(t.token);
        computed.pop_back();  // no step takes the last token of an answer
        hasher.Walk(hasher.Root({.model_digest = "test", .salt = "", .lora_digest = ""}), computed,
                    [&](const PrefixHash& hash) { may_be_published.insert({hash.lo, hash.hi}); });
      }
    }
    for (const auto& hash : published_)
      EXPECT_TRUE(may_be_published.contains(hash)) << "seed " << seed_ << ": a unit behind an answer's end";
    for (int32_t g = 0; g < h_.cache().num_groups(); ++g)
      EXPECT_EQ(h_.cache().pool(g).used_blocks(), 0) << "seed " << seed_;
    EXPECT_EQ(h_.executor().sequences(), 0u) << "seed " << seed_;
    EXPECT_EQ(channel_.running()->load(), 0u) << "seed " << seed_;
    const SchedulerLoad load = h_.scheduler().Load();
    counts_.steps += load.steps;
    counts_.ahead += h_.steps_ahead;
    counts_.named += h_.fake().rows_named;
    counts_.preempted += load.preemptions;
    counts_.hits += load.cached_tokens;
  }

  void Compare(const Request& r, uint32_t index, Answer want) {
    const RequestKey key = r.key;
    const auto found = h_.answers.find({key, index});
    ASSERT_TRUE(found != h_.answers.end()) << "seed " << seed_ << " request " << key << " choice " << index;
    Answer got = found->second;
    if (r.sampling.n > 1) want.prompt_logprobs = got.prompt_logprobs = {};  // of one choice: the first that lives
    ASSERT_NE(got.finish, FinishReason::kNone) << "seed " << seed_ << " request " << key << " choice " << index;
    if (got.finish == FinishReason::kStop || got.finish == FinishReason::kLength) {
      counts_.stopped += got.finish == FinishReason::kStop ? 1 : 0;
      EXPECT_EQ(got.Text(), want.Text()) << "seed " << seed_ << " request " << key << " choice " << index;
      return;
    }
    (got.finish == FinishReason::kAbort ? counts_.cancelled : counts_.failed) += 1;
    ASSERT_LE(got.tokens.size(), want.tokens.size()) << "seed " << seed_ << " request " << key;
    for (size_t t = 0; t < got.tokens.size(); ++t)
      EXPECT_EQ(got.tokens[t].token, want.tokens[t].token) << "seed " << seed_ << " request " << key << " token " << t;
  }

  static constexpr uint8_t kLanded = 0x5a;
  const uint64_t seed_;
  std::mt19937_64 rng_;
  Counts& counts_;
  const bool ranks_ = seed_ % 3 == 0;
  OtherRanks others_;
  StepChannel channel_{others_};
  SteppedEngine h_{OptionsFor(seed_, /*ahead=*/true), nullptr, ranks_ ? &channel_ : nullptr};
  std::deque<SequenceKv> landings_;
  std::vector<Request> requests_;  ///< as they were asked, but for credit and deadline
  std::set<std::pair<uint64_t, uint64_t>> published_;
};

TEST(StepsAhead, AnswersAreThoseOfOneStepAtATime) {
  const uint64_t first = Number("STEPS_AHEAD_FIRST", 1), seeds = Number("STEPS_AHEAD_SEEDS", 2500);
  Counts counts;
  for (uint64_t seed = first; seed < first + seeds && !testing::Test::HasFailure(); ++seed)
    Schedule(seed, counts).Run();
  if (seeds >= 200) {
    EXPECT_GT(counts.ahead, counts.steps / 20);
    EXPECT_GT(counts.named, counts.ahead / 10) << "rows whose token the host did not know yet";
    EXPECT_TRUE(counts.preempted > 0 && counts.stopped > 0 && counts.cancelled > 0 && counts.failed > 0 &&
                counts.hits > 0 && counts.behind > 0);
  }
  std::printf(
      "%lu schedules: %ld steps, %ld of them planned ahead, %ld rows of tokens still on the device, %ld answers "
      "stopped, %ld cancelled, %ld failed, %ld preemptions, %ld tokens from the prefix cache\n",
      static_cast<unsigned long>(seeds), static_cast<long>(counts.steps), static_cast<long>(counts.ahead),
      static_cast<long>(counts.named), static_cast<long>(counts.stopped), static_cast<long>(counts.cancelled),
      static_cast<long>(counts.failed), static_cast<long>(counts.preempted), static_cast<long>(counts.hits));
}

// Which steps are planned ahead at all.

SteppedEngineOptions Ahead() {
  SteppedEngineOptions o;
  o.scheduler.max_model_len = 300;
  o.ahead = true;
  return o;
}

TEST(StepsAhead, DecodesOfOneKindAreAlwaysOneStepAhead) {
  SteppedEngine h(Ahead());
  for (RequestKey key = 1; key <= 3; ++key) ASSERT_TRUE(h.Add(Endless(key, 20, 40)).ok());
  h.RunAll();
  EXPECT_EQ(h.steps_ahead, 38) << "all but the prefill and the first decode";
  EXPECT_EQ(h.fake().rows_run, 3 * (20 + 39)) << "a length is known before the last token is";
  EXPECT_LE(h.scheduler().Load().step_time, h.now - FakeClock().Now()) << "no time counts twice";
}

TEST(StepsAhead, BehindATokenThatIsTheLastThereIsNoRow) {
  SteppedEngine h(Ahead());
  ASSERT_TRUE(h.Add(Endless(1, 20, 30)).ok());
  ASSERT_TRUE(h.Add(Endless(2, 20, 40)).ok());
  h.RunAll();
  EXPECT_EQ(h.steps_ahead, 38);
  EXPECT_EQ(h.fake().rows_run, 20 + 29 + 20 + 39);
  SteppedEngine full(Ahead());
  ASSERT_TRUE(full.Add(Endless(1, 20, 40)).ok());
  ASSERT_TRUE(full.Add(Endless(2, 280, 100)).ok());
  full.RunAll();
  EXPECT_EQ(full.fake().rows_run, 20 + 39 + 280 + 19) << "the second one ends with its context";
}

TEST(StepsAhead, TokensThatTheHostHasNotReadAreNamed) {
  SteppedEngineOptions options = Ahead();
  SteppedEngine read(options);
  options.later = true;
  SteppedEngine named(options);
  for (SteppedEngine* h : {&read, &named}) {
    for (RequestKey key = 1; key <= 3; ++key) {
      Request r = Endless(key, 20, 40);
      r.sampling.n = static_cast<int32_t>(key);
      r.sampling.temperature = 1;
      r.sampling.logprobs = 2;
      r.sampling.repetition_penalty = 1.5f;
      r.sampling.frequency_penalty = 0.5f;
      ASSERT_TRUE(h->Add(std::move(r)).ok());
    }
    h->RunAll();
  }
  EXPECT_EQ(read.fake().rows_named, 0);
  EXPECT_EQ(named.fake().rows_named, 6 * 38 / 2) << "of the steps that are given before the last one is committed";
  ASSERT_EQ(named.answers.size(), 6u);
  for (const auto& [key, answer] : named.answers) EXPECT_EQ(answer.Text(), read.answers[key].Text());
}

TEST(StepsAhead, AStopTokenCostsOneRow) {
  SteppedEngine alone(Ahead());
  ASSERT_TRUE(alone.Add(Endless(1, 20, 40)).ok());
  alone.RunAll();
  const std::vector<kernels::SampleResult>& tokens = alone.answers[{1, 0}].tokens;
  const int32_t stop = tokens[10].token;
  const auto first = std::ranges::find_if(tokens, [&](const auto& t) { return t.token == stop; }) - tokens.begin();
  SteppedEngine h(Ahead());
  Request r = Endless(1, 20, 40);
  r.sampling.stop_token_ids = {stop};
  ASSERT_TRUE(h.Add(std::move(r)).ok());
  h.RunAll();
  EXPECT_EQ((h.answers[{1, 0}].tokens.size()), static_cast<size_t>(first + 1));
  EXPECT_EQ((h.answers[{1, 0}].finish), FinishReason::kStop);
  EXPECT_EQ(h.fake().rows_run, 20 + first + (first > 0 ? 1 : 0));
  EXPECT_EQ(h.cache().pool(0).used_blocks(), 0);
}

TEST(StepsAhead, WhatReadsTheTokensOnTheHostIsNotPlannedAhead) {
  const auto steps_ahead = [](const std::function<void(Request&)>& change) {
    SteppedEngine h(Ahead());
    Request r = Endless(1, 20, 12);
    change(r);
    EXPECT_TRUE(h.Add(std::move(r)).ok());
    h.RunAll();
    return h.steps_ahead;
  };
  EXPECT_EQ(steps_ahead([](Request&) {}), 10);
  EXPECT_EQ(steps_ahead([](Request& r) { r.sampling.repetition_penalty = 1.1f; }), 10);
  EXPECT_EQ(steps_ahead([](Request& r) { r.sampling.presence_penalty = 0.5f; }), 10);
  EXPECT_EQ(steps_ahead([](Request& r) { r.sampling.frequency_penalty = 0.5f; }), 10);
  EXPECT_EQ(steps_ahead([](Request& r) { r.sampling.bad_words = {4, 5, -1}; }), 0);
  EXPECT_EQ(steps_ahead([](Request& r) { r.sampling.use_beam_search = true; }), 0);
  EXPECT_EQ(steps_ahead([](Request& r) { r.sampling.n = 3; }), 10);
  EXPECT_EQ(steps_ahead([](Request& r) { r.sampling.min_tokens = 5; }), 10);
  EXPECT_EQ(steps_ahead([](Request& r) { r.sampling.min_tokens = 5, r.sampling.stop_token_ids = {47}; }), 10);
  EXPECT_EQ(steps_ahead([](Request& r) { r.sampling.logprobs = 2; }), 10);
}

TEST(StepsAhead, WhileAllStepsArePlannedAheadDeadlinesPassAndWhoEndedIsForgotten) {
  SteppedEngine h(Ahead());
  Request late = Endless(1, 20, 200);
  late.deadline = h.now + std::chrono::seconds(5);
  ASSERT_TRUE(h.Add(std::move(late)).ok());
  ASSERT_TRUE(h.Add(Endless(2, 20, 200)).ok());
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(h.Step());
  h.now += std::chrono::seconds(5);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(h.Step());
  EXPECT_TRUE(absl::IsDeadlineExceeded(h.answers[(AnswerKey{1, 0})].error));
  EXPECT_EQ(h.executor().sequences(), 1u);
  const int64_t before = h.steps_ahead;
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(h.Step());
  EXPECT_EQ(h.steps_ahead, before + 10);
  h.RunAll();
}

TEST(StepsAhead, ARequestThatComesIsNotPutOffForMoreThanOneStep) {
  SteppedEngine h(Ahead());
  ASSERT_TRUE(h.Add(Endless(1, 20, 60)).ok());
  for (int i = 0; i < 5; ++i) h.Step();
  ASSERT_TRUE(h.Begin());  // one step runs, another is planned behind it
  ASSERT_TRUE(h.Add(Endless(2, 20, 5)).ok());
  h.Finish();
  h.Step();
  h.Step();
  EXPECT_EQ(h.scheduler().Load().waiting_requests, 0);
  EXPECT_EQ((h.answers[{2, 0}].tokens.size()), 1u);
  h.RunAll();
}

/// Other ranks that are gone after the first step was said to them.
class LostRanks final : public Communicator {
 public:
  LostRanks() : Communicator(0, 2) {}
  absl::Status Broadcast(int, std::span<std::byte>) override {
    return ++said_ <= 2 ? absl::OkStatus() : absl::UnavailableError("rank 1 is gone");
  }
  absl::Status Send(int, std::span<const std::byte>) override { return absl::OkStatus(); }
  absl::Status Recv(int, std::span<std::byte>) override { return absl::OkStatus(); }
  absl::Status AllGather(std::span<const std::byte>, std::span<std::byte>) override { return absl::OkStatus(); }
  absl::Status TreeAllReduce(std::span<float>) override { return absl::OkStatus(); }
  void Abort(const absl::Status&) override {}

 private:
  int said_ = 0;
};

TEST(StepsAhead, AStepWhoseEndCannotBeSaidToTheOtherRanksFails) {
  LostRanks others;
  StepChannel channel(others);
  SteppedEngineOptions options = Ahead();
  options.later = true;
  SteppedEngine h(options, nullptr, &channel);
  ASSERT_TRUE(h.Add(Endless(1, 20, 1)).ok());
  h.RunAll();
  EXPECT_EQ((h.answers[{1, 0}].error), absl::UnavailableError("rank 1 is gone"));
}

}  // namespace
}  // namespace baton::engine
