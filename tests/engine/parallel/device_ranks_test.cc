// Ranks on GPUs of their own (emulated, with an emulated NCCL): one rank, several, stages of them give the same bits,
// in steps that are launched and in steps that are recorded. The sums are those of the CPU's ranks, to the bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <random>

#include "engine/parallel/tree_sum.h"
#include "kernels/cuda/host/cuda_ops.h"
#include "kernels/runtime/emulated_device.h"
#include "kernels/runtime/emulated_nccl.h"
#include "tests/engine/model/kv_scaled.h"
#include "tests/engine/model/quantized_files.h"
#include "tests/engine/parallel/rank_threads.h"
#include "tests/engine/step/requests.h"

namespace baton::engine {
namespace {

using ::testing::HasSubstr;
using Shape = RankThreads::Shape;
using Answers = std::map<AnswerKey, std::string>;

std::unique_ptr<kernels::Ops> MakeGpu(int number) { return kernels::MakeCudaOps({.device = number}).value(); }
/// Whose sums all go by NCCL.
std::unique_ptr<kernels::Ops> MakeGpuOfNccl(int number) {
  return kernels::MakeCudaOps({.device = number, .one_shot_bytes = 0}).value();
}
using Maker = std::unique_ptr<kernels::Ops> (*)(int number);

struct Case {
  std::string model = "tests/data/tiny-llama";
  Shape shape;
  std::vector<int32_t> recorded;
  int requests = 3;
  bool files = false;  ///< the model has weights
  Maker gpu = MakeGpu;
};

RankThreads::Options OptionsOf(const Case& run) {
  ModelSource source{.path = run.model, .dummy_weights = !run.files, .dummy_seed = 7, .context_tokens = 128};
  source.max_sequences = 8;
  source.max_logit_rows = 64;
  source.recorded_rows = run.recorded;
  return {.source = source, .device = run.gpu, .shape = run.shape, .max_tokens = 64, .blocks = 64};
}

struct Ran {
  Answers answers;
  kernels::DeviceWork work;  ///< of rank 0
};

Ran RunOn(const Case& run) {
  RankThreads ranks(OptionsOf(run));
  SteppedEngineOptions options;
  options.layout = ranks.layout();
  options.num_blocks.assign(options.layout.groups.size(), 64);
  options.scheduler.max_model_len = 128;
  options.scheduler.max_num_batched_tokens = 64;
  options.scheduler.max_num_seqs = 8;
  options.scheduler.max_step_ms = 0;
  SteppedEngine h(options, nullptr, ranks.model(), ranks.ops(), ranks.channel.get());
  const int32_t vocab = ranks.model().config().vocab_size;
  for (int i = 0; i < run.requests; ++i) {
    Request request = MixedRequest(static_cast<RequestKey>(i + 1), 50 + static_cast<uint64_t>(i), 5 + i * 17, vocab);
    EXPECT_TRUE(h.Add(request).ok());
  }
  h.RunAll();
  Ran out;
  for (const auto& [key, answer] : h.answers) out.answers[key] = answer.Text();
  out.work = ranks.ops().device_work();
  return out;
}
Answers AnswersOf(const Case& run) { return RunOn(run).answers; }

// What several tests look at is run once.
const Ran& RanOnOneGpu() {
  static const Ran ran = RunOn({.shape = {.width = 4}});
  return ran;
}
const Ran& RanInPartsAndStages() {
  static const Ran ran = RunOn({.shape = {.tensor = 2, .stages = 2, .width = 4}});
  return ran;
}
const Answers& OneGpu() { return RanOnOneGpu().answers; }

TEST(GpuRanks, OneTwoAndFourGpusHaveTheSameBitsAtOneWidth) {
  ASSERT_FALSE(OneGpu().empty());
  for (const auto& [key, text] : OneGpu()) EXPECT_THAT(text, HasSubstr(" OK")) << key.first;
  EXPECT_EQ(AnswersOf({.shape = {.tensor = 2, .width = 4}}), OneGpu());
  EXPECT_EQ(AnswersOf({.shape = {.tensor = 4, .width = 4}}), OneGpu());
  EXPECT_NE(AnswersOf({.shape = {.width = 1}}), OneGpu()) << "else these compare nothing";
}

TEST(GpuRanks, SumsByNcclHaveTheBitsOfThoseOverTheGpusOwnLinks) {
  EXPECT_EQ(AnswersOf({.shape = {.tensor = 2, .width = 4}, .gpu = MakeGpuOfNccl}), OneGpu());
  EXPECT_EQ(AnswersOf({.shape = {.tensor = 2, .width = 4}, .recorded = {1, 2, 4}, .gpu = MakeGpuOfNccl}), OneGpu());
}

TEST(GpuRanks, StagesChangeNoBit) {
  EXPECT_EQ(AnswersOf({.shape = {.stages = 3, .width = 4}}), OneGpu());
  EXPECT_EQ(RanInPartsAndStages().answers, OneGpu());
}

TEST(GpuRanks, NoLinkWaitsOnTheHost) {
  EXPECT_LE(RanInPartsAndStages().work.waits, RanOnOneGpu().work.waits + 8) << "a few of the start, none of a layer";
}

TEST(GpuRanks, RecordedStepsHoldTheLinksToo) {
  for (const Shape& shape : {Shape{.tensor = 2, .width = 4}, Shape{.tensor = 2, .stages = 2, .width = 4}}) {
    const Ran ran = RunOn({.shape = shape, .recorded = {1, 2, 4}});
    EXPECT_EQ(ran.answers, OneGpu());
    EXPECT_GT(ran.work.replays, 3) << shape.stages;
  }
}

TEST(GpuRanks, PausesAndPiecesOfOtherSizesChangeNoBit) {
  gpu::SeedEmulatedNccl(2);
  EXPECT_EQ(AnswersOf({.shape = {.tensor = 2, .stages = 2, .width = 4}, .recorded = {1, 2, 4}}), OneGpu());
  gpu::SeedEmulatedNccl(1);
}

class Family : public testing::TestWithParam<const char*> {};
TEST_P(Family, GpusChangeNoBit) {
  const std::string path = std::string("tests/engine/model/goldens/") + GetParam();
  const Answers alone = AnswersOf({.model = path, .shape = {.width = 2}, .requests = 2});
  ASSERT_FALSE(alone.empty());
  EXPECT_EQ(AnswersOf({.model = path, .shape = {.tensor = 2, .stages = 2, .width = 2}, .requests = 2}), alone);
}
INSTANTIATE_TEST_SUITE_P(All, Family, testing::Values("qwen2", "qwen3", "mistral", "gemma2", "gemma3", "smollm3"),
                         [](const auto& info) { return std::string(info.param); });

class Codes : public testing::TestWithParam<CodesCase> {};
TEST_P(Codes, AreCutBetweenGpusAndChangeNoBit) {
  const QuantizedModel model(GetParam());
  const auto answers = [&](const Shape& shape) {
    return AnswersOf({.model = model.codes(), .shape = shape, .recorded = {1, 2}, .requests = 2, .files = true});
  };
  const Answers alone = answers({.width = 4});
  ASSERT_FALSE(alone.empty());
  EXPECT_EQ(answers({.tensor = 4, .width = 4}), alone);
}
INSTANTIATE_TEST_SUITE_P(Formats, Codes,
                         testing::Values(kAwqCase, kOrderedCase, kOrdered8Case, kFloat8Case, kRoundedCase),
                         [](const auto& info) { return std::string(info.param.name); });

// KV in fp8 with a checkpoint's scales, with layers of windows and without.
TEST(GpuRanks, ScalesOfKvChangeNoBitBetweenGpus) {
  const Maker fp8 = [](int number) {
    return kernels::MakeCudaOps({.device = number, .kv_dtype = DType::kF8E4M3}).value();
  };
  for (const char* family : {"llama3", "gemma3"}) {
    const KvScaledModel model(family), plain(family, WithoutKvScales);
    const auto answers = [&](const KvScaledModel& of, const Shape& shape, const std::vector<int32_t>& recorded = {}) {
      return AnswersOf(
          {.model = of.path(), .shape = shape, .recorded = recorded, .requests = 2, .files = true, .gpu = fp8});
    };
    const Answers alone = answers(model, {.width = 4});
    EXPECT_NE(alone, answers(plain, {.width = 4})) << family;
    EXPECT_EQ(answers(model, {.tensor = 4, .width = 4}, {1, 2}), alone) << family;
    EXPECT_EQ(answers(model, {.tensor = 2, .stages = 2, .width = 4}), alone) << family;
  }
}

/// A group of GPUs, each on a thread: `work` gets the rank's Ops and its group.
using GroupWork = std::function<void(int rank, kernels::Ops&, kernels::RankGroup&)>;
absl::Status WithGroup(
    int size, const GroupWork& work, std::function<int(int)> device = [](int rank) { return rank; },
    Maker make = MakeGpu) {
  std::vector<std::unique_ptr<Communicator>> hosts = MakeLocalGroup(size);
  std::vector<absl::Status> results(static_cast<size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        const auto ops = make(device(rank));
        Communicator& host = *hosts[static_cast<size_t>(rank)];
        auto group = ops->JoinGroup({rank, size, [&](std::span<const std::byte> mine, std::span<std::byte> all) {
                                       return host.AllGather(mine, all);
                                     }});
        results[static_cast<size_t>(rank)] = group.status();
        if (group.ok()) work(rank, *ops, **group);
        host.TreeAllReduce({}).IgnoreError();  // none leaves before all are done
      });
    }
  }
  for (const absl::Status& status : results) BATON_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

