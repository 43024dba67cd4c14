// KV between workers on CPUs and on (emulated) GPUs, slot by slot: every pair of kinds answers, faults and early
// gathers are found by digest.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "engine/step/executor.h"
#include "tests/engine/model/kv_scaled.h"
#include "tests/worker/device_sides.h"
#include "worker/ranks/mover_check.h"

namespace baton::worker {
namespace {

// The decode worker goes on from KV that it did not compute; where both sides are of one kind, with the bits of one
// worker alone.
TEST(DeviceHandoff, EveryPairOfKindsAnswers) {
  const std::vector<int32_t> prompt = Prompt(75);
  for (const Kind& target : Kinds()) {
    Side alone(target, "both", 16), to(target, "decode", 32);
    InTwoChunks(alone, prompt);
    const std::vector<float> want = alone.Compute({99}, 75);
    for (const Kind& source : Kinds()) {
      SCOPED_TRACE(source.name + " to " + target.name);
      Side from(source, "prefill", 16);
      InTwoChunks(from, prompt);
      const absl::Status moved = Handoff(from, to, 75).Run();
      ASSERT_TRUE(moved.ok()) << moved;
      const std::vector<float> got = to.Compute({99}, 75);
      ExpectAsAlone(got, want, source, target);
    }
  }
}

// A checkpoint's scales of KV in fp8 count where one side keeps it so, and are those of both where both do; of two KV
// groups as of one.
TEST(DeviceHandoff, ScalesOfACheckpointCountOnEitherSide) {
  for (const char* family : {"llama3", "gemma3"}) {
    const engine::KvScaledModel model(family, nullptr, {{"sliding_window", 32}});
    std::vector<int32_t> prompt = Prompt(75);
    for (int32_t& token : prompt) token = 3 + token % 300;
    for (const Kind& target : Kinds()) {
      if (family == std::string("gemma3") && target.kv != "fp8") continue;  // one kind shows what windows add
      Side alone(target, "both", 16, model.path(), "auto"), to(target, "decode", 32, model.path(), "auto");
      EXPECT_EQ(alone.pool().groups[0].planes[1][1].scale, engine::ValueScale(alone.side().layout.groups[0].layers[1]));
      InTwoChunks(alone, prompt);
      const std::vector<float> want = alone.Compute({99}, 75);
      for (const Kind& source : Kinds()) {
        SCOPED_TRACE(StrCat(family, ": ", source.name, " to ", target.name));
        Side from(source, "prefill", 16, model.path(), "auto");
        EXPECT_EQ(from.loaded().model->config().digest, alone.loaded().model->config().digest);
        InTwoChunks(from, prompt);
        const absl::Status moved = Handoff(from, to, 75).Run();
        ASSERT_TRUE(moved.ok()) << moved;
        const std::vector<float> got = to.Compute({99}, 75);
        ExpectAsAlone(got, want, source, target);
      }
    }
  }
}

// Two KV groups: layers that see everything, and layers of a window, whose older blocks do not travel.
TEST(DeviceHandoff, LayersOfAWindowTravelBesideTheOthers) {
  const std::filesystem::path model = std::filesystem::path(testing::TempDir()) / "tiny-gemma3";
  std::filesystem::create_directories(model);
  std::ofstream(model / "config.json") << R"({"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"],
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 548, "max_position_embeddings": 2048, "sliding_window": 32,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "eos_token_id": 2})";
  const std::vector<int32_t> prompt = Prompt(75);
  const std::pair<Kind, Kind> pairs[] = {{kGpuBf16, kGpuBf16}, {CpuOfFewestBits(), kGpuFp8}, {kGpuFp8, kCpuFloat32}};
  for (const auto& [p, d] : pairs) {
    SCOPED_TRACE(p.name + " to " + d.name);
    Side from(p, "prefill", 16, model), to(d, "decode", 32, model), alone(d, "both", 32, model);
    ASSERT_EQ(from.tables().size(), 2u);
    for (Side* one : {&from, &alone}) {
      one->Compute({prompt.begin(), prompt.begin() + 64}, 0);
      one->Compute({prompt.begin() + 64, prompt.end()}, 64);
    }
    const absl::Status moved = Handoff(from, to, 75).Run();
    ASSERT_TRUE(moved.ok()) << moved;
    const std::vector<float> want = alone.Compute({99}, 75), got = to.Compute({99}, 75);
    if (p.name == d.name)
      EXPECT_EQ(got, want);
    else
      EXPECT_LT(Distance(want, got), 0.15);
  }
}

