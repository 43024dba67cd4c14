// Every number of rows from 1 to 300 gives a row the same bits, for every kind of weight and of fused form: M alone
// chooses tiles and forms, so each border between two of them is met. Beyond what a form of its own takes (M ≤ 8, or
// any of bf16 that is added), a fused form is a linear layer and what follows it.
#include <gtest/gtest.h>

#include <array>

#include "tests/kernels/contract/backends.h"
#include "tests/kernels/contract/drawn_weights.h"
#include "tests/kernels/contract/host_tensor.h"
#include "tests/kernels/contract/host_tensor_ops.h"

namespace baton::kernels {
namespace {

constexpr int kRows = 300, kHalf = 16, kOut = 2 * kHalf;

using Kind = InputRounding::Kind;

struct Weight {
  const char* name;
  int k;  ///< columns of x
  std::function<QuantizedWeight(std::mt19937&)> draw;
  bool every_gate =
      false;  ///< with a gate behind it for each M; else where it is a form of its own, and at tiles' ends
};
/// Q4_0's and Q8_0's zero is the middle code.
QuantizedWeight DrawGguf(int bits, std::mt19937& rng) {
  QuantizedWeight w = DrawBits(bits, kOut, 96, 32, rng);
  std::ranges::fill(w.zeros, static_cast<uint16_t>(1 << (bits - 1)));
  return w;
}
const Weight kWeights[] = {
    {"Bf16", 136, nullptr, true},
    {"Awq", 128, [](auto& rng) { return DrawBits(4, kOut, 128, 64, rng); }, true},
    {"GptqOf4BitsInAnOrder", 64, [](auto& rng) { return DrawOrdered(4, kOut, 64, 32, rng); }},
    {"GptqOf8Bits", 128, [](auto& rng) { return DrawBits(8, kOut, 128, 128, rng); }},
    {"Q4_0", 96, [](auto& rng) { return DrawGguf(4, rng); }},
    {"Q8_0", 96, [](auto& rng) { return DrawGguf(8, rng); }},
    {"Fp8", 128, [](auto& rng) { return DrawFloat8(kOut, 128, 64, rng); }},
    {"W8A8InBlocks", 256, [](auto& rng) { return DrawRounded(kOut, 256, 128, {Kind::kByToken, 0}, rng); }},
    {"W8A8InNarrowBlocks", 128, [](auto& rng) { return DrawRounded(kOut, 128, 64, {Kind::kByToken, 0}, rng); }},
    {"W8A8ByToken", 200, [](auto& rng) { return DrawRounded(kOut, 200, 200, {Kind::kByToken, 0}, rng); }},
    {"W8A8Static", 72, [](auto& rng) { return DrawRounded(kOut, 72, 72, {Kind::kFixed, 0.01f}, rng); }}};

/// The three forms of a layer, each over the first rows of the same tensors.
class Layer {
 public:
  Layer(Ops& ops, const Weight& weight, DType compute)
      : ops_(ops), compute_(compute), x_(compute, kRows, weight.k, 8), residual_(DType::kF32, kRows, kOut) {
    std::mt19937 rng(17);
    x_.Fill(rng, 2.0f);
    residual_.Fill(rng);
    for (float& b : bias_) b = std::normal_distribution<float>()(rng);
    HostTensor plain(DType::kBF16, kOut, weight.k);
    plain.Fill(rng, 0.3f);
    auto packed =
        weight.draw ? ops.PackQuantized(weight.draw(rng), bias_.data()) : ops.Pack(plain.view(), bias_.data());
    EXPECT_TRUE(packed.ok()) << packed.status();
    packed_ = *std::move(packed);
  }
  HostTensor Alone(int rows) {
    HostTensor out(DType::kF32, rows, kOut);
    ops_.Linear(x_.view().Rows(0, rows), *packed_, out.view());
    ops_.Sync();
    return out;
  }
  HostTensor Added(int rows) {
    HostTensor out(DType::kF32, rows, kOut), product = out;
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < kOut; ++c) out.Set(r, c, residual_.At(r, c));
    ops_.LinearAdd(x_.view().Rows(0, rows), *packed_, product.view(), out.view());
    ops_.Sync();
    return out;
  }
  HostTensor Gated(int rows) {
    HostTensor out(compute_, rows, kHalf), both(compute_, rows, kOut);
    ops_.GatedLinear(x_.view().Rows(0, rows), *packed_, Activation::kSilu, both.view(), out.view());
    ops_.Sync();
    return out;
  }

