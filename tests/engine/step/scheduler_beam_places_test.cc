// Beams beside others: places in a step, and who hears that their prompt is computed.
#include <gtest/gtest.h>

#include "tests/engine/step/requests.h"

namespace baton::engine {
namespace {

Request FourBeams(RequestKey key, int32_t prompt_len, int32_t max_tokens) {
  Request r = Endless(key, prompt_len, max_tokens);
  r.sampling.use_beam_search = true;
  r.sampling.n = 2;
  r.sampling.best_of = 4;
  return r;
}

SteppedEngineOptions PlacesOptions() {
  SteppedEngineOptions o;
  o.prefix_caching = false;
  o.scheduler.max_model_len = 160;
  o.scheduler.max_step_ms = 0;
  o.scheduler.max_num_seqs = 6;
  o.scheduler.max_prefill_chunk = 16;
  return o;
}

TEST(SchedulerBeams, ThatThePromptIsComputedIsSaidOfAnAnswerThatIsWanted) {
  SteppedEngine h(PlacesOptions());
  ASSERT_TRUE(h.Add(FourBeams(1, 16, 12)).ok());
  ASSERT_TRUE(h.scheduler().CancelSequence(1, 0, h.now));
  h.Collect(h.scheduler().TakeOutputs());
  EXPECT_FALSE(h.answers.contains({1, 1}));
  ASSERT_TRUE(h.Step());
  EXPECT_TRUE(h.answers.contains({1, 1}));
}

TEST(SchedulerBeams, HoweverManyTokensASearchMayHaveItNeedsNoMoreThanItsContext) {
  SteppedEngine h(PlacesOptions());
  const absl::Status added = h.Add(FourBeams(1, 16, 100000));
  EXPECT_TRUE(added.ok()) << added;
  h.RunAll();
  EXPECT_EQ((h.answers[{1, 0}].finish), FinishReason::kLength);
}

TEST(SchedulerBeams, BeamsOfWhichSomeAreInTheStepMakeNoRoomForAPrefill) {
  const Request beams = FourBeams(2, 20, 30);
  SteppedEngine h(PlacesOptions());
  ASSERT_TRUE(h.Add(Endless(1, 140, 4)).ok() && h.Add(beams).ok());
  ASSERT_TRUE(h.Step() && h.Step());
  for (RequestKey key = 3; key <= 5; ++key) {  // more than may run: attached ones are not asked
    Request attached = Endless(key, 17, 12);
    attached.priority = -1;
    ASSERT_TRUE(AttachComputed(h, attached, {{0, 1}}).ok());
  }
  SequenceKv others = h.cache().Start("", "");
  h.pinned = h.cache().pool(0).available_blocks() - 2;  // two beams get blocks of their own, and the prefill none
  ASSERT_TRUE(h.cache().Grow(others, static_cast<int32_t>(h.pinned) * 16));
  ASSERT_TRUE(h.Step());
  EXPECT_EQ(h.plan().sequences.size(), 5u) << "three that were attached, and two beams";
  EXPECT_EQ(h.scheduler().Load().preemptions, 0);
  others.Clear();
  h.pinned = 0;
  h.RunAll();
  SteppedEngine alone(PlacesOptions());
  ASSERT_TRUE(alone.Add(beams).ok());
  alone.RunAll();
  for (const uint32_t choice : {0u, 1u})
    EXPECT_EQ((h.answers[{2, choice}].Text()), (alone.answers[{2, choice}].Text())) << choice;
}

}  // namespace
}  // namespace baton::engine