std::vector<float> Floats(int rank, size_t n) {
  std::mt19937 rng(static_cast<unsigned>(rank) * 7 + 1);
  std::vector<float> out(n);
  for (float& x : out)
    x = std::ldexp(static_cast<float>(static_cast<int32_t>(rng())), static_cast<int>(rng() % 40) - 60);
  return out;
}

// Sizes on both sides of the border between one round and two, and some that ranks cannot share evenly.
void ExpectSumsOfTheHostsTree(Maker make) {
  for (const int size : {2, 4, 8}) {
    for (const size_t n : {4u, 1024u, 65536u, 65540u, 131072u, 196612u}) {
      std::vector<std::vector<float>> parts;
      for (int r = 0; r < size; ++r) parts.push_back(Floats(r, n));
      std::vector<const float*> leaves;
      for (const auto& part : parts) leaves.push_back(part.data());
      std::vector<float> want(n);
      TreeSum(leaves, static_cast<int64_t>(n), want.data());
      ASSERT_TRUE(
          WithGroup(
              size,
              [&](int rank, kernels::Ops& ops, kernels::RankGroup& group) {
                const auto buffer = ops.Allocate(n * sizeof(float)).value();
                ops.CopyToDevice(buffer->data(), parts[static_cast<size_t>(rank)].data(), n * sizeof(float));
                EXPECT_TRUE(group.TreeAllReduce(static_cast<float*>(buffer->data()), static_cast<int64_t>(n)).ok());
                std::vector<float> got(n);
                ops.CopyToHost(got.data(), buffer->data(), n * sizeof(float));
                EXPECT_EQ(std::memcmp(got.data(), want.data(), n * sizeof(float)), 0) << size << " ranks, " << n;
                EXPECT_TRUE(group.health().ok()) << group.health();
              },
              [](int rank) { return rank; }, make)
              .ok());
    }
  }
}
TEST(GpuRanks, SumsHaveTheBitsOfTheHostsTree) {
  ExpectSumsOfTheHostsTree(MakeGpu);
  ExpectSumsOfTheHostsTree(MakeGpuOfNccl);
}

