// A quantized model on a GPU keeps its codes: fewer bytes, and the bits of the bf16 weights that the codes stand
// for.
#include <gtest/gtest.h>

#include "engine/model/decoder.h"
#include "engine/model/files/gguf_dequant.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/quantized/checkpoint_formats.h"
#include "tests/engine/model/kv_scaled.h"
#include "tests/engine/model/quantized_files.h"
#include "tests/engine/model/random_steps.h"

namespace baton::engine {
namespace {

kernels::QuantizedWeight Unpacked(GgmlType type, const std::string& blocks, const WeightRule& rule) {
  const auto bytes = std::as_bytes(std::span(blocks));
  const int n = static_cast<int>(rule.rows()), k = static_cast<int>(rule.columns());
  return (type == GgmlType::kQ4_0 ? kernels::UnpackQ4_0(bytes, n, k) : kernels::UnpackQ8_0(bytes, n, k)).value();
}

// Of every kind, the room for other forms of codes too, in steps long enough that there is all of it, at once and in
// pieces.
void ExpectPlannedMemory(const ModelSource& source, bool codes) {
  const RandomLimits limits{.rows = static_cast<int>(kernels::kExpandRows)};
  for (const size_t work_bytes : {size_t{kernels::kDeviceWorkBytes}, size_t{1}}) {
    auto on = LoadOnDevice(source, limits, {.work_bytes = work_bytes});
    ASSERT_TRUE(on.ok()) << on.status();
    const auto planned = PlanRankMemory(source, on->ops->traits(), limits.rows);
    ASSERT_TRUE(planned.ok()) << planned.status();
    EXPECT_EQ(planned->memory, dynamic_cast<const Decoder&>(*on->model).memory()) << source.path << ", " << work_bytes;
    EXPECT_EQ(planned->memory.rooms.codes > 0, codes) << source.path;
    ModelSource small = source;
    small.memory_limit_bytes = planned->memory.Total() - on->ops->rooms().scales - 1;
    EXPECT_TRUE(absl::IsResourceExhausted(LoadOnDevice(small, limits, {.work_bytes = work_bytes}).status()));
  }
}

class DeviceCodes : public testing::TestWithParam<GgmlType> {
 protected:
  // blocks.gguf has codes in every matrix, floats.gguf what a GPU multiplies with, rounded to bf16.
  DeviceCodes() {
    std::ifstream in("tests/engine/model/goldens/llama2/config.json");
    nlohmann::json hf = nlohmann::json::parse(in);
    hf["hidden_size"] = 128;
    hf["intermediate_size"] = 192;
    hf["num_hidden_layers"] = 2;
    hf["num_attention_heads"] = 2;
    hf["num_key_value_heads"] = 1;
    hf["head_dim"] = 64;
    const ModelConfig config = ParseHfConfig(hf, "C")->config;
    const auto blocks = [](const WeightRule& rule) {
      const auto seed = static_cast<uint32_t>(1000 * rule.layer + static_cast<int>(rule.weight));
      return RandomBlocks(GetParam(), rule.rows(), rule.columns(), seed);
    };
    const auto floats = [&blocks](const WeightRule& rule) {
      const std::string stored = blocks(rule);
      std::vector<uint16_t> values;
      if (rule.weight == Weight::kEmbedding) {  // looked up, not multiplied with
        std::vector<float> exact(static_cast<size_t>(rule.elements()));
        Dequantize(GetParam(), reinterpret_cast<const uint8_t*>(stored.data()), rule.elements(), exact.data());
        for (const float x : exact) values.push_back(Bf16OfFloat(x));
      } else {
        values = kernels::DequantizedBf16(Unpacked(GetParam(), stored, rule));
      }
      return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(uint16_t));
    };
    directory_.Write("blocks.gguf", GgufBytes(config, "llama", hf, GetParam(), blocks));
    directory_.Write("floats.gguf", GgufBytes(config, "llama", hf, GgmlType::kBF16, floats));
  }
  ModelSource Source(const std::string& name, int width) const {
    ModelSource source = SourceWithin(directory_.path() + "/" + name, limits_);
    source.dummy_weights = false;
    source.place = RankPlace::Of(0, 1, 1, width);
    return source;
  }

