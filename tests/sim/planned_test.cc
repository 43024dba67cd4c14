// Plans: steps that are skipped are the steps that would have been, links are shared, and every request of a load has
// one end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "common/log.h"
#include "common/str_cat.h"
#include "load/arrivals.h"
#include "load/summary.h"
#include "sim/planned_cluster.h"
#include "sim/quiet_steps.h"
#include "sim/use_report.h"

namespace baton::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

MeasuredCost Cost() {
  MeasuredCost cost;
  cost.step_ms = 5, cost.row_us = 50, cost.sequence_us = 100, cost.kilotoken_us = 200;
  return cost;
}

PlannedWorker Worker(int32_t blocks = 512, int32_t max_model_len = 2048) {
  PlannedWorker worker;
  worker.scheduler.max_model_len = max_model_len;
  worker.scheduler.vocab_size = engine::kFakeVocab;
  worker.blocks = blocks;
  const std::vector<KvPlane> planes = {{KvPlane::Name::kK, DType::kBF16, 2, 8},
                                       {KvPlane::Name::kV, DType::kBF16, 2, 8}};
  worker.layout.groups = {{{0, 1}, KvGroupKind::kPaged, 0, planes, 16}};
  return worker;
}

PlannedTerms Terms(PlannedLayout layout) {
  PlannedTerms terms;
  terms.seed = 1;
  terms.layout = layout;
  terms.worker = Worker();
  terms.link_bytes_per_s = 1e9;
  terms.kv_bytes_per_token = 1 << 16;
  return terms;
}

std::vector<load::Prompt> Prompts(int count, int64_t input = 300, int64_t output = 20) {
  load::BenchOptions options{.num_prompts = count, .random_input_len = input, .random_output_len = output};
  options.random_range_ratio = "0.5";
  return load::DrawPrompts(options).value();
}

load::RunResult Simulate(PlannedTerms terms, const std::vector<load::Prompt>& prompts, double rate,
                         ClusterUse* use = nullptr) {
  SetLogLevel("error");
  const MeasuredCost cost = Cost();
  PlannedCluster cluster(std::move(terms), cost);
  load::BenchOptions options;
  load::RunResult run = cluster.Run(
      {.prompts = prompts, .due = load::Arrivals(options, rate, prompts.size()), .timeout = std::chrono::seconds(600)});
  EXPECT_EQ(cluster.broken(), "");
  if (use != nullptr) *use = cluster.use();
  return run;
}

// ---- skipped steps

/// Every output's sequence, position, tokens and end, with its time.
using Told = std::vector<std::string>;
void Tell(Told& told, std::vector<engine::SequenceOutput> outputs, TimePoint at) {
  for (const engine::SequenceOutput& o : outputs) {
    told.push_back(StrCat(o.key, " at ", o.position, ": ", o.tokens.size(), " tokens, finish ",
                          static_cast<int>(o.finish), ", ", Seconds(at.time_since_epoch())));
  }
}

struct Engine {
  MeasuredCost cost = Cost();
  PlannedEngine part{Worker(40, 400), cost};
  engine::SteppedEngine engine = part.Make(v1::WORKER_ROLE_BOTH, false, nullptr);
  TimePoint now{std::chrono::seconds(5)};
  Told told;

