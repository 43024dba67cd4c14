// KV between workers on CPUs and on (emulated) GPUs, slot by slot: every pair of kinds answers, faults and early
// gathers are found by digest.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <utility>

#include "engine/step/executor.h"
#include "kvtransfer/slot_format.h"
#include "tests/engine/model/kv_scaled.h"
#include "worker/process/start_up.h"
#include "worker/ranks/mover_check.h"
#include "worker/transfer/kv_pool_view.h"

namespace baton::worker {
namespace {

constexpr size_t kSlotBytes = 1 << 18;

struct Kind {
  std::string name, device, dtype, kv;
};
const Kind kCpuFloat32{"CPU float32", "cpu", "float32", "auto"}, kCpuBf16{"CPU bfloat16", "cpu", "bfloat16", "auto"},
    kGpuBf16{"GPU bfloat16", "cuda", "auto", "auto"}, kGpuFp8{"GPU fp8", "cuda", "auto", "fp8"};
/// Not every CPU computes in bfloat16.
const Kind& CpuOfFewestBits() {
  static const bool bf16 = kernels::MakeCpuOps({.dtype = DType::kBF16}).ok();
  return bf16 ? kCpuBf16 : kCpuFloat32;
}
/// Those that there are here.
std::vector<Kind> Kinds() {
  std::vector<Kind> out = {kCpuFloat32, kGpuBf16, kGpuFp8};
  if (CpuOfFewestBits().name != kCpuFloat32.name) out.push_back(CpuOfFewestBits());
  return out;
}

/// A worker's model and KV of one sequence, in blocks of its own size.
class Side {
 public:
  Side(const Kind& kind, const std::string& role, int block, const std::string& model = "tests/data/tiny-llama",
       const std::string& load_format = "dummy") {
    WorkerConfig c;
    c.role = role;
    c.model = model;
    c.load_format = load_format;
    c.threads = 1;
    c.max_num_seqs = 2;
    c.max_model_len = 128;
    c.max_num_batched_tokens = 64;
    c.device = kind.device;
    c.dtype = kind.dtype;
    c.kv_cache_dtype = kind.kv;
    c.block_size = block;
    c.enforce_eager = kind.device == "cuda";
    c.landing_slot_bytes = kSlotBytes;
    c.kv_cache_memory = 4 << 20;
    if (kind.device == "cuda") c.device_plugin = EMULATED_PLUGIN;
    StartUpProgress progress;
    absl::StatusOr<LoadedModel> loaded = StartUp(c, progress);
    if (!loaded.ok()) {
      ADD_FAILURE() << kind.name << " as " << role << ": " << loaded.status();
      std::abort();
    }
    loaded_ = *std::move(loaded);
    tables_.assign(loaded_.model->kv_layout().groups.size(), {5, 1, 3, 0, 2, 4, 7, 6});
    tables_.back() = {7, 0, 6, 1, 5, 2, 4, 3};
    for (const int32_t blocks : loaded_.memory->num_blocks()) EXPECT_GE(blocks, 8) << "fewer than a table names";
  }

  KvSide side() const { return SideOf(loaded_.model->kv_layout()); }
  KvPoolView pool() const { return PoolViewOf(loaded_.AllMemory(), loaded_.AllMovers()); }
  const KvBlockTables& tables() const { return tables_; }
  kernels::Ops& ops() { return *loaded_.ops; }
  LoadedModel& loaded() { return loaded_; }

  /// Logits of the last of `tokens`, which follow `context` tokens.
  std::vector<float> Compute(const std::vector<int32_t>& tokens, int32_t context,
                             std::function<void(int)> on_layer = nullptr) {
    const auto n = static_cast<int32_t>(tokens.size());
    const std::vector<int32_t> row_start{0, n}, before{context}, rows{n - 1};
    engine::ForwardBatch batch{.tokens = tokens, .logit_rows = rows, .on_layer_kv = std::move(on_layer)};
    for (const std::vector<int32_t>& table : tables_) {
      batch.groups.push_back({.row_start = row_start,
                              .context = before,
                              .block_tables = table,
                              .table_stride = static_cast<int64_t>(table.size())});
    }
    const std::atomic<bool> cancel{false};
    const auto logits = loaded_.model->Forward(batch, loaded_.memory->groups(), cancel).value();
    std::vector<float> out(static_cast<size_t>(logits.cols()));
    loaded_.ops->CopyToHost(out.data(), logits.data, out.size() * sizeof(float));
    return out;
  }