// One sum after another, of blocks that not all of them have: a landing is written again while others still read.
TEST(GpuRanks, SumsOfChangingSizesFollowEachOther) {
  constexpr int kSize = 4, kSums = 24;
  const auto length = [](int sum) { return size_t{1024} * static_cast<size_t>(1 + sum * 7 % 5) - 4 * (sum % 3); };
  std::vector<std::vector<float>> want(kSums);
  for (int sum = 0; sum < kSums; ++sum) {
    std::vector<std::vector<float>> parts;
    std::vector<const float*> leaves;
    for (int r = 0; r < kSize; ++r) parts.push_back(Floats(r + 10 * sum, length(sum)));
    for (const auto& part : parts) leaves.push_back(part.data());
    want[static_cast<size_t>(sum)].resize(length(sum));
    TreeSum(leaves, static_cast<int64_t>(length(sum)), want[static_cast<size_t>(sum)].data());
  }
  ASSERT_TRUE(WithGroup(kSize, [&](int rank, kernels::Ops& ops, kernels::RankGroup& group) {
                std::vector<std::unique_ptr<kernels::Buffer>> buffers;
                for (int sum = 0; sum < kSums; ++sum) {
                  const std::vector<float> mine = Floats(rank + 10 * sum, length(sum));
                  buffers.push_back(ops.Allocate(mine.size() * sizeof(float)).value());
                  ops.CopyToDevice(buffers.back()->data(), mine.data(), mine.size() * sizeof(float));
                }
                for (int sum = 0; sum < kSums; ++sum)
                  EXPECT_TRUE(group
                                  .TreeAllReduce(static_cast<float*>(buffers[static_cast<size_t>(sum)]->data()),
                                                 static_cast<int64_t>(length(sum)))
                                  .ok());
                for (size_t sum = 0; sum < kSums; ++sum) {
                  std::vector<float> got(want[sum].size());
                  ops.CopyToHost(got.data(), buffers[sum]->data(), got.size() * sizeof(float));
                  EXPECT_EQ(std::memcmp(got.data(), want[sum].data(), got.size() * sizeof(float)), 0) << sum;
                }
              }).ok());
}

