// Products of e4m3 by each kind of scales, and what is added behind a product, by the emulated cuBLASLt: those that the
// library has are right, others are refused.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "common/float8.h"
#include "common/half.h"
#include "kernels/runtime/emulated_cublas_lt.h"
#include "kernels/runtime/runtime.h"

namespace baton::gpu {
namespace {

/// out [rows, outputs] = x [rows, inputs] · wᵀ + bias.
struct Asked {
  int rows = 8, outputs = 160, inputs = 272;
  int type = kLtE4m3, out = kLtF32;
  int32_t of_w = kLtOneScale, of_x = kLtOneScale;
  bool scaled = true, biased = true;
  int32_t bias_type = kLtBf16;
  int proposed_with = 256;  ///< the bias lies at so many bytes when an algorithm is asked for
  int bias_at = 256, scales_at = 0;
};

class ScaledProduct {
 public:
  explicit ScaledProduct(const Asked& asked) : p_(asked) {
    FillCodes(w_, p_.outputs, 3);
    FillCodes(x_, p_.rows, 5);
    std::vector<float> table(kFloats);
    for (size_t i = 0; i < table.size(); ++i) table[i] = std::exp2(static_cast<float>(i % 5) - 2);
    Upload(w_scales_, table, p_.scales_at);
    for (size_t i = 0; i < table.size(); ++i) table[i] = std::exp2(static_cast<float>(i % 3) - 1);
    Upload(x_scales_, table, p_.scales_at);
    std::vector<float> wide;
    std::vector<uint16_t> narrow;
    for (int n = 0; n < p_.outputs; ++n) wide.push_back(Bias(n)), narrow.push_back(Bf16OfFloat(Bias(n)));
    if (p_.bias_type == kLtF32)
      Upload(bias_, wide, p_.bias_at);
    else
      Upload(bias_, narrow, p_.bias_at);
    Describe();
  }
  ~ScaledProduct() {
    stream_.Synchronize();
    api_.destroy_operation(operation_);
    for (LtLayout* layout : {a_, b_, d_}) api_.destroy_layout(layout);
    api_.destroy_preference(preference_);
    api_.destroy(handle_);
  }
  /// Empty: it is right.
  std::string Run() {
    LtProposal proposal;
    int count = 0;
    if (p_.biased) Set(kLtBiasPointer, At(bias_, p_.proposed_with));
    if (api_.propose(handle_, operation_, a_, b_, d_, d_, preference_, 1, &proposal, &count) != kLtSuccess)
      return "no algorithm";
    if (p_.biased) Set(kLtBiasPointer, At(bias_, p_.bias_at));
    const float one = 1, zero = 0;
    if (api_.multiply(handle_, operation_, &one, w_.data(), a_, x_.data(), b_, &zero, out_.data(), d_, out_.data(), d_,
                      &proposal.algorithm, workspace_.data(), workspace_.bytes(), &stream_) != kLtSuccess)
      return "refused";
    if (const std::string error = stream_.Synchronize(); !error.empty()) return error;
    return Check();
  }

