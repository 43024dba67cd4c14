// Linear layers of each kind that cuBLASLt may multiply, and of those that it may not: near what Baton's own kernels
// give, by the library where it has such scales and such a bias, else by the own kernels, to the bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cuda/host/cuda_ops.h"
#include "kernels/packed_size.h"
#include "kernels/runtime/emulated_cublas_lt.h"
#include "tests/kernels/contract/drawn_weights.h"
#include "tests/kernels/contract/host_tensor.h"

namespace baton::kernels {
namespace {

constexpr int kRowsOfStep = 40, kOutputs = 160, kInputs = 256;

enum class Numbers { kBf16, kOneScale, kRowScales, kBlockScales, kNarrowGroups, kRaggedBlocks };
const char* NameOf(Numbers numbers) {
  constexpr const char* kNames[] = {"Bf16", "OneScale", "RowScales", "BlockScales", "NarrowGroups", "RaggedBlocks"};
  return kNames[static_cast<int>(numbers)];
}
bool IsIts(Numbers numbers) { return numbers < Numbers::kNarrowGroups; }

QuantizedWeight Codes(Numbers numbers, std::mt19937& rng) {
  using Kind = InputRounding::Kind;
  const InputRounding rounding =
      numbers == Numbers::kOneScale ? InputRounding{Kind::kFixed, 0.01f} : InputRounding{Kind::kByToken, 0};
  const int group = numbers == Numbers::kNarrowGroups                                       ? 64
                    : numbers == Numbers::kBlockScales || numbers == Numbers::kRaggedBlocks ? 128
                                                                                            : kInputs;
  QuantizedWeight w = DrawRounded(kOutputs, kInputs, group, rounding, rng);
  if (numbers == Numbers::kOneScale) std::ranges::fill(w.scales, w.scales[0]);
  const auto groups = static_cast<size_t>(kInputs / group);
  for (size_t i = 0; numbers == Numbers::kBlockScales && i < w.scales.size(); ++i)
    w.scales[i] = w.scales[i / groups / 128 * 128 * groups + i % groups];
  return w;
}

/// One weight on a GPU with the library and on one without.
class LibraryLinear {
 public:
  LibraryLinear(Numbers numbers, bool biased, bool exact = true) : numbers_(numbers) {
    std::mt19937 rng(41);
    for (float& b : bias_) b = exact ? Rounded(DType::kBF16, Draw(rng)) : Draw(rng);
    const float* const bias = biased ? bias_.data() : nullptr;
    if (numbers == Numbers::kBf16) {
      HostTensor plain(DType::kBF16, kOutputs, kInputs);
      plain.Fill(rng, 0.3f);
      with_ = *ops_->Pack(plain.view(), bias);
      without_ = *own_->Pack(plain.view(), bias);
      planned_ = PackedBytes(ops_->traits(), kOutputs, kInputs, DType::kBF16, biased);
    } else {
      const QuantizedWeight w = Codes(numbers, rng);
      with_ = *ops_->PackQuantized(w, bias);
      without_ = *own_->PackQuantized(w, bias);
      planned_ = PackedCodeBytes(kOutputs, kInputs, 8, w.group, true, biased) +
                 LibraryCodeBytes(ops_->traits(), kOutputs, kInputs, w.group, true, biased);
    }
    StepLimits limits{.rows = kRowsOfStep, .sequences = 4, .positions = 64, .logit_rows = 4, .vocab = 64};
    limits.attention = {{.q_heads = 2, .kv_heads = 1, .dim = 64}};
    const absl::Status prepared = ops_->Prepare(limits);
    EXPECT_TRUE(prepared.ok()) << prepared;
  }
  struct Products {
    HostTensor got, own;
    bool by_library;
  };
  Products Multiply(int rows, DType out, bool adds = false) {
    std::mt19937 rng(static_cast<unsigned>(rows));
    HostTensor x(DType::kBF16, rows, kInputs), got(out, rows, kOutputs);
    x.Fill(rng, 2.0f);
    got.Fill(rng);
    HostTensor own = got, product(DType::kF32, rows, kOutputs);
    const int64_t before = gpu::EmulatedLtCalls();
    for (const auto& [ops, w, to] : {std::tuple(ops_.get(), with_.get(), &got), {own_.get(), without_.get(), &own}}) {
      if (adds)
        ops->LinearAdd(x.view(), *w, product.view(), to->view());
      else
        ops->Linear(x.view(), *w, to->view());
      ops->Sync();
    }
    return {got, own, gpu::EmulatedLtCalls() > before};
  }
  const PackedLinear& packed() const { return *with_; }
  int64_t planned() const { return planned_; }
  std::string about() const { return ops_->about(); }