  void Add(engine::RequestKey key, int32_t prompt, int32_t output) {
    engine::Request request = engine::MakeRequest(key, engine::RandomTokens(key, prompt), output);
    request.sampling.ignore_eos = true;
    ASSERT_TRUE(engine.scheduler().AddRequest(std::move(request), now).ok());
  }
  /// One step after the other until there is none.
  void StepAll() {
    for (;;) {
      const engine::StepPlan plan = engine.scheduler().PlanStep(now);
      Tell(told, engine.scheduler().TakeOutputs(), now);
      if (plan.sequences.empty()) return;
      now += part.Takes(plan, 0);
      Tell(told, engine.scheduler().Commit(plan, part.Compute(engine, v1::WORKER_ROLE_BOTH, plan), now), now);
    }
  }
  /// The same, with decodes skipped; looked at every `look`.
  void SkipAll(Duration look) {
    QuietSteps quiet(engine, part, v1::WORKER_ROLE_BOTH,
                     [this](auto outputs, uint64_t, TimePoint at) { Tell(told, std::move(outputs), at); });
    engine::StepPlan plan = engine.scheduler().PlanStep(now);
    Tell(told, engine.scheduler().TakeOutputs(), now);
    while (!plan.sequences.empty()) {
      quiet.Note(plan);
      if (!QuietSteps::IsQuiet(plan)) {
        now += part.Takes(plan, 0);
        Tell(told, engine.scheduler().Commit(plan, part.Compute(engine, v1::WORKER_ROLE_BOTH, plan), now), now);
        plan = engine.scheduler().PlanStep(now);
        Tell(told, engine.scheduler().TakeOutputs(), now);
        continue;
      }
      quiet.Begin(std::move(plan), now);
      std::optional<engine::StepPlan> next;
      for (TimePoint at = now; quiet.running(); at += look) next = quiet.CatchUp(at);
      now = quiet.last_end();
      plan = next ? *std::move(next) : engine::StepPlan();
    }
  }
};

TEST(QuietSteps, AreTheStepsThatWouldHaveBeenAtTheirTimes) {
  // 40 blocks of 16 hold the last of them only after an earlier one has ended; two of them are preempted.
  const std::vector<std::pair<int32_t, int32_t>> asked = {{100, 60}, {37, 200}, {150, 90}, {16, 3}, {200, 150}};
  Engine stepped;
  for (size_t i = 0; i < asked.size(); ++i) stepped.Add(i + 1, asked[i].first, asked[i].second);
  stepped.StepAll();
  ASSERT_GT(stepped.told.size(), 400u);
  for (const Duration look :
       {Duration(microseconds(700)), Duration(milliseconds(40)), Duration(std::chrono::hours(1))}) {
    Engine skipped;
    for (size_t i = 0; i < asked.size(); ++i) skipped.Add(i + 1, asked[i].first, asked[i].second);
    skipped.SkipAll(look);
    EXPECT_EQ(skipped.told, stepped.told) << "looked at every " << Seconds(look) << " s";
  }
}

TEST(QuietSteps, TheFirstAnswersEndIsSeenBefore) {
  Engine e;
  e.Add(1, 20, 30), e.Add(2, 20, 50);
  QuietSteps quiet(e.engine, e.part, v1::WORKER_ROLE_BOTH, [](auto, uint64_t, TimePoint) {});
  engine::StepPlan plan = e.engine.scheduler().PlanStep(e.now);
  quiet.Note(plan);
  e.now += e.part.Takes(plan, 0);
  e.engine.scheduler().Commit(plan, e.part.Compute(e.engine, v1::WORKER_ROLE_BOTH, plan), e.now);
  plan = e.engine.scheduler().PlanStep(e.now);
  quiet.Note(plan);
  ASSERT_TRUE(QuietSteps::IsQuiet(plan));
  quiet.Begin(std::move(plan), e.now);
  const TimePoint end = quiet.AnswerEnd(TimePoint::max());
  EXPECT_LT(quiet.AnswerEnd(e.now + milliseconds(20)), end) << "it looks no further than it is asked to";
  quiet.CatchUp(end - Duration(1));
  EXPECT_EQ(e.engine.scheduler().Load().running_sequences, 2);
  quiet.CatchUp(end);
  EXPECT_EQ(e.engine.scheduler().Load().running_sequences, 1);
}

// ---- what steps cost

TEST(StepCost, AMeasuredStepIsTheSumOfItsParts) {
  const std::vector<plan::StepRows> rows = {{.sequences = 3, .fresh = 1, .context = 999},
                                            {.fresh = 64, .context = 936}};
  // 5 ms + (3 + 64) rows + 4 sequences + 4 · 1000 tokens read
  EXPECT_NEAR(Cost().Seconds(rows), 5e-3 + 67 * 50e-6 + 4 * 100e-6 + 4 * 200e-6, 1e-12);
}

