// Layouts of the tiny model's workers: which are there, in which order, and why the others are not.
#include "plan/proposals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_format.h"
#include "plan/plan_report.h"

namespace baton::plan {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMemory = int64_t{1} << 30;
constexpr Machine kProposedMachine{.bytes_per_s = 1e10, .flops = 1e11, .link_bytes_per_s = 1e9, .handoff_ms = 1};
constexpr Load kProposedLoad{.isl = 500, .osl = 100, .ttft_ms = 1e6, .tpot_ms = 1e6};

worker::WorkerConfig TinyConfig() {
  worker::WorkerConfig config;
  config.model = "tests/data/tiny-llama";
  config.load_format = "dummy";
  config.dtype = "float32";
  return config;
}

std::vector<Proposal> All(int devices, const worker::WorkerConfig& config = TinyConfig(),
                          const Machine& machine = kProposedMachine, const Load& load = kProposedLoad) {
  const auto out = Propose(config, devices, kMemory, machine, load);
  EXPECT_TRUE(out.ok()) << out.status();
  return out.value_or(std::vector<Proposal>());
}

const Proposal& Of(const std::vector<Proposal>& all, const std::string& name) {
  for (const Proposal& p : all) {
    if (p.Name() == name) return p;
  }
  ADD_FAILURE() << "no layout is called " << name;
  return all.front();
}

TEST(Proposals, EveryCutOfTheDevicesIsThereTheFastestFirst) {
  std::vector<Proposal> all = All(4);
  EXPECT_EQ(all.size(), 9u) << "1, 2 or 4 ranks a worker in 6 ways; the 3 of at most 2 ranks as P:D, too";
  for (const Proposal& p : all) {
    EXPECT_EQ((p.both + p.prefill + p.decode) * p.tensor_size * p.stages, 4) << p.Name();
  }
  EXPECT_EQ(all.back().Name(), "1 worker for both, 4 stages");
  EXPECT_THAT(all.back().why_not, HasSubstr("3, the model's layers"));
  all.pop_back();
  for (const Proposal& p : all) EXPECT_EQ(p.why_not, "") << p.Name();
  EXPECT_TRUE(std::ranges::is_sorted(all, std::greater(), &Proposal::requests_per_s));
  EXPECT_EQ(Of(all, "1 worker for both, tensor size 2, 2 stages").both, 1);
}

TEST(Proposals, TheSlowerSideSaysWhatALayoutServes) {
  const worker::WorkerConfig config = TinyConfig();
  const Roofline r = PlanRoofline(config, *PlanMemory(config, kMemory), kProposedMachine, kProposedLoad).value();
  double best = 0;
  for (int prefill = 1; prefill < 8; ++prefill) {
    best = std::max(best,
                    std::min(prefill * r.PrefillRequestsPerS(), (8 - prefill) * r.DecodeRequestsPerS(kProposedLoad)));
  }
  const std::vector<Proposal> all = All(8);
  const auto split =
      std::ranges::find_if(all, [](const Proposal& p) { return p.prefill > 0 && p.tensor_size == 1 && p.stages == 1; });
  ASSERT_NE(split, all.end());
  EXPECT_DOUBLE_EQ(split->requests_per_s, best);
  EXPECT_DOUBLE_EQ(std::max(split->prefill_busy, split->decode_busy), 1);
  EXPECT_DOUBLE_EQ(split->ttft_ms, r.prefill_ms + r.transfer_ms.value());
  EXPECT_DOUBLE_EQ(split->tpot_ms, r.decode_ms);
  const Proposal& both = Of(all, "8 workers for both");
  EXPECT_DOUBLE_EQ(both.requests_per_s, 8 * r.both_requests_per_s);
  EXPECT_GT(both.tpot_ms, r.decode_ms) << "steps bear prompts as well";
}

TEST(Proposals, RangesAreThoseOfTheMachineAndTheOrderIsJudgedAtTheirEnds) {
  Machine unsure = kProposedMachine;
  unsure.certainty = {.prefill = {1, 4}, .decode = {1, 2}, .link = {1, 2}};
  const std::vector<Proposal> all = All(4, TinyConfig(), unsure);
  const Proposal& both = Of(all, "4 workers for both");
  EXPECT_NEAR(both.ttft_range.high, 4 * both.ttft_ms, 1e-9) << "TTFT is the prompt's alone";
  EXPECT_DOUBLE_EQ(both.ttft_range.low, both.ttft_ms);
  EXPECT_DOUBLE_EQ(both.rate_range.high, both.requests_per_s);
  EXPECT_LT(both.rate_range.low, both.requests_per_s / 2);
  EXPECT_GT(both.rate_range.low, both.requests_per_s / 4);
  EXPECT_THAT(ProposalsText(all),
              HasSubstr(absl::StrFormat("requests/s (%.3f to %.3f)", both.rate_range.low, both.rate_range.high)));
  EXPECT_THAT(OrderText(all), HasSubstr("the first is the fastest at"));
  EXPECT_EQ(OrderText(All(1)), "") << "there is nothing to choose";

  std::vector<Proposal> two = {all[0], all[0]};
  two[0].corner_rates = {5, 5, 2}, two[1].corner_rates = {4, 4, 3};
  EXPECT_EQ(OrderText(two), "order: the first is the fastest at 1 of 2 ends of these ranges, number 2 at 1\n");
}

TEST(Proposals, OfAGoalThatIsMissedBothNumbersAreSaid) {
  Load load = kProposedLoad;
  load.ttft_ms = 1e-6;
  for (const Proposal& p : All(2, TinyConfig(), kProposedMachine, load)) {
    EXPECT_THAT(p.why_not, HasSubstr("is above the goal of 0.00 ms")) << p.Name();
    EXPECT_THAT(p.why_not, HasSubstr("TTFT")) << p.Name();
  }
}

TEST(Proposals, WhatDoesNotFitOrIsNotThereSaysSo) {
  const std::vector<Proposal> odd = All(16);
  EXPECT_FALSE(Of(odd, "1 worker for both, tensor size 16").why_not.empty());
  EXPECT_TRUE(odd.front().why_not.empty());
  worker::WorkerConfig gpu = TinyConfig();
  gpu.device = "cuda";
  gpu.dtype = "auto";
  const std::vector<Proposal> all = All(2, gpu);
  const Proposal& pair = Of(all, "1 prefill and 1 decode worker");
  EXPECT_EQ(pair.why_not, "") << "workers on GPUs hand KV over as well";
  EXPECT_GT(pair.requests_per_s, 0);
  EXPECT_EQ(Of(all, "1 worker for both, tensor size 2").why_not, "") << "a worker may have several GPUs";
  Machine no_link = kProposedMachine;
  no_link.link_bytes_per_s = 0;
  EXPECT_THAT(Of(All(2, TinyConfig(), no_link), "1 prefill and 1 decode worker").why_not, HasSubstr("--link"));
  worker::WorkerConfig nowhere = TinyConfig();
  nowhere.model = "/nowhere/model";
  EXPECT_EQ(Propose(nowhere, 2, kMemory, kProposedMachine, kProposedLoad).status().code(), absl::StatusCode::kNotFound);
  const auto small = Propose(TinyConfig(), 2, 1 << 20, kProposedMachine, kProposedLoad);
  ASSERT_TRUE(small.ok());
  for (const Proposal& p : *small) EXPECT_THAT(p.why_not, HasSubstr("too many")) << p.Name();
}

}  // namespace
}  // namespace baton::plan