 private:
  static constexpr size_t kFloats = 4096;
  static uint8_t Code(int which, int i) { return static_cast<uint8_t>(0x20 + i * 7 * which % 37 + i % 2 * 128); }
  static float Bias(int n) { return static_cast<float>(n % 9) * 0.5f - 1; }
  static const void* At(const Memory& memory, int bytes) { return static_cast<const char*>(memory.data()) + bytes; }
  template <typename T>
  void Upload(const Memory& to, const std::vector<T>& values, int at) {
    stream_.Upload(const_cast<void*>(At(to, at)), values.data(), values.size() * sizeof(T));
  }
  float Number(int which, int i) const { return FloatOfE4m3(Code(which, i)); }
  void FillCodes(const Memory& to, int vectors, int which) {
    std::vector<uint8_t> codes;
    std::vector<uint16_t> halves;
    for (int i = 0; i < vectors * p_.inputs; ++i)
      codes.push_back(Code(which, i)), halves.push_back(Bf16OfFloat(Number(which, i)));
    if (p_.type == kLtE4m3)
      Upload(to, codes, 0);
    else
      Upload(to, halves, 0);
  }
  template <typename T>
  void Set(int attribute, T value) {
    EXPECT_EQ(api_.set_operation(operation_, attribute, &value, sizeof(value)), kLtSuccess);
  }
  void Describe() {
    api_.create(&handle_);
    api_.create_operation(&operation_, kLtComputeF32, kLtF32);
    Set(kLtTransposeA, kLtTransposed);
    if (p_.scaled) {
      Set(kLtScalesOfA, At(w_scales_, p_.scales_at));
      Set(kLtScalesOfB, At(x_scales_, p_.scales_at));
    }
    Set(kLtScaleModeA, p_.of_w);
    Set(kLtScaleModeB, p_.of_x);
    if (p_.biased) Set(kLtEpilogue, kLtAddsBias);
    Set(kLtBiasType, p_.bias_type);
    const auto rows = static_cast<uint64_t>(p_.rows), outputs = static_cast<uint64_t>(p_.outputs),
               inputs = static_cast<uint64_t>(p_.inputs);
    api_.create_layout(&a_, p_.type, inputs, outputs, p_.inputs);
    api_.create_layout(&b_, p_.type, inputs, rows, p_.inputs);
    api_.create_layout(&d_, p_.out, outputs, rows, p_.outputs);
    api_.create_preference(&preference_);
  }
  // What the scales of 128 inputs of `vector` are, by the order that the library's documentation gives.
  float Scale(int32_t mode, int vector, int vectors, int input, int period, float of) const {
    const int groups = (p_.inputs + 127) / 128;
    const int at = mode == kLtOneScale        ? 0
                   : mode == kLtScaleOfColumn ? vector
                   : mode == kLtScaleOf128    ? input / 128 * vectors + vector
                                              : vector / 128 * ((groups + 3) / 4 * 4) + input / 128;
    return p_.type == kLtE4m3 ? std::exp2(static_cast<float>(at % period) - of) : 1;
  }
  std::string Check() {
    std::vector<char> bytes(static_cast<size_t>(p_.rows * p_.outputs) * 4);
    stream_.CopyAsync(bytes.data(), out_.data(), bytes.size());
    stream_.Synchronize();
    for (int m = 0; m < p_.rows; ++m)
      for (int n = 0; n < p_.outputs; ++n) {
        double want = p_.biased ? Bias(n) : 0, size = 1;
        for (int k = 0; k < p_.inputs; ++k) {
          const double product = double{Number(3, n * p_.inputs + k)} * Number(5, m * p_.inputs + k) *
                                 Scale(p_.of_w, n, p_.outputs, k, 5, 2) * Scale(p_.of_x, m, p_.rows, k, 3, 1);
          want += product;
          size += std::abs(product);
        }
        const int at = m * p_.outputs + n;
        float wide = 0;
        uint16_t narrow = 0;
        std::memcpy(&wide, &bytes[static_cast<size_t>(at) * 4], p_.out == kLtF32 ? 4 : 0);
        std::memcpy(&narrow, &bytes[static_cast<size_t>(at) * 2], 2);
        const double got = p_.out == kLtF32 ? wide : FloatOfBf16(narrow);
        if (!(std::abs(got - want) < 1e-5 * size + (p_.out == kLtF32 ? 0 : std::abs(want) / 200))) return "wrong";
      }
    return {};
  }