 private:
  static float Draw(std::mt19937& rng) { return std::normal_distribution<float>()(rng); }
  const Numbers numbers_;
  std::vector<float> bias_ = std::vector<float>(kOutputs);
  std::unique_ptr<Ops> ops_ = *MakeCudaOps({.deterministic = false, .cublas_lt = &gpu::EmulatedCublasLt()});
  std::unique_ptr<Ops> own_ = *MakeCudaOps({.deterministic = false});
  std::unique_ptr<PackedLinear> with_, without_;
  int64_t planned_ = 0;
};

/// Root mean square of what differs, as a part of what is wanted.
double Error(const LibraryLinear::Products& products) {
  double error = 0, size = 0;
  for (int64_t r = 0; r < products.got.rows(); ++r)
    for (int64_t c = 0; c < products.got.cols(); ++c) {
      error += std::pow(products.got.At(r, c) - products.own.At(r, c), 2);
      size += std::pow(products.own.At(r, c), 2);
    }
  return std::sqrt(error / size);
}
bool Says(const LibraryLinear& linear, const std::string& words) {
  return linear.about().find(words) != std::string::npos;
}
void ExpectOwn(const LibraryLinear::Products& products) {
  for (int64_t r = 0; r < products.got.rows(); ++r) ASSERT_EQ(products.got.Row(r), products.own.Row(r)) << "row " << r;
}

class LibraryLinearOf : public testing::TestWithParam<std::tuple<Numbers, bool>> {
 protected:
  const Numbers numbers_ = std::get<0>(GetParam());
  const bool biased_ = std::get<1>(GetParam());
};

TEST_P(LibraryLinearOf, EveryKindIsNearTheOwnKernelsAndByTheLibraryWhereItHasIt) {
  LibraryLinear linear(numbers_, biased_);
  for (const int rows : {1, 3, 4, 16, 37, 40})
    for (const DType out : {DType::kF32, DType::kBF16}) {
      const LibraryLinear::Products products = linear.Multiply(rows, out);
      const bool divides = numbers_ != Numbers::kBlockScales || rows % 4 == 0;
      EXPECT_EQ(products.by_library, IsIts(numbers_) && divides) << rows << " rows";
      EXPECT_LT(Error(products), out == DType::kF32 ? 1e-5 : 5e-3) << rows << " rows";
      if (!products.by_library) {
        ASSERT_NO_FATAL_FAILURE(ExpectOwn(products)) << rows << " rows";
      }
    }
  EXPECT_EQ(gpu::EmulatedLtRefusals(), 0);
}

TEST_P(LibraryLinearOf, WhatIsAddedToIsNearTheOwnKernels) {
  LibraryLinear linear(numbers_, biased_);
  for (const int rows : {4, 37}) EXPECT_LT(Error(linear.Multiply(rows, DType::kF32, true)), 1e-5) << rows << " rows";
}

// More than the step was measured for is the own kernels', and so is what the library refuses when it is asked.
TEST_P(LibraryLinearOf, AProductThatIsRefusedHasTheBitsOfTheOwnKernels) {
  LibraryLinear linear(numbers_, biased_);
  for (const int result : {gpu::kLtNotSupported, gpu::kLtInvalidValue})
    for (const int rows : {4, 36}) {
      const int64_t refused = gpu::EmulatedLtRefusals();
      gpu::FailEmulatedLt(1, result);
      ASSERT_NO_FATAL_FAILURE(ExpectOwn(linear.Multiply(rows, DType::kF32))) << rows << " rows";
      EXPECT_EQ(gpu::EmulatedLtRefusals(), refused + IsIts(numbers_));
      gpu::FailEmulatedLt(0, 0);
    }
  ASSERT_NO_FATAL_FAILURE(ExpectOwn(linear.Multiply(kRowsOfStep + 4, DType::kBF16)));
}

TEST_P(LibraryLinearOf, AWeightTakesTheBytesThatArePlanned) {
  const LibraryLinear linear(numbers_, biased_);
  EXPECT_EQ(static_cast<int64_t>(linear.packed().bytes()), linear.planned());
}

TEST_P(LibraryLinearOf, ALineSaysWhatIsNotIts) {
  const LibraryLinear linear(numbers_, biased_);
  EXPECT_EQ(Says(linear, "1 layers in e4m3 whose scales"), !IsIts(numbers_)) << linear.about();
}

TEST_P(LibraryLinearOf, AnOlderLibraryHasOneScaleForAMatrixOnly) {
  gpu::SetEmulatedLtVersion(gpu::kLtOwnScales - 1);
  LibraryLinear linear(numbers_, biased_);
  const LibraryLinear::Products products = linear.Multiply(16, DType::kF32);
  gpu::SetEmulatedLtVersion(0);
  const bool unknown = numbers_ == Numbers::kRowScales || numbers_ == Numbers::kBlockScales;
  EXPECT_EQ(products.by_library, IsIts(numbers_) && !unknown);
  EXPECT_LT(Error(products), 1e-5);
  EXPECT_EQ(Says(linear, "before 12.9: 1 shapes in e4m3 are not its"), unknown) << linear.about();
}

INSTANTIATE_TEST_SUITE_P(Kinds, LibraryLinearOf,
                         testing::Combine(testing::Values(Numbers::kBf16, Numbers::kOneScale, Numbers::kRowScales,
                                                          Numbers::kBlockScales, Numbers::kNarrowGroups,
                                                          Numbers::kRaggedBlocks),
                                          testing::Bool()),
                         [](const auto& info) {
                           return std::string(NameOf(std::get<0>(info.param))) +
                                  (std::get<1>(info.param) ? "WithABias" : "");
                         });

// The library adds it in bf16: to outputs in bf16, and to any of e4m3.
TEST(LibraryLinearBias, ThatBf16HasNotIsAddedByTheOwnKernels) {
  for (const Numbers numbers : {Numbers::kBf16, Numbers::kRowScales}) {
    LibraryLinear linear(numbers, true, false);
    EXPECT_EQ(linear.Multiply(16, DType::kF32).by_library, numbers == Numbers::kBf16);
    const LibraryLinear::Products narrow = linear.Multiply(16, DType::kBF16);
    EXPECT_FALSE(narrow.by_library);
    ExpectOwn(narrow);
  }
}

}  // namespace
}  // namespace baton::kernels