 private:
  Ops& ops_;
  const DType compute_;
  HostTensor x_, residual_;
  std::vector<float> bias_ = std::vector<float>(kOut);
  std::unique_ptr<PackedLinear> packed_;
};

void ExpectSameRows(const HostTensor& got, const HostTensor& want, const char* what) {
  for (int64_t r = 0; r < got.rows(); ++r)
    ASSERT_EQ(got.Row(r), want.Row(r)) << what << " of " << got.rows() << " rows, row " << r;
}

void CheckEveryBatch(Ops& ops, const Weight& weight, DType compute) {
  constexpr int kOwnForms = 9;
  Layer layer(ops, weight, compute);
  const HostTensor alone = layer.Alone(kRows), added = layer.Added(kRows), gated = layer.Gated(kRows);
  for (int rows = 1; rows < kRows; ++rows) {
    ASSERT_NO_FATAL_FAILURE(ExpectSameRows(layer.Added(rows), added, "LinearAdd"));
    if (rows <= kOwnForms) {
      ASSERT_NO_FATAL_FAILURE(ExpectSameRows(layer.Alone(rows), alone, "Linear"));
    }
    if (rows <= kOwnForms || rows % 16 < 2 || weight.every_gate) {
      ASSERT_NO_FATAL_FAILURE(ExpectSameRows(layer.Gated(rows), gated, "GatedLinear"));
    }
  }
}

class EveryBatch : public testing::TestWithParam<Weight> {};

TEST_P(EveryBatch, GivesARowItsBitsOnAHost) {
  for (const Backend& backend : Backends()) {
    if (backend.slow) continue;
    SCOPED_TRACE(backend.name);
    CheckEveryBatch(*backend.make(backend.compute), GetParam(), backend.compute);
  }
}
TEST_P(EveryBatch, GivesARowItsBitsOnAGpu) { CheckEveryBatch(**MakeHostTensorOps({}), GetParam(), DType::kBF16); }

INSTANTIATE_TEST_SUITE_P(Of, EveryBatch, testing::ValuesIn(kWeights), [](const auto& info) { return info.param.name; });

#if !defined(__CUDACC__)
Weight Named(const std::string& name) {
  Weight found = *std::ranges::find_if(kWeights, [&](const Weight& weight) { return weight.name == name; });
  found.every_gate = false;
  return found;
}
// What wgmma multiplies is cut by the number of multiprocessors, too. The other weights do not ask for it.
TEST(EveryBatchOfWgmma, GivesARowItsBitsOnManyMultiprocessors) {
  for (const char* weight : {"Bf16", "W8A8InBlocks"})
    CheckEveryBatch(**MakeHostTensorOps({.multiprocessors = 132}), Named(weight), DType::kBF16);
}
// Where it is not taken; codes in narrow blocks never take it.
TEST(EveryBatchOfWgmma, GivesARowItsBitsInItsPlace) {
  CheckEveryBatch(**MakeHostTensorOps({.wgmma_differs = true}), Named("Bf16"), DType::kBF16);
}
// On a GPU whose mma.sync adds otherwise where the operands are exchanged, all rows take the form that is left.
TEST(EveryBatchOfFewRows, GivesARowItsBitsWhereTheFormForThemDiffers) {
  constexpr int kFew = 8;
  const auto rows = [](const CudaOpsConfig& config) {
    const auto ops = *MakeHostTensorOps(config);
    Layer layer(*ops, Named("Bf16"), DType::kBF16);
    return std::array{layer.Alone(kFew), layer.Added(kFew), layer.Gated(kFew)};
  };
  const CudaOpsConfig odd{.policy = {.odd_mma = true}, .wgmma_differs = true};
  CudaOpsConfig noticed = odd;
  noticed.gemv_differs = true;
  const auto want = rows({}), got = rows(noticed);
  for (size_t form = 0; form < want.size(); ++form)
    ASSERT_NO_FATAL_FAILURE(ExpectSameRows(got[form], want[form], "a form"));
  EXPECT_NE(rows(odd)[0].Row(0), want[0].Row(0));
}
#endif

}  // namespace
}  // namespace baton::kernels
