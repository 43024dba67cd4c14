// A GPU with few KV blocks: sequences are preempted and computed again, with steps given ahead and one by one, and
// every answer has the bits that it has where there are blocks for all.
#include <gtest/gtest.h>

#include <map>

#include "engine/sampling/answer_grammar.h"
#include "tests/engine/model/random_steps.h"
#include "tests/engine/step/fake_tokenizer.h"
#include "tests/engine/step/requests.h"

namespace baton::engine {
namespace {

constexpr int kManyBlocks = 200, kFewBlocks = 10;  // of 16 tokens: for all, and for three of the longest

/// Each kind of answer that keeps a state of its own: penalties, scores of the prompt, choices, beams, words that are
/// banned, a grammar; and some of any kind.
std::vector<Request> Requests(int vocab) {
  std::vector<Request> out;
  for (RequestKey key = 1; key <= 7; ++key) {
    const auto prompt_len = static_cast<int32_t>(8 + key * 5 % 13);
    Request r =
        key <= 6 ? MakeRequest(key, RandomTokens(key, prompt_len, vocab), 0) : MixedRequest(key, key * 31, prompt_len);
    SamplingParams& p = r.sampling;
    p.max_tokens = 28 + static_cast<int32_t>(key);
    p.ignore_eos = true;
    p.seed = key;
    p.logprobs = 2;
    p.temperature = key == 4 ? 0.0f : 1.0f;
    p.min_tokens = 0;
    p.stop_token_ids.clear();
    if (key == 1) p.repetition_penalty = 1.3f;
    if (key == 1) p.frequency_penalty = 0.5f;
    if (key == 2) p.prompt_logprobs = 2;
    if (key == 3) p.n = 3;
    if (key == 4) p.use_beam_search = true;
    if (key == 4) p.n = 2;
    if (key == 4) p.best_of = 3;
    if (key == 5) p.bad_words = {4, 5, -1};
    if (key == 6) p.grammar = std::make_shared<Grammar>(Grammar{GrammarKind::kRegex, "[ab]{3}(-[0-9])*"});
    if (key == 6) p.ignore_eos = false;
    if (key == 6) p.eos_token_ids = {kEos};
    out.push_back(std::move(r));
  }
  return out;
}

struct Answered {
  std::map<AnswerKey, std::string> answers;
  int64_t preemptions = 0, ahead = 0;
};

Answered RunOf(int blocks, bool ahead) {
  const RandomLimits limits;
  ModelSource source = SourceWithin("tests/engine/model/goldens/llama3", limits);
  source.recorded_rows = {1, 2, 4, 5};
  DeviceModel device = LoadOnDevice(source, limits, {}).value();
  const int vocab = device.model->config().vocab_size;
  const std::unique_ptr<Tokenizer> tokenizer = FakeTokenizer();
  const std::shared_ptr<const GrammarCompiler> compiler = GrammarCompiler::Make(*tokenizer, {kEos}, vocab).value();
  GrammarPool grammars(compiler, 0);
  SteppedEngineOptions options;
  options.layout = device.model->kv_layout();
  options.num_blocks.assign(options.layout.groups.size(), blocks);
  options.scheduler.max_model_len = 64;
  options.scheduler.max_num_seqs = limits.sequences;
  options.scheduler.max_num_batched_tokens = limits.rows;
  options.scheduler.max_logit_rows = limits.scored;
  options.ahead = ahead;
  options.grammars = {std::shared_ptr<void>(), &grammars};  // this function's
  SteppedEngine engine(options, nullptr, *device.model, *device.ops);
  for (Request& request : Requests(vocab)) BATON_CHECK(engine.Add(std::move(request)).ok());
  for (int steps = 0; !engine.scheduler().Idle(); ++steps) {
    BATON_CHECK(steps < 2000, "somebody waits for ever");
    grammars.Turn(1000);
    engine.Step();
  }
  Answered out{.preemptions = engine.scheduler().Load().preemptions, .ahead = engine.steps_ahead};
  for (const auto& [key, answer] : engine.answers) {
    EXPECT_TRUE(answer.error.ok()) << answer.error;
    out.answers[key] = answer.Text();
  }
  return out;
}

TEST(PreemptedOnADevice, AnswersAreThoseOfBlocksForAll) {
  const Answered large = RunOf(kManyBlocks, false);
  EXPECT_EQ(large.preemptions, 0);
  for (const bool ahead : {false, true}) {
    const Answered tight = RunOf(kFewBlocks, ahead);
    EXPECT_GT(tight.preemptions, 0);
    EXPECT_EQ(tight.ahead > 0, ahead);
    ASSERT_EQ(tight.answers.size(), large.answers.size());
    for (const auto& [key, want] : large.answers)
      EXPECT_EQ(tight.answers.at(key), want) << "request " << key.first << " choice " << key.second;
  }
}

}  // namespace
}  // namespace baton::engine