TEST(GpuRanks, WithoutPeerAccessSumsGoByNcclAndSaySo) {
  const auto about = [](Maker make) {
    std::string said;
    EXPECT_TRUE(WithGroup(
                    2,
                    [&](int rank, kernels::Ops& ops, kernels::RankGroup& group) {
                      if (rank == 0) said = group.about();
                      const auto buffer = ops.Allocate(64).value();
                      const std::vector<float> mine(16, 1.5f);
                      ops.CopyToDevice(buffer->data(), mine.data(), 64);
                      EXPECT_TRUE(group.TreeAllReduce(static_cast<float*>(buffer->data()), 16).ok());
                      std::vector<float> got(16);
                      ops.CopyToHost(got.data(), buffer->data(), 64);
                      EXPECT_EQ(got, std::vector<float>(16, 3.0f));
                    },
                    [](int rank) { return rank; }, make)
                    .ok());
    return said;
  };
  EXPECT_EQ(about(MakeGpu), "of up to 262144 bytes over the GPUs' own links, else by NCCL");
  gpu::SetEmulatedPeers(gpu::EmulatedPeers::kNoAccess);
  EXPECT_THAT(about(MakeGpu), HasSubstr("by NCCL, since those over the GPUs' own links cannot be: rank 0: memory of "
                                        "rank 1: no peer access from GPU 0 to 1"));
  gpu::SetEmulatedPeers(gpu::EmulatedPeers::kLost);
  EXPECT_THAT(about(MakeGpu),
              HasSubstr("cannot be: rank 0: what rank 1 wrote at 0 is not there (0, flag 0): they do not "
                        "reach each other, though the driver says so"));
  gpu::SetEmulatedPeers(gpu::EmulatedPeers::kReachable);
  EXPECT_THAT(about(MakeGpuOfNccl), HasSubstr("they are switched off"));
}

