// Models of any shape on a GPU: what its kernels take is near what a CPU computes, with the same bits in steps of any
// length; what they do not take is refused by name before anything is read.
#include "kernels/device_shapes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/host/cuda_ops.h"
#include "kernels/runtime/emulated_device.h"
#include "tests/engine/model/paged_model.h"

namespace baton::engine {
namespace {

ModelSource Shaped(const std::string& overrides) {
  ModelSource source{.path = "tests/engine/model/goldens/llama3", .dummy_weights = true, .dummy_seed = 7};
  source.config_overrides = {StrCat("{", overrides, "}")};
  return source;
}

class DeviceShape : public testing::TestWithParam<const char*> {};

TEST_P(DeviceShape, IsComputedAsByACpuInStepsOfAnyLength) {
  const ModelSource source = Shaped(GetParam());
  auto cpu = PagedModel::Load(source, {.threads = 2, .dtype = DType::kF32});
  auto gpu = PagedModel::LoadOn(kernels::MakeCudaOps({}).value(), source);
  ASSERT_TRUE(cpu.ok() && gpu.ok()) << cpu.status() << gpu.status();
  const int vocab = (*gpu)->model().config().vocab_size;
  std::vector<int32_t> prompt;
  for (int i = 0; i < 37; ++i) prompt.push_back((i * 29 + 11) % vocab);
  const LogitRows whole = (*gpu)->Prefill(prompt, PagedModel::kMaxTokens).value();
  EXPECT_LE(Distance(whole, (*cpu)->Prefill(prompt, PagedModel::kMaxTokens).value()), 3e-2);
  EXPECT_EQ((*gpu)->Prefill(prompt, 17).value(), whole);
  EXPECT_EQ((*gpu)->Prefill(prompt, 1).value(), whole) << "as what is decoded";
}

INSTANTIATE_TEST_SUITE_P(
    Some, DeviceShape,
    testing::Values(R"("head_dim": 80, "num_attention_heads": 3, "num_key_value_heads": 3)",
                    R"("head_dim": 96, "num_attention_heads": 5, "num_key_value_heads": 1, "vocab_size": 131)",
                    R"("head_dim": 256, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 8)",
                    R"("head_dim": 64, "num_attention_heads": 24, "num_key_value_heads": 1, "hidden_size": 200)",
                    R"("head_dim": 128, "num_attention_heads": 7, "num_key_value_heads": 7, "vocab_size": 1001)",
                    R"("head_dim": 64, "num_attention_heads": 34, "num_key_value_heads": 2, "vocab_size": 33)"),
    [](const auto& info) { return StrCat("Number", info.index); });

void ExpectRefused(const ModelSource& source, const std::string& words) {
  auto ops = kernels::MakeCudaOps({}).value();
  gpu::FailAllocation(0);
  const absl::Status status = LoadModel(source, *ops, 16, nullptr).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(words));
  EXPECT_EQ(gpu::AllocationCount(), 0);
}

TEST(DeviceShapes, WhatNoKernelIsMadeForIsRefusedByName) {
  for (int dim = 16; dim <= 256; dim += 16) {
    const std::string heads = StrCat(R"("num_key_value_heads": 4, "head_dim": )", dim);
    if (std::ranges::count(kernels::kDeviceHeadDims, dim) == 0)
      ExpectRefused(Shaped(heads), StrCat("head_dim ", dim, " is not supported on a GPU (64, 80, 96, 128, 256 are)"));
    EXPECT_TRUE(PagedModel::Load(Shaped(heads), {.dtype = DType::kF32}).ok()) << "a CPU takes each: " << dim;
  }
  ExpectRefused(Shaped(R"("hidden_size": 196)"), "hidden_size 196 is not supported on a GPU (multiples of 8 are)");
  ExpectRefused(Shaped(R"("hidden_size": 16392)"), "hidden_size 16392 is not supported on a GPU (up to 16384 is)");
  ExpectRefused(Shaped(R"("intermediate_size": 324)"), "inner elements of the MLP: 324");
  ExpectRefused(Shaped(R"("num_attention_heads": 260, "num_key_value_heads": 260)"), "KV heads of a rank: 260");
}

TEST(DeviceShapes, PartsOfASumThatAreNoMultipleAreRefused) {
  ModelSource source = Shaped(R"("intermediate_size": 328)");
  EXPECT_TRUE(LoadModel(source, *kernels::MakeCudaOps({}).value(), 16, nullptr).ok());
  source.place = RankPlace::Of(0, 1, 1, 2);
  ExpectRefused(source, "inner elements of the MLP for each of 2 parts of a sum: 164");
  source = Shaped(R"("intermediate_size": 512)");
  source.place = RankPlace::Of(0, 1, 1, 64);
  ExpectRefused(source, "inputs of the attention's output layer for each of 64 parts of a sum: 4");
}

}  // namespace
}  // namespace baton::engine