  const RandomLimits limits_;
  TempDirectory directory_;
};

TEST_P(DeviceCodes, HaveTheBitsOfTheBf16WeightsTheyStandFor) {
  for (const int width : {1, 2}) {  // 2: columns are cut as for two ranks
    auto codes = LoadOnDevice(Source("blocks.gguf", width), limits_, {}),
         floats = LoadOnDevice(Source("floats.gguf", width), limits_, {});
    ASSERT_TRUE(codes.ok() && floats.ok()) << codes.status() << floats.status();
    std::mt19937 random(31);
    const int vocab = codes->model->config().vocab_size;
    for (const int kind : {0, 1, 2, 3, 0, 1}) {
      const RandomStep step = MakeStep(kind, limits_, vocab, random);
      const auto got = RunStep(*codes, step), want = RunStep(*floats, step);
      ASSERT_TRUE(got.ok() && want.ok()) << got.status() << want.status();
      ASSERT_EQ(got->logits, want->logits) << "width " << width << ", " << step.tokens.size() << " rows";
    }
  }
}

TEST_P(DeviceCodes, TakeTheBytesThatWerePlanned) {
  const auto bytes = [&](const std::string& name) {
    auto on = LoadOnDevice(Source(name, 1), limits_, {}).value();
    const int64_t taken = static_cast<int64_t>(on.model->weight_bytes());
    EXPECT_EQ(taken, InspectModel(Source(name, 1), on.ops->traits(), limits_.rows).value().weight_bytes) << name;
    return static_cast<double>(taken);
  };
  // A code of 4 or 8 bits and its part of a group's scale and zero, against 16 bits; the embedding stays as it is.
  EXPECT_LT(bytes("blocks.gguf") / bytes("floats.gguf"), GetParam() == GgmlType::kQ4_0 ? 0.6 : 0.8);
}

TEST_P(DeviceCodes, TakeTheWorkingMemoryThatWasPlanned) {
  for (const int width : {1, 2}) {
    ExpectPlannedMemory(Source("blocks.gguf", width), true);
    ExpectPlannedMemory(Source("floats.gguf", width), false);
  }
}

/// Root mean square of the difference, as a part of b's.
double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += std::pow(a[i] - b[i], 2);
    size += std::pow(b[i], 2);
  }
  return std::sqrt(error / size);
}

// AWQ, GPTQ, compressed-tensors and FP8.
class DeviceHfCodes : public testing::TestWithParam<CodesCase> {
 protected:
  absl::StatusOr<DeviceModel> Load(const std::string& path, RankPlace place) {
    return LoadOnDevice(Source(path, place), limits_, {});
  }
  ModelSource Source(const std::string& path, RankPlace place) const {
    ModelSource source = SourceWithin(path, limits_);
    source.dummy_weights = false;
    source.place = place;
    return source;
  }
  const RandomLimits limits_;
  const QuantizedModel model_{GetParam()};
};

// Inputs in an order of their own are summed up in it.
TEST_P(DeviceHfCodes, HaveTheBitsOfTheBf16WeightsTheyStandFor) {
  for (const int width : {1, 4}) {  // columns are cut as for so many ranks, through groups too
    auto codes = Load(model_.codes(), RankPlace::Of(0, 1, 1, width)),
         floats = Load(model_.floats(), RankPlace::Of(0, 1, 1, width));
    ASSERT_TRUE(codes.ok() && floats.ok()) << codes.status() << floats.status();
    std::mt19937 random(31);
    for (const int kind : {0, 1, 2, 3}) {
      const RandomStep step = MakeStep(kind, limits_, codes->model->config().vocab_size, random);
      const auto got = RunStep(*codes, step), want = RunStep(*floats, step);
      ASSERT_TRUE(got.ok() && want.ok()) << got.status() << want.status();
      if (!GetParam().ordered) {
        ASSERT_EQ(got->logits, want->logits) << "width " << width << ", " << step.tokens.size() << " rows";
      }
      ASSERT_LT(Distance(got->logits, want->logits), 0.02)
          << "width " << width << ", " << step.tokens.size() << " rows";
    }
  }
}

TEST_P(DeviceHfCodes, TakeTheBytesThatWerePlannedOnEveryRank) {
  const auto bytes = [&](const std::string& path, RankPlace place) {
    auto on = Load(path, place).value();
    const int64_t taken = static_cast<int64_t>(on.model->weight_bytes());
    EXPECT_EQ(taken, InspectModel(Source(path, place), on.ops->traits(), limits_.rows).value().weight_bytes);
    return static_cast<double>(taken);
  };
  for (const int width : {1, 2}) {
    const RankPlace place = RankPlace::Of(0, 1, 1, width);
    const double part = bytes(model_.codes(), place) / bytes(model_.floats(), place);
    EXPECT_LT(part, GetParam().bits == 4 ? 0.5 : 0.8);
  }
}

TEST_P(DeviceHfCodes, TakeTheWorkingMemoryThatWasPlanned) {
  for (const int width : {1, 4}) ExpectPlannedMemory(Source(model_.codes(), RankPlace::Of(0, 1, 1, width)), true);
}