// The device may be busy with the layers before: a layer's KV is there when WhenDone says so, not when it was
// asked for.
TEST(DeviceHandoff, ALayerIsGatheredWhenItIsDoneAndAnEarlyGatherIsFound) {
  Side from(kGpuBf16, "prefill", 16), to(kGpuBf16, "decode", 16);
  const std::vector<int32_t> prompt = Prompt(48);
  Handoff handoff(from, to, 48);
  std::vector<int> early, done;
  from.Compute(prompt, 0, [&](int layer) {
    if (!handoff.Gather(handoff.SegmentsOf(layer)).ok()) early.push_back(layer);
    from.ops().WhenDone([&done, layer] { done.push_back(layer); });
  });
  EXPECT_EQ(early, (std::vector<int>{0, 1, 2})) << "gathered as soon as they were asked for";
  EXPECT_EQ(done, (std::vector<int>{0, 1, 2}));
  EXPECT_TRUE(handoff.Run().ok());
}

TEST(DeviceHandoff, DamageOnTheWayIsFoundAndRepeatingTheSegmentHeals) {
  Side from(kCpuFloat32, "prefill", 16), to(kGpuFp8, "decode", 16);
  from.Compute(Prompt(40), 0);
  Handoff handoff(from, to, 40);
  ASSERT_TRUE(handoff.Gather(handoff.Segments()).ok());
  std::vector<std::byte>& slot = handoff.slot();
  const std::byte was = std::exchange(slot[5000], slot[5000] ^ std::byte{4});
  const absl::Status damaged = handoff.Scatter(handoff.Segments());
  EXPECT_TRUE(absl::IsDataLoss(damaged)) << damaged;
  EXPECT_THAT(std::string(damaged.message()), testing::HasSubstr("damaged on the way at layer 0"));
  slot[5000] = was;
  EXPECT_TRUE(handoff.Scatter(handoff.Segments()).ok());
}

// What a sender hands on came by a handoff itself: the digests that the scatter left beside the blocks fit.
TEST(DeviceHandoff, KvThatWasPlacedIsHandedOn) {
  for (const Kind& middle : {kGpuBf16, kGpuFp8}) {
    Side first(CpuOfFewestBits(), "prefill", 16), second(middle, "prefill", 32), third(kCpuFloat32, "decode", 16);
    first.Compute(Prompt(48), 0);
    EXPECT_TRUE(Handoff(first, second, 48).Run().ok());
    const absl::Status moved = Handoff(second, third, 48).Run();
    EXPECT_TRUE(moved.ok()) << moved;
  }
}

TEST(DeviceHandoff, ABlockThatIsNotThereIsNamed) {
  Side from(kGpuBf16, "prefill", 16), to(kCpuFloat32, "decode", 16);
  from.Compute(Prompt(16), 0);
  const absl::Status status = Handoff(from, to, 48).Run();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("no longer holds what was computed"));
}

// The KV is the device's: the host cannot read it but through the mover.
TEST(DeviceHandoffDeathTest, TheHostCannotReadTheKv) {
  Side side(kGpuBf16, "prefill", 16);
  KvPoolView pool = side.pool();
  ASSERT_EQ(pool.movers.size(), 1u);
  EXPECT_DEATH(
      {
        volatile auto first = *pool.groups[0].planes[0][0].base;
        static_cast<void>(first);
      },
      "");
}

TEST(DeviceHandoff, AWorkerOfBothRolesAndOneOnACpuHaveNoMover) {
  EXPECT_TRUE(Side(kGpuBf16, "both", 16).pool().movers.empty());
  EXPECT_TRUE(Side(kCpuFloat32, "decode", 16).pool().movers.empty());
}