// Rank 1 never comes to the sum: rank 0's kernel waits for it until the group is aborted.
TEST(GpuRanks, AnAbortEndsASumThatWaitsForARank) {
  std::atomic<kernels::RankGroup*> waits = nullptr;
  std::atomic<bool> ended = false;
  ASSERT_TRUE(WithGroup(2, [&](int rank, kernels::Ops& ops, kernels::RankGroup& group) {
                if (rank == 1) {
                  waits.wait(nullptr);
                  waits.load()->Abort(absl::UnavailableError("rank 1 does not answer"));
                  ended.wait(false);
                  return;
                }
                const auto buffer = ops.Allocate(64).value();
                EXPECT_TRUE(group.TreeAllReduce(static_cast<float*>(buffer->data()), 16).ok());
                waits = &group;
                waits.notify_all();
                ops.Sync();
                EXPECT_TRUE(absl::IsUnavailable(group.health())) << group.health();
                EXPECT_FALSE(group.TreeAllReduce(static_cast<float*>(buffer->data()), 16).ok());
                ended = true;
                ended.notify_all();
              }).ok());
}

TEST(GpuRanks, OneGpuForTwoRanksIsRefusedByItsName) {
  const absl::Status status = WithGroup(2, [](int, kernels::Ops&, kernels::RankGroup&) {}, [](int) { return 3; });
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("ranks 0 and 1 of a group have the same GPU (emulated-3)"));
}

TEST(GpuRanks, TwoKindsOfGpuInOneGroupAreRefusedByName) {
  gpu::SetEmulatedName(1, "another GPU");
  const absl::Status status = WithGroup(2, [](int, kernels::Ops&, kernels::RankGroup&) {});
  gpu::SetEmulatedName(1, "emulated GPU");
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 has emulated GPU"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 has another GPU"));
}

TEST(GpuRanks, OtherLengthsAreAnErrorOfTheGroup) {
  ASSERT_TRUE(WithGroup(
                  2,
                  [](int rank, kernels::Ops& ops, kernels::RankGroup& group) {
                    const auto buffer = ops.Allocate(4096).value();
                    const int64_t n = rank == 0 ? 16 : 32;
                    EXPECT_TRUE(group.TreeAllReduce(static_cast<float*>(buffer->data()), n).ok()) << "it is enqueued";
                    ops.Sync();
                    EXPECT_THAT(std::string(group.health().message()), HasSubstr("other lengths"));
                    EXPECT_FALSE(group.TreeAllReduce(static_cast<float*>(buffer->data()), n).ok());
                  },
                  [](int rank) { return rank; }, MakeGpuOfNccl)
                  .ok());
}

TEST(GpuRanks, ARankWhoseNcclFailsSaysSoAndAnAbortEndsTheOthers) {
  gpu::FailInEmulatedNccl(1, 1);
  kernels::RankGroup* of_rank_0 = nullptr;
  ASSERT_TRUE(WithGroup(2, [&](int rank, kernels::Ops& ops, kernels::RankGroup& group) {
                if (rank == 0) of_rank_0 = &group;
                const auto buffer = ops.Allocate(128).value();
                char* all = static_cast<char*>(buffer->data());
                for (int call = 0; call < 2; ++call) {
                  const absl::Status status = group.AllGather(all + rank * 64, 64, all);
                  // It may fail while its caller still asks how it is.
                  EXPECT_TRUE(status.ok() || rank == 0 || !group.health().ok()) << status;
                }
                ops.Sync();
                EXPECT_FALSE(group.health().ok());
                EXPECT_FALSE(group.AllGather(all + rank * 64, 64, all).ok());
                if (rank == 0) return;
                EXPECT_THAT(std::string(group.health().message()), HasSubstr("rank 1 of 2, NCCL: internal error"));
                of_rank_0->Abort(absl::UnavailableError("rank 1 failed"));
              }).ok());
  gpu::FailInEmulatedNccl(-1, 0);
}

TEST(GpuRanks, AnErrorOfCudaWithinNcclIsNamed) {
  ASSERT_TRUE(WithGroup(2, [](int rank, kernels::Ops& ops, kernels::RankGroup& group) {
                const auto buffer = ops.Allocate(128).value();
                if (rank == 1) return;
                gpu::RefuseInEmulatedNccl(0, false);
                const absl::Status status = group.Send(1, buffer->data(), 64);
                EXPECT_EQ(status.message(),
                          "rank 0 of 2, NCCL: unhandled cuda error (emulated NCCL): Cuda failure 2 'out of memory'");
                EXPECT_EQ(group.health(), status);
              }).ok());
}

