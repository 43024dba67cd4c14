// Row-wise operations against double precision, and their bits against batch, threads and instruction set.
#include <gtest/gtest.h>

#include "tests/kernels/contract/backends.h"
#include "tests/kernels/contract/host_tensor.h"

namespace baton::kernels {
namespace {

class RowsContract : public testing::TestWithParam<Backend> {
 protected:
  const DType compute_ = GetParam().compute;
  std::unique_ptr<Ops> ops_ = GetParam().make(compute_);
  std::unique_ptr<Ops> reference_ = ReferenceOf(GetParam()).make(compute_);
  std::mt19937 rng_{7};

  /// Column counts that this backend takes.
  std::vector<int64_t> Widths() const {
    const int64_t multiple = ops_->traits().column_multiple;
    std::vector<int64_t> out;
    for (int64_t n : {1, 15, 16, 64, 576, 1001}) out.push_back((n + multiple - 1) / multiple * multiple);
    return out;
  }
};

TEST_P(RowsContract, RmsNormEqualsItsFormula) {
  for (int64_t n : Widths()) {
    HostTensor x(DType::kF32, 5, n, 8), w(DType::kF32, 1, n), out(DType::kF32, 5, n), other(DType::kF32, 5, n);
    x.Fill(rng_, 3), w.Fill(rng_);
    const float* weight = w.view().Data<float>();
    ops_->RmsNorm(x.view(), weight, 1.0f, 1e-5f, out.view());
    reference_->RmsNorm(x.view(), weight, 1.0f, 1e-5f, other.view());
    ops_->Sync(), reference_->Sync();
    for (int64_t r = 0; r < 5; ++r) {
      double squares = 0;
      for (int64_t i = 0; i < n; ++i) squares += double{x.At(r, i)} * x.At(r, i);
      const double scale = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
      for (int64_t i = 0; i < n; ++i) {
        const double want = x.At(r, i) * scale * (double{w.At(0, i)} + 1);
        ASSERT_NEAR(out.At(r, i), want, 1e-6 * (std::abs(x.At(r, i) * scale) + std::abs(want))) << n;
      }
      ASSERT_EQ(out.Row(r), other.Row(r));
    }
  }
}

TEST_P(RowsContract, AddRmsNormIsAddThenRmsNorm) {
  for (int64_t n : Widths()) {
    HostTensor x(DType::kF32, 4, n), residual(DType::kF32, 4, n, 8), w(DType::kF32, 1, n), out(DType::kF32, 4, n),
        want(DType::kF32, 4, n);
    x.Fill(rng_), residual.Fill(rng_), w.Fill(rng_);
    HostTensor sum = residual;
    const float* weight = w.view().Data<float>();
    ops_->Add(x.view(), sum.view());
    ops_->RmsNorm(sum.view(), weight, 0, 1e-6f, want.view());
    ops_->AddRmsNorm(x.view(), residual.view(), weight, 0, 1e-6f, out.view());
    ops_->Sync();
    for (int64_t r = 0; r < 4; ++r) {
      ASSERT_EQ(residual.Row(r), sum.Row(r));
      ASSERT_EQ(out.Row(r), want.Row(r));
      for (int64_t i = 0; i < n; ++i) ASSERT_TRUE(std::isfinite(out.At(r, i)));
    }
  }
}

TEST_P(RowsContract, GatedActivationsEqualTheirFormulas) {
  for (int64_t n : Widths()) {
    HostTensor x(compute_, 3, 2 * n, 8), out(compute_, 3, n), other(compute_, 3, n);
    x.Fill(rng_, 4);
    x.Set(0, 0, -120.0f);  // exp overflows here when done carelessly
    x.Set(1, 0, 120.0f);
    for (Activation act : {Activation::kSilu, Activation::kGeluTanh}) {
      ops_->GatedActivation(act, x.view(), out.view());
      reference_->GatedActivation(act, x.view(), other.view());
      ops_->Sync(), reference_->Sync();
      for (int64_t r = 0; r < 3; ++r) {
        for (int64_t i = 0; i < n; ++i) {
          const double g = x.At(r, i), up = x.At(r, n + i);
          const double y = act == Activation::kSilu
                               ? g / (1 + std::exp(-g))
                               : 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
          ASSERT_NEAR(out.At(r, i), y * up,
                      (2e-6 + (compute_ == DType::kF32 ? 0 : Grain(compute_))) * std::abs(g * up) + 1e-30)
              << "gate " << g << " up " << up;
        }
        ASSERT_EQ(out.Row(r), other.Row(r));
      }
    }
  }
}

TEST_P(RowsContract, EmbeddingScalesRowsOfEveryStorageType) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    HostTensor table(dtype, 11, 80, 8), out(DType::kF32, 4, 80);
    table.Fill(rng_);
    const std::vector<int32_t> ids{3, 10, 0, 3};
    ops_->Embedding(ids, table.view(), 2.5f, out.view());
    ops_->Sync();
    for (int64_t r = 0; r < 4; ++r) {
      for (int64_t i = 0; i < 80; ++i) ASSERT_EQ(out.At(r, i), table.At(ids[r], i) * 2.5f);
    }
  }
}

TEST_P(RowsContract, EmbeddingOfPackedIsTheTablesRows) {
  ASSERT_EQ(ops_->traits().packed_rows, !GetParam().name.starts_with("cuda"));
  if (!ops_->traits().packed_rows) return;  // the table is held beside a tied head there
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (int64_t columns : {1, 31, 80, 577}) {
      HostTensor table(dtype, 107, columns, 8), out(DType::kF32, 107, columns);
      table.Fill(rng_);
      const auto packed = ops_->Pack(table.view(), nullptr);
      ASSERT_TRUE(packed.ok()) << packed.status();
      std::vector<int32_t> ids(107);
      for (int32_t i = 0; i < 107; ++i) ids[i] = 106 - i;
      ops_->EmbeddingOfPacked(ids, **packed, 2.5f, out.view());
      ops_->Sync();
      const DType kept = compute_ == DType::kBF16 ? DType::kBF16 : dtype;
      for (int64_t r = 0; r < 107; ++r) {
        for (int64_t i = 0; i < columns; ++i) ASSERT_EQ(out.At(r, i), Rounded(kept, table.At(ids[r], i)) * 2.5f);
      }
    }
  }
}

TEST_P(RowsContract, SoftCapAndGather) {
  HostTensor x(DType::kF32, 6, 333), picked(DType::kF32, 3, 333);
  x.Fill(rng_, 40);
  const std::vector<int32_t> rows{5, 0, 5};
  ops_->GatherRows(x.view(), rows, picked.view());
  ops_->Sync();
  for (int i = 0; i < 3; ++i) ASSERT_EQ(picked.Row(i), x.Row(rows[i]));
  HostTensor capped = x;
  ops_->SoftCap(30, capped.view());
  ops_->Sync();
  for (int64_t r = 0; r < 6; ++r) {
    for (int64_t i = 0; i < 333; ++i) ASSERT_NEAR(capped.At(r, i), 30 * std::tanh(x.At(r, i) / 30.0), 3e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(All, RowsContract, testing::ValuesIn(Backends()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace baton::kernels
