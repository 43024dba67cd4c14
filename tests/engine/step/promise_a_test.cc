// Promise A at the level of the engine: 32 requests with mixed sampling fields, together, answer bit for bit what each
// answers alone: at any chunk size, with and without prefix hits, preempted or not, with steps cancelled half way, and
// whenever their readers take something.
#include <gtest/gtest.h>

#include <random>

#include "tests/engine/step/requests.h"

namespace baton::engine {
namespace {

constexpr int kRequests = 32;

struct Load {
  int32_t chunk = 2048;
  int32_t blocks = 600;
  int32_t tokens_per_block = 16;
  int32_t window = 0;
  bool prefix_caching = true;
  bool cancel_steps = false;
  int32_t max_seqs = 64;
  bool slow_readers = false;  ///< they take some tokens now and then
};

Request RequestNumber(int i) {
  Request r = MixedRequest(static_cast<RequestKey>(i + 1), 1000 + static_cast<uint64_t>(i), 3 + (i * 37) % 200);
  if (i % 8 == 3) {  // resumed after a migration: some output is there already
    r.sampling.n = 1;
    r.sampling.prompt_logprobs = -1;
    r.sampling.max_tokens += 4;
    r.prompt_len = std::max(1, static_cast<int32_t>(r.tokens.size()) - 3);
  }
  return r;
}

SteppedEngineOptions OptionsFor(const Load& load) {
  SteppedEngineOptions o;
  o.layout = FakeLayout(load.tokens_per_block, load.window);
  o.num_blocks.assign(o.layout.groups.size(), load.blocks);
  o.prefix_caching = load.prefix_caching;
  o.scheduler.max_model_len = 300;
  o.scheduler.max_num_batched_tokens = load.chunk;
  o.scheduler.max_num_seqs = load.max_seqs;
  o.scheduler.max_step_ms = 0;
  o.scheduler.max_logit_rows = 24;
  if (load.slow_readers) o.scheduler.max_undelivered_tokens = 3;
  return o;
}

std::map<AnswerKey, std::string> Alone(int32_t window) {
  std::map<AnswerKey, std::string> texts;
  for (int i = 0; i < kRequests; ++i) {
    SteppedEngine h(OptionsFor({.window = window, .prefix_caching = false}));
    EXPECT_TRUE(h.Add(RequestNumber(i)).ok());
    h.RunAll();
    for (const auto& [key, answer] : h.answers) texts[key] = answer.Text();
  }
  return texts;
}

struct Seen {
  int64_t preemptions = 0, cached_tokens = 0, cancelled_steps = 0;
  int32_t unread = 0;  ///< at most, at once
};

/// Some reader takes up to 8 tokens of each choice.
void ReadSome(SteppedEngine& h, std::mt19937& rng, std::vector<int32_t>& read) {
  const size_t i = rng() % read.size();
  read[i] += static_cast<int32_t>(rng() % 9);
  for (uint32_t choice = 0; choice < 4; ++choice) h.scheduler().SetCredit(i + 1, choice, read[i], h.now);
  h.Collect(h.scheduler().TakeOutputs());
}

Seen ExpectSameTogether(const Load& load, const std::map<AnswerKey, std::string>& alone) {
  SteppedEngine h(OptionsFor(load));
  std::mt19937 rng(static_cast<unsigned>(load.chunk + load.blocks));
  std::vector<int32_t> read;
  for (int i = 0; i < kRequests; ++i) {
    Request r = RequestNumber(i);
    read.push_back(static_cast<int32_t>(r.tokens.size()));
    if (load.slow_readers) r.credit = read.back();
    EXPECT_TRUE(h.Add(std::move(r)).ok());
    if (rng() % 2 == 0) h.Step();
  }
  int32_t unread = 0;
  while (!h.scheduler().Idle()) {
    const bool cancel = load.cancel_steps && rng() % 3 == 0;
    h.fake().before_forward = cancel ? std::function<absl::Status()>([&] {
      h.executor().Cancel();  // heard half way through the rows
      return absl::OkStatus();
    })
                                     : nullptr;
    h.Step();
    unread = std::max(unread, h.scheduler().Load().unread_sequences);
    if (load.slow_readers) ReadSome(h, rng, read);
  }
  EXPECT_EQ(h.answers.size(), alone.size());
  for (const auto& [key, answer] : h.answers) {
    EXPECT_EQ(answer.Text(), alone.at(key))
        << "request " << key.first << " choice " << key.second << " chunk " << load.chunk << " blocks " << load.blocks;
  }
  const SchedulerLoad l = h.scheduler().Load();
  return {l.preemptions, l.cached_tokens, l.cancelled_steps, unread};
}

TEST(PromiseA, TogetherIsAloneAtEveryChunkSize) {
  const auto alone = Alone(0);
  for (const int32_t chunk : {16, 17, 32, 64, 100, 256, 512, 2048}) {
    ExpectSameTogether({.chunk = chunk}, alone);
  }
}

TEST(PromiseA, PrefixHitsChangeNothing) {
  const auto alone = Alone(0);
  Load load;
  load.chunk = 128;
  EXPECT_GT(ExpectSameTogether(load, alone).cached_tokens, 0);
  load.prefix_caching = false;
  EXPECT_EQ(ExpectSameTogether(load, alone).cached_tokens, 0);
  load.tokens_per_block = 64;
  load.prefix_caching = true;
  EXPECT_GT(ExpectSameTogether(load, alone).cached_tokens, 0);
}

TEST(PromiseA, PreemptionChangesNothing) {
  const auto alone = Alone(0);
  for (const int32_t chunk : {16, 64, 2048}) {
    const Load load{.chunk = chunk, .blocks = 22, .max_seqs = 16};
    EXPECT_GT(ExpectSameTogether(load, alone).preemptions, 0) << chunk;
  }
}

TEST(PromiseA, ReadersThatStopAndGoOnChangeNothing) {
  const auto alone = Alone(0);
  for (const auto& [blocks, cancel] : {std::pair{22, false}, {40, true}, {600, false}}) {
    const Load load{.chunk = 64, .blocks = blocks, .cancel_steps = cancel, .max_seqs = 8, .slow_readers = true};
    const Seen seen = ExpectSameTogether(load, alone);
    EXPECT_GT(seen.unread, load.max_seqs) << "more than a step has places for wait for their readers";
    EXPECT_EQ(seen.preemptions > 0, blocks < 600) << blocks;
  }
}

TEST(PromiseA, StepsCancelledHalfWayChangeNothing) {
  const auto alone = Alone(0);
  for (const int32_t blocks : {24, 600}) {
    const Load load{.chunk = 64, .blocks = blocks, .cancel_steps = true, .max_seqs = 16};
    EXPECT_GT(ExpectSameTogether(load, alone).cancelled_steps, 0);
  }
}

TEST(PromiseA, SlidingWindowGroupsToo) {
  const auto alone = Alone(40);
  for (const int32_t chunk : {16, 48, 512}) {
    const Load load{.chunk = chunk, .blocks = 60, .window = 40, .cancel_steps = chunk == 48};
    EXPECT_GT(ExpectSameTogether(load, alone).cached_tokens, 0);
  }
}

}  // namespace
}  // namespace baton::engine