  const Asked p_;
  const CublasLtApi& api_ = EmulatedCublasLt();
  Stream stream_;
  Memory w_{1 << 18}, x_{1 << 18}, out_{1 << 16}, w_scales_{kFloats * 8}, x_scales_{kFloats * 8}, bias_{4096};
  Memory workspace_{1 << 20};
  LtHandle* handle_ = nullptr;
  LtOperation* operation_ = nullptr;
  LtLayout *a_ = nullptr, *b_ = nullptr, *d_ = nullptr;
  LtPreference* preference_ = nullptr;
};

std::string Answer(const Asked& asked) { return ScaledProduct(asked).Run(); }

constexpr std::pair<int32_t, int32_t> kTogether[] = {{kLtOneScale, kLtOneScale},
                                                     {kLtScaleOfColumn, kLtScaleOfColumn},
                                                     {kLtScaleOfBlock, kLtScaleOf128},
                                                     {kLtScaleOf128, kLtScaleOfBlock},
                                                     {kLtScaleOf128, kLtScaleOf128}};

TEST(EmulatedCublasLtScales, OfEachKindThatGoTogetherAreThoseOfTheSums) {
  for (const auto& [w, x] : kTogether)
    for (const int out : {kLtF32, kLtBf16})
      for (const bool biased : {true, false})
        EXPECT_EQ(Answer({.out = out, .of_w = w, .of_x = x, .biased = biased}), "") << w << " and " << x;
}

TEST(EmulatedCublasLtScales, OfOtherKindsHaveNoAlgorithm) {
  const int32_t all[] = {kLtOneScale, kLtScaleOfColumn, kLtScaleOf128, kLtScaleOfBlock};
  for (const int32_t w : all)
    for (const int32_t x : all) {
      const bool good = std::ranges::find(kTogether, std::pair(w, x)) != std::end(kTogether);
      EXPECT_EQ(Answer({.of_w = w, .of_x = x}), good ? "" : "no algorithm") << w << " and " << x;
    }
}

TEST(EmulatedCublasLtScales, OfRowsAndBlocksAreNotKnownBefore12_9) {
  SetEmulatedLtVersion(120805);
  for (const auto& [w, x] : kTogether)
    EXPECT_EQ(Answer({.of_w = w, .of_x = x}), w == kLtOneScale ? "" : "no algorithm") << w << " and " << x;
  SetEmulatedLtVersion(0);
}

TEST(EmulatedCublasLtScales, OfBlocksAskForFoursAndE4m3For16Bytes) {
  EXPECT_EQ(Answer({.rows = 6, .of_w = kLtScaleOfBlock, .of_x = kLtScaleOf128}), "no algorithm");
  EXPECT_EQ(Answer({.rows = 6, .of_w = kLtScaleOfColumn, .of_x = kLtScaleOfColumn}), "");
  EXPECT_EQ(Answer({.inputs = 264}), "no algorithm");
  EXPECT_EQ(Answer({.outputs = 162}), "no algorithm");
}

TEST(EmulatedCublasLtScales, OfBf16OrLessAlignedOrMissingAreRefused) {
  EXPECT_EQ(Answer({.type = kLtBf16, .scaled = true, .bias_type = kLtF32}), "refused");
  EXPECT_EQ(Answer({.type = kLtBf16, .scaled = false, .bias_type = kLtF32}), "");
  EXPECT_EQ(Answer({.scaled = false}), "refused");
  EXPECT_EQ(Answer({.scales_at = 8}), "refused");
}

TEST(EmulatedCublasLtBias, IsOfTheOutputsTypeOrBf16) {
  EXPECT_EQ(Answer({.bias_type = kLtF32}), "no algorithm") << "of e4m3 it is bf16";
  for (const int out : {kLtF32, kLtBf16})
    for (const int32_t bias : {kLtF32, kLtBf16})
      EXPECT_EQ(Answer({.type = kLtBf16, .out = out, .scaled = false, .bias_type = bias}),
                bias == out ? "" : "no algorithm");
}

TEST(EmulatedCublasLtBias, ThatIsLessAlignedThanTheOneThatWasProposedForIsRefused) {
  EXPECT_EQ(Answer({.proposed_with = 256, .bias_at = 256 + 4}), "refused");
  EXPECT_EQ(Answer({.proposed_with = 256 + 4, .bias_at = 256 + 4}), "");
  EXPECT_EQ(Answer({.proposed_with = 256 + 4, .bias_at = 256}), "");
}

}  // namespace
}  // namespace baton::gpu