// A GPU multiplies codes with codes, a CPU what they stand for. An input that lies between two codes may become either
// of them, so that only what a scale cuts off tells rounded inputs from others here: a layer's sums are
// ops_rounded_linear_test's.
class DeviceRounded : public DeviceHfCodes {};
TEST_P(DeviceRounded, InputsMeanOnAGpuWhatTheyMeanOnACpu) {
  for (const int width : {1, 4}) {
    const RankPlace place = RankPlace::Of(0, 1, 1, width);
    auto codes = Load(model_.codes(), place), floats = Load(model_.floats(), place);
    auto host = LoadOn(*kernels::MakeCpuOps({.dtype = DType::kBF16, .emulate_bf16 = true}),
                       Source(model_.codes(), place), limits_);
    if (absl::IsFailedPrecondition(host.status())) GTEST_SKIP() << host.status();  // no bf16 on this CPU
    ASSERT_TRUE(codes.ok() && floats.ok() && host.ok()) << codes.status() << floats.status() << host.status();
    std::mt19937 random(31);
    for (const int kind : {0, 1, 2}) {
      const RandomStep step = MakeStep(kind, limits_, codes->model->config().vocab_size, random);
      const auto got = RunStep(*codes, step), want = RunStep(*host, step), plain = RunStep(*floats, step);
      ASSERT_TRUE(got.ok() && want.ok() && plain.ok()) << got.status() << want.status() << plain.status();
      const double near = Distance(got->logits, want->logits), far = Distance(got->logits, plain->logits);
      const bool cut = GetParam().inputs == std::string("static");
      EXPECT_LT(near, cut ? 0.5 * far : 0.3) << "width " << width << ", " << step.tokens.size() << " rows, " << far;
      EXPECT_GT(far, cut ? 0.3 : 0.01);
      EXPECT_LT(far, cut ? 2 : 0.4);
    }
  }
}
TEST_P(DeviceRounded, TakeTheWorkingMemoryThatWasPlanned) {
  for (const int width : {1, 4}) ExpectPlannedMemory(Source(model_.codes(), RankPlace::Of(0, 1, 1, width)), true);
}
INSTANTIATE_TEST_SUITE_P(Formats, DeviceRounded, testing::Values(kRoundedCase, kRoundedTensorCase, kRoundedFixedCase),
                         [](const auto& info) { return std::string(info.param.name); });

INSTANTIATE_TEST_SUITE_P(Formats, DeviceHfCodes,
                         testing::Values(kAwqCase, kGptqCase, kOrderedCase, kGptq8Case, kOrdered8Case, kPackedCase,
                                         kFloat8Case, kFloat8TensorCase),
                         [](const auto& info) { return std::string(info.param.name); });

INSTANTIATE_TEST_SUITE_P(Formats, DeviceCodes, testing::Values(GgmlType::kQ4_0, GgmlType::kQ8_0),
                         [](const auto& info) { return std::string(GgmlBlockOf(info.param).name); });

// KV in fp8 with the checkpoint's scales of it: what a CPU has, a little of what bf16 has, in recorded steps as in
// others.
TEST(DeviceKvScales, MeanOnAGpuWhatTheyMeanOnACpu) {
  const RandomLimits limits;
  absl::Status no_bf16;  // of this CPU
  for (const char* family : {"llama3", "gemma3"}) {
    const KvScaledModel model(family);
    ModelSource source = SourceWithin(model.path(), limits), recording = source;
    source.dummy_weights = recording.dummy_weights = false;
    recording.recorded_rows = {1, 2, 4};
    auto fp8 = LoadOnDevice(source, limits, {.kv_dtype = DType::kF8E4M3}), bf16 = LoadOnDevice(source, limits, {}),
         recorded = LoadOnDevice(recording, limits, {.kv_dtype = DType::kF8E4M3});
    auto host = LoadOn(*kernels::MakeCpuOps({.dtype = DType::kBF16, .kv_dtype = DType::kF8E4M3, .emulate_bf16 = true}),
                       source, limits);
    const bool beside_host = !absl::IsFailedPrecondition(host.status());
    if (!beside_host) no_bf16 = host.status();
    ASSERT_TRUE(fp8.ok() && bf16.ok() && (host.ok() || !beside_host) && recorded.ok())
        << fp8.status() << bf16.status() << host.status() << recorded.status();
    std::mt19937 random(37);
    for (const int kind : {2, 1, 0, 3, 0}) {
      const RandomStep step = MakeStep(kind, limits, fp8->model->config().vocab_size, random);
      const auto got = RunStep(*fp8, step), wide = RunStep(*bf16, step), again = RunStep(*recorded, step);
      ASSERT_TRUE(got.ok() && wide.ok() && again.ok()) << got.status() << wide.status() << again.status();
      if (beside_host) {
        const auto want = RunStep(*host, step);
        ASSERT_TRUE(want.ok()) << want.status();
        EXPECT_LT(Distance(got->logits, want->logits), 0.05) << family << ", " << step.tokens.size() << " rows";
      }
      EXPECT_LT(Distance(got->logits, wide->logits), 0.1) << family << ", " << step.tokens.size() << " rows";
      EXPECT_EQ(again->logits, got->logits) << family << ", " << step.tokens.size() << " rows";
    }
  }
  if (!no_bf16.ok()) GTEST_SKIP() << "beside a CPU: " << no_bf16;
}

}  // namespace
}  // namespace baton::engine