// NCCL's abort waits for recorded steps; whoever breaks the group does not wait for it.
TEST(GpuRanks, AGroupIsBrokenWhileARecordedStepHasIt) {
  RankThreads ranks(OptionsOf({.shape = {.tensor = 2}, .recorded = {1}, .gpu = MakeGpuOfNccl}));
  SteppedEngineOptions options;
  options.layout = ranks.layout();
  SteppedEngine h(options, nullptr, ranks.model(), ranks.ops(), ranks.channel.get());
  ASSERT_TRUE(h.Add(MakeRequest(1, RandomTokens(3, 20, 300), 8)).ok());
  while (ranks.ops().device_work().replays == 0) ASSERT_TRUE(h.Step());
  ranks.Abort(absl::UnavailableError("rank 1 does not answer"));
  while (gpu::AbortingInEmulatedNccl() == 0) std::this_thread::yield();
  h.RunAll();
  EXPECT_TRUE(absl::IsUnavailable(h.answers[{1, 0}].error)) << h.answers[{1, 0}].error;
}

TEST(GpuRanks, ACallThatFailsWhileAStepIsRecordedIsTheGroupsError) {
  gpu::RefuseInEmulatedNccl(0, true);
  RankThreads ranks(OptionsOf({.shape = {.tensor = 2}, .recorded = {1}, .gpu = MakeGpuOfNccl}));
  SteppedEngineOptions options;
  options.layout = ranks.layout();
  SteppedEngine h(options, nullptr, ranks.model(), ranks.ops(), ranks.channel.get());
  ASSERT_TRUE(h.Add(MakeRequest(1, RandomTokens(3, 20, 300), 8)).ok());
  h.RunAll();
  EXPECT_THAT(std::string(h.answers[{1, 0}].error.message()), HasSubstr("Cuda failure 2 'out of memory'"));
  ranks.Abort(absl::UnavailableError("rank 0 failed"));
}

TEST(GpuRanksDeathTest, AGpuThatFailsWithinNcclEndsTheProcessByItsOwnError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        WithGroup(2, [](int rank, kernels::Ops& ops, kernels::RankGroup& group) {
          const auto buffer = ops.Allocate(128).value();
          gpu::SetEmulatedFault("uncorrectable ECC error encountered");
          group.Send(1 - rank, buffer->data(), 64).IgnoreError();
        }).IgnoreError();
      },
      testing::ExitedWithCode(8), HasSubstr("the GPU failed: uncorrectable ECC error encountered (cuda:"));
}

TEST(GpuRanks, ABrokenHostLinkEndsWhatWaitsOnTheGpu) {
  RankThreads ranks(OptionsOf({.shape = {.tensor = 2}, .gpu = MakeGpuOfNccl}));
  SteppedEngineOptions options;
  options.layout = ranks.layout();
  SteppedEngine h(options, nullptr, ranks.model(), ranks.ops(), ranks.channel.get());
  ASSERT_TRUE(h.Add(MakeRequest(1, RandomTokens(3, 20, 300), 8)).ok());
  gpu::HangInEmulatedNccl(1, 20);  // some steps on
  bool hung = false;
  std::jthread watch([&](const std::stop_token& stop) {
    while (!hung && !stop.stop_requested()) {
      hung = gpu::HangingInEmulatedNccl() > 0;
      std::this_thread::yield();
    }
    ranks.Abort(absl::UnavailableError("rank 1 does not answer"));
  });
  h.RunAll();
  watch.request_stop();
  watch.join();
  gpu::HangInEmulatedNccl(-1, 0);
  EXPECT_TRUE(hung);
  EXPECT_TRUE(absl::IsUnavailable(h.answers[{1, 0}].error)) << h.answers[{1, 0}].error;
}

}  // namespace
}  // namespace baton::engine