// ---- a cluster

void ExpectOneEndEach(const load::RunResult& run, size_t offered) {
  ASSERT_EQ(run.outcomes.size(), offered);
  std::set<size_t> seen;
  for (const load::Outcome& o : run.outcomes) {
    EXPECT_TRUE(seen.insert(o.index).second);
    EXPECT_GE(o.sent, o.due);
    EXPECT_GT(o.end, o.sent) << o.index << " has no end";
    EXPECT_EQ(o.ok(), o.answer.finished && o.error.empty()) << o.error;
    EXPECT_TRUE(std::ranges::is_sorted(o.arrivals));
    if (o.ok()) {
      EXPECT_EQ(o.answer.completion_tokens, std::ssize(o.arrivals));
    }
  }
}

class Layouts : public testing::TestWithParam<std::string> {
 protected:
  static PlannedLayout Layout() {
    if (GetParam() == "both") return {.both = 2};
    return GetParam() == "pd" ? PlannedLayout{.prefill = 1, .decode = 1} : PlannedLayout{1, 1, 1};
  }
};

TEST_P(Layouts, EveryRequestHasOneEndAndAllItsTokens) {
  const std::vector<load::Prompt> prompts = Prompts(60);
  ClusterUse use;
  const load::RunResult run = Simulate(Terms(Layout()), prompts, 20, &use);
  ExpectOneEndEach(run, prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_TRUE(run.outcomes[i].ok()) << run.outcomes[i].error;
    EXPECT_EQ(run.outcomes[i].answer.prompt_tokens, prompts[i].tokens);
    EXPECT_EQ(run.outcomes[i].OutputTokens(), prompts[i].output_tokens);
  }
  EXPECT_EQ(use.handoffs > 0, GetParam() != "both");
  EXPECT_EQ(use.link_gigabytes > 0, GetParam() != "both");
}

TEST_P(Layouts, TheSameSeedGivesTheSameTimes) {
  const std::vector<load::Prompt> prompts = Prompts(40);
  const load::RunResult once = Simulate(Terms(Layout()), prompts, 30), again = Simulate(Terms(Layout()), prompts, 30);
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(once.outcomes[i].arrivals, again.outcomes[i].arrivals) << i;
}
INSTANTIATE_TEST_SUITE_P(Planned, Layouts, testing::Values("both", "pd", "mixed"),
                         [](const auto& info) { return info.param; });

TEST(PlannedCluster, WhatDoesNotFitIsRefusedAndCounted) {
  std::vector<load::Prompt> prompts = Prompts(30);
  prompts[7].tokens = 5000, prompts[7].pieces = {{7, 5000}};  // of 2048
  PlannedTerms terms = Terms({.both = 1});
  terms.router.max_running_requests = 4;
  const load::RunResult run = Simulate(std::move(terms), prompts, 1000);
  ExpectOneEndEach(run, prompts.size());
  EXPECT_FALSE(run.outcomes[7].ok());
  const load::Summary summary = load::Summarize(run, {});
  EXPECT_EQ(summary.completed + summary.failed, summary.offered);
  EXPECT_GT(summary.failures.at("http_429"), 10) << "four at a time were let in";
}

TEST(PlannedCluster, ATokenTakesAStepAndPromptsWaitInTheQueueOfOneWorker) {
  const std::vector<load::Prompt> one = Prompts(1, 400, 50);
  const load::RunResult alone = Simulate(Terms({.both = 1}), one, 1);
  const plan::StepRows decode{.context = one[0].tokens + one[0].output_tokens / 2};
  EXPECT_NEAR(*alone.outcomes[0].TpotMs(), 1e3 * Cost().Seconds(std::span(&decode, 1)), 0.2);
  const plan::StepRows prompt{.fresh = one[0].tokens};
  const double prefill_ms = 1e3 * Cost().Seconds(std::span(&prompt, 1));
  EXPECT_GT(alone.outcomes[0].TtftMs(), prefill_ms);
  EXPECT_LT(alone.outcomes[0].TtftMs(), prefill_ms + 8) << "beside it messages, and a second step: the first is short";
}