 private:
  LoadedModel loaded_;
  KvBlockTables tables_;
};

std::vector<int32_t> Prompt(int n) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back((i * 37 + 11) % 540 + 3);
  return tokens;
}

double Distance(const std::vector<float>& want, const std::vector<float>& got) {
  double squares = 0, errors = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    squares += double{want[i]} * want[i];
    errors += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
  }
  return std::sqrt(errors / squares);
}

/// The transfer of a prompt's KV in slots of one segment or more.
class Handoff {
 public:
  Handoff(Side& from, Side& to, int tokens)
      : from_(from), to_(to), plan_(TransferPlan::Make(from.side(), to.side(), {0, tokens}, 32).value()) {}

  const LanePlan& lane() const { return plan_.lanes()[0]; }
  std::vector<uint32_t> Segments() const {
    std::vector<uint32_t> all(static_cast<size_t>(lane().segments));
    for (uint32_t i = 0; i < all.size(); ++i) all[i] = i;
    return all;
  }
  /// Of layer 0 … n - 1 of the model, which are in the plan's order.
  std::vector<uint32_t> SegmentsOf(int layer) const {
    std::vector<uint32_t> found;
    for (const uint32_t s : Segments())
      if (plan_.SegmentAt(lane(), static_cast<int>(s)).layer == layer) found.push_back(s);
    return found;
  }
  absl::Status Gather(const std::vector<uint32_t>& segments) {
    const auto bytes = GatherSlot(plan_, lane(), kKey, 1, segments, from_.pool(), from_.tables(), slot_);
    return bytes.status();
  }
  absl::Status Scatter(const std::vector<uint32_t>& segments) {
    const absl::StatusOr<SlotContent> content = ReadSlot(slot_, kKey, 1);
    if (!content.ok()) return content.status();
    return VerifyAndScatterSlot(plan_, lane(), *content, segments, to_.pool(), to_.tables());
  }
  absl::Status Run() {
    for (const uint32_t segment : Segments()) {
      if (absl::Status s = Gather({segment}); !s.ok()) return s;
      if (absl::Status s = Scatter({segment}); !s.ok()) return s;
    }
    return absl::OkStatus();
  }
  std::vector<std::byte>& slot() { return slot_; }

 private:
  static constexpr LaneKey kKey{7, 1, 0};
  Side &from_, &to_;
  const TransferPlan plan_;
  std::vector<std::byte> slot_ = std::vector<std::byte>(kSlotBytes);
};

void InTwoChunks(Side& side, const std::vector<int32_t>& prompt) {
  side.Compute({prompt.begin(), prompt.begin() + 64}, 0);
  side.Compute({prompt.begin() + 64, prompt.end()}, 64);
}

// The bits of one worker alone where both are of one kind.
void ExpectAsAlone(const std::vector<float>& got, const std::vector<float>& want, const Kind& source,
                   const Kind& target) {
  if (source.name == target.name)
    EXPECT_EQ(got, want);
  else
    EXPECT_LT(Distance(want, got), source.kv == "fp8" || target.kv == "fp8" ? 0.15 : 0.04);
}

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
  enum class Fault { kNone, kBytes, kDigest, kTrustsItsSource, kPlacesNothing };
  WrongMover(KvMover& right, Fault fault) : right_(right), fault_(fault) {}
  std::span<std::byte> staging() override { return right_.staging(); }
  bool Converts(DType packed, DType cached) const override { return right_.Converts(packed, cached); }
  absl::Status Gather(std::span<const KvMove> moves, std::span<KvMoved> segments) override {
    absl::Status status = right_.Gather(moves, segments);
    if (fault_ == Fault::kBytes) staging()[100] ^= std::byte{1};
    if (fault_ == Fault::kDigest) ++segments.back().digest;
    if (fault_ == Fault::kTrustsItsSource) segments.front().unkept = 0;
    return status;
  }
  absl::Status Scatter(std::span<const KvMove> moves, std::span<KvMoved> segments) override {
    if (fault_ == Fault::kPlacesNothing) return absl::OkStatus();
    return right_.Scatter(moves, segments);
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