/// Moves KV as another does, but for one thing.
class WrongMover final : public KvMover {
 public:
  enum class Fault { kNone, kBytes, kDigest, kTrustsItsSource, kPlacesNothing, kFetchesNothing };
  WrongMover(KvMover& right, Fault fault) : right_(right), fault_(fault) {}
  std::span<std::byte> staging() override { return right_.staging(); }
  bool Converts(DType packed, DType cached) const override { return right_.Converts(packed, cached); }
  KvOutbox outbox() const override { return right_.outbox(); }
  absl::StatusOr<std::shared_ptr<OpenedOutbox>> Open(std::string_view card) override { return right_.Open(card); }
  absl::Status Fetch(const OpenedOutbox& from, int64_t at, int64_t to, int64_t bytes) override {
    return fault_ == Fault::kFetchesNothing ? absl::OkStatus() : right_.Fetch(from, at, to, bytes);
  }
  absl::Status Gather(std::span<const KvMove> moves, std::span<KvMoved> segments, KvPacked to) override {
    absl::Status status = right_.Gather(moves, segments, to);
    if (fault_ == Fault::kBytes) staging()[100] ^= std::byte{1};
    if (fault_ == Fault::kDigest) ++segments.back().digest;
    if (fault_ == Fault::kTrustsItsSource) segments.front().unkept = 0;
    return status;
  }
  absl::Status Scatter(std::span<const KvMove> moves, std::span<KvMoved> segments, KvPacked from) override {
    if (fault_ == Fault::kPlacesNothing) return absl::OkStatus();
    return right_.Scatter(moves, segments, from);
  }

 private:
  KvMover& right_;
  const Fault fault_;
};

TEST(DeviceHandoff, AGpuThatMovesKvWronglyIsFoundAtTheStart) {
  using Fault = WrongMover::Fault;
  const SteadyClock clock;
  for (const Kind& kind : {kGpuBf16, kGpuFp8}) {
    Side side(kind, "decode", 16);
    const auto check = [&](Fault fault) {
      WrongMover mover(*side.loaded().mover, fault);
      const auto rates = CheckMover(side.ops(), mover, side.ops().traits().kv, 64, clock);
      return rates.ok() ? std::string() : std::string(rates.status().message());
    };
    EXPECT_EQ(check(Fault::kNone), "");
    EXPECT_THAT(check(Fault::kBytes), testing::HasSubstr("gathers other bytes than were there, in block 0"));
    EXPECT_THAT(check(Fault::kDigest), testing::HasSubstr("with digest"));
    EXPECT_THAT(check(Fault::kTrustsItsSource), testing::HasSubstr("0 units that differ instead of 1"));
    EXPECT_THAT(check(Fault::kPlacesNothing), testing::HasSubstr("scatters other bytes than were there"));
    EXPECT_THAT(check(Fault::kFetchesNothing), testing::HasSubstr("fetches other bytes than were there"));
  }
}

// Nobody waits for a step that draws nothing. Where KV is handed over it is over all the same, so that its blocks may
// be given back and to a ticket: else it would write them after the ticket's KV was placed.
TEST(DeviceHandoff, AStepThatDrawsNothingIsOverWhenItsBlocksMayBeGivenBack) {
  Side from(kGpuBf16, "decode", 16), to(kGpuBf16, "decode", 16);
  engine::StepPlan plan{.step = 1, .total_tokens = 32};
  plan.add.push_back({.id = 1, .tokens = Prompt(40), .prompt_len = 40});
  plan.sequences.push_back({.id = 1, .num_tokens = 32, .block_tables = from.tables()});
  engine::Executor executor(*from.loaded().model, *from.loaded().memory, from.ops());
  const absl::StatusOr<engine::StepResult> result = executor.Execute(plan);
  ASSERT_TRUE(result.ok() && !result->sequences[0].sampled) << result.status();
  EXPECT_TRUE(Handoff(from, to, 32).Run().ok()) << "gathered on another stream, with no further wait";

  Side both(kGpuBf16, "both", 16);
  engine::Executor alone(*both.loaded().model, *both.loaded().memory, both.ops());
  const int64_t waits = both.ops().device_work().waits;
  ASSERT_TRUE(alone.Execute(plan).ok());
  EXPECT_EQ(both.ops().device_work().waits, waits) << "a worker of both roles hands nothing over";
}

}  // namespace
}  // namespace baton::worker