TEST(PlannedCluster, ASlowLinkDelaysTheSecondTokenAndIsSeenBusy) {
  const std::vector<load::Prompt> prompts = Prompts(12, 512, 20);
  const auto second = [&](double bytes_per_s, ClusterUse& use) {
    PlannedTerms terms = Terms({.prefill = 1, .decode = 1});
    terms.link_bytes_per_s = bytes_per_s;
    terms.router.local_prefill_max_tokens = 0;
    return load::Summarize(Simulate(std::move(terms), prompts, 2, &use), {}).ttst.Percentile(50);
  };
  ClusterUse fast_use, slow_use;
  const double fast = second(50e9, fast_use), slow = second(100e6, slow_use);
  // About 512 tokens of 64 KiB: 34 MB, of which half of a step hides a little.
  EXPECT_GT(slow, fast + 200);
  EXPECT_GT(slow_use.link_busy_most, 0.3);
  EXPECT_LT(fast_use.link_busy_most, 0.02);
  EXPECT_NEAR(slow_use.link_gigabytes, fast_use.link_gigabytes, 0.01 * fast_use.link_gigabytes);
  EXPECT_EQ(slow_use.handoffs, 12);
}

TEST(PlannedCluster, PromptsThatBeginAlikeAreFoundInTheCache) {
  load::BenchOptions options{.dataset_name = "prefix_repetition", .num_prompts = 40};
  options.prefix_repetition_num_prefixes = 2;
  options.prefix_repetition_output_len = 4;
  ClusterUse use;
  Simulate(Terms({.both = 2}), load::DrawPrompts(options).value(), 4, &use);
  EXPECT_GT(use.roles.at(0).cached_tokens, use.roles[0].prompt_tokens / 3) << UseText(use);
}

// ---- load reports

// Reports that say nothing new come six times as rarely as with a heartbeat that leaves no room for that.
TEST(PlannedCluster, WorkersThatReportOnlyNewsAreChosenAsThoseThatReportAlways) {
  load::BenchOptions options{.dataset_name = "prefix_repetition", .num_prompts = 300};
  options.prefix_repetition_num_prefixes = 12;
  options.prefix_repetition_output_len = 60;
  const std::vector<load::Prompt> prompts = load::DrawPrompts(options).value();
  for (const PlannedLayout& layout : {PlannedLayout{.both = 4}, PlannedLayout{2, 3, 0}}) {
    ClusterUse use[2];
    double ttft[2], tpot[2];
    for (const int always : {0, 1}) {
      PlannedTerms terms = Terms(layout);
      if (always == 1) terms.router.heartbeat_timeout_ms = 500;
      const load::Summary summary = load::Summarize(Simulate(std::move(terms), prompts, 12, &use[always]), {});
      EXPECT_EQ(summary.completed, summary.offered);
      ttft[always] = summary.ttft.mean(), tpot[always] = summary.tpot.mean();
    }
    EXPECT_NEAR(ttft[0], ttft[1], 0.02 * ttft[1]) << layout.Name();
    EXPECT_NEAR(tpot[0], tpot[1], 0.02 * tpot[1]) << layout.Name();
    for (size_t i = 0; i < use[1].roles.size(); ++i) {
      const double cached = static_cast<double>(use[1].roles[i].cached_tokens);
      EXPECT_NEAR(static_cast<double>(use[0].roles[i].cached_tokens), cached, 0.02 * cached) << layout.Name();
    }
  }
}

// ---- what is killed

TEST(TokenTimes, ATokenThatIsDrawnAgainHasTheLaterTime) {
  TokenTimes times;
  const TimePoint begin{}, later = begin + milliseconds(50);
  for (uint64_t position = 5; position < 9; ++position) times.Note("r", position, begin);
  EXPECT_EQ(times.Take("r", 5, later), begin);
  for (uint64_t position = 7; position < 9; ++position) times.Note("r", position, later);
  EXPECT_EQ(times.Take("r", 6, later), begin);
  EXPECT_EQ(times.Take("r", 7, begin), later);
  EXPECT_EQ(times.Take("r", 8, begin), later);
}

class Kills : public testing::TestWithParam<std::string> {
 protected:
  static PlannedTerms KillTerms() {
    PlannedTerms terms = Terms(GetParam() == "both" ? PlannedLayout{.both = 2} : PlannedLayout{2, 2, 0});
    terms.kills = {.wishes = {{GetParam(), std::chrono::seconds(3)}}, .restart_after = std::chrono::seconds(2)};
    return terms;
  }
};

TEST_P(Kills, AreADipThatIsSeenAndNoRequestIsLostOrHasATokenTwice) {
  const std::vector<load::Prompt> prompts = Prompts(400, 100, 60);
  ClusterUse use;
  const load::RunResult run = Simulate(KillTerms(), prompts, 40, &use);
  ExpectOneEndEach(run, prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_TRUE(run.outcomes[i].ok()) << run.outcomes[i].error;
    EXPECT_EQ(run.outcomes[i].OutputTokens(), prompts[i].output_tokens);
  }
  ASSERT_EQ(run.faults.size(), 1u);
  EXPECT_EQ(run.faults[0].what, StrCat("kill ", GetParam(), "-0"));
  const std::vector<load::Dip> dips = load::FindDips(run.outcomes, run.duration, run.faults);
  ASSERT_EQ(dips.size(), 1u);
  EXPECT_GT(dips[0].running.size(), 5u);
  EXPECT_EQ(dips[0].failed, 0);
  if (GetParam() != "prefill") {  // the other prefill worker keeps up with this load
    EXPECT_GT(dips[0].depth(), 0.05);
  }
  ASSERT_TRUE(dips[0].over_after_s);
  EXPECT_LT(*dips[0].over_after_s, 5);
  int64_t drawn = 0, asked = 0;
  for (const RoleUse& role : use.roles) drawn += role.role == "prefill" ? 0 : role.generated_tokens;
  for (const load::Prompt& prompt : prompts) asked += prompt.output_tokens;
  EXPECT_GT(drawn, asked * 9 / 10) << "what was drawn before a worker died counts";
}

TEST_P(Kills, AreTheSameWithTheSameSeed) {
  const std::vector<load::Prompt> prompts = Prompts(200, 100, 30);
  const load::RunResult once = Simulate(KillTerms(), prompts, 40), again = Simulate(KillTerms(), prompts, 40);
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(once.outcomes[i].arrivals, again.outcomes[i].arrivals) << i;
}
INSTANTIATE_TEST_SUITE_P(Planned, Kills, testing::Values("both", "prefill", "decode"),
                         [](const auto& info) { return info.param; });

TEST(PlannedCluster, WithoutItsOnlyWorkerRequestsWaitOrAreRefusedAndAllAreCounted) {
  const std::vector<load::Prompt> prompts = Prompts(100);
  PlannedTerms terms = Terms({.both = 1});
  const std::chrono::seconds at(1);
  terms.kills = {.wishes = {{"both-0", at}, {"both", at + std::chrono::milliseconds(500)}}, .restart_after = at};
  const load::RunResult run = Simulate(std::move(terms), prompts, 25);
  ExpectOneEndEach(run, prompts.size());
  ASSERT_EQ(run.faults.size(), 2u);
  EXPECT_EQ(run.faults[1].error, "no such worker lives");
  EXPECT_TRUE(run.outcomes.back().ok()) << "it came back: " << run.outcomes.back().error;
}

}  // namespace
}  // namespace baton::sim
