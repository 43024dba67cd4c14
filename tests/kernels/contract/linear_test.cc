// Linear layers: equal to the double-precision sum within the rounding of one f32 chain, and a row's bits depend on the
// row alone: not on M, its place, the threads or the instruction set.
#include <gtest/gtest.h>

#include "tests/kernels/contract/backends.h"
#include "tests/kernels/contract/host_tensor.h"
#include "tests/kernels/contract/host_tensor_ops.h"

namespace baton::kernels {
namespace {

struct Shape {
  int64_t n, k;
};
const Shape kShapes[] = {{1, 1}, {64, 64}, {70, 33}, {130, 257}, {192, 576}, {63, 1025}};

class LinearContract : public testing::TestWithParam<Backend> {
 protected:
  // Shapes that this backend takes.
  std::vector<Shape> Shapes() const {
    const int multiple = GetParam().make(GetParam().compute)->traits().column_multiple;
    std::vector<Shape> out;
    for (Shape s : kShapes) out.push_back({s.n, (s.k + multiple - 1) / multiple * multiple});
    return out;
  }
  const DType compute_ = GetParam().compute;
};

std::unique_ptr<PackedLinear> PackOrDie(Ops& ops, HostTensor& w, const float* bias) {
  auto packed = ops.Pack(w.view(), bias);
  EXPECT_TRUE(packed.ok()) << packed.status();
  return *std::move(packed);
}

TEST_P(LinearContract, EqualsTheDoubleSumWithinF32Rounding) {
  auto ops = GetParam().make(compute_);
  std::mt19937 rng(1);
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Shape& s : Shapes()) {
      HostTensor x(compute_, 7, s.k, 8), w(dtype, s.n, s.k, 3), out(DType::kF32, 7, s.n, 2);
      x.Fill(rng), w.Fill(rng, 0.3f);
      std::vector<float> bias(static_cast<size_t>(s.n));
      for (float& b : bias) b = std::normal_distribution<float>()(rng);
      auto packed = PackOrDie(*ops, w, bias.data());
      ops->Linear(x.view(), *packed, out.view());
      ops->Sync();
      for (int64_t r = 0; r < 7; ++r) {
        for (int64_t c = 0; c < s.n; ++c) {
          double sum = bias[c], size = std::abs(bias[c]);
          for (int64_t i = 0; i < s.k; ++i) {
            const double product =
                double{x.At(r, i)} * (compute_ == DType::kF32 ? w.At(c, i) : Rounded(compute_, w.At(c, i)));
            sum += product, size += std::abs(product);
          }
          ASSERT_NEAR(out.At(r, c), sum, size * 0x1p-24 * (s.k + 2))
              << "n " << s.n << " k " << s.k << " row " << r << " column " << c;
        }
      }
    }
  }
}

TEST_P(LinearContract, ARowHasItsBitsInEveryBatchAndPlace) {
  auto ops = GetParam().make(compute_);
  auto reference = ReferenceOf(GetParam()).make(compute_);
  std::mt19937 rng(2);
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Shape& s : Shapes()) {
      HostTensor w(dtype, s.n, s.k), one(compute_, 1, s.k), alone(DType::kF32, 1, s.n);
      w.Fill(rng), one.Fill(rng);
      auto packed = PackOrDie(*ops, w, nullptr), theirs = PackOrDie(*reference, w, nullptr);
      reference->Linear(one.view(), *theirs, alone.view());
      reference->Sync();
      if (GetParam().slow && s.k > 300) continue;  // every tile is taken with the others
      for (int64_t m : {1, 2, 3, 5, 6, 7, 12, 13, 14, 31, 96, 97, 200}) {
        if (GetParam().slow && m > 2 && m < 31) continue;
        HostTensor x(compute_, m, s.k, 8), out(DType::kF32, m, s.n);
        x.Fill(rng);
        const int64_t place = static_cast<int64_t>(rng() % static_cast<uint64_t>(m));
        for (int64_t i = 0; i < s.k; ++i) x.Set(place, i, one.At(0, i));
        ops->Linear(x.view(), *packed, out.view());
        ops->Sync();
        ASSERT_EQ(out.Row(place), alone.Row(0)) << "M " << m << " place " << place << " n " << s.n << " k " << s.k;
      }
    }
  }
}

TEST_P(LinearContract, AColumnHasItsBitsWhateverIsPackedWithIt) {
  auto ops = GetParam().make(compute_);
  std::mt19937 rng(4);
  for (const int64_t m : {1, 9}) {
    const int64_t n = 200, k = 128;
    HostTensor x(compute_, m, k), w(DType::kBF16, n, k), whole(DType::kF32, m, n);
    x.Fill(rng), w.Fill(rng);
    ops->Linear(x.view(), *PackOrDie(*ops, w, nullptr), whole.view());
    ops->Sync();
    for (const auto& [first, end] : std::vector<std::pair<int64_t, int64_t>>{{0, 100}, {100, 200}, {64, 72}}) {
      HostTensor part(DType::kF32, m, end - first);
      ops->Linear(x.view(), **ops->Pack(w.view().Rows(first, end - first), nullptr), part.view());
      ops->Sync();
      for (int64_t r = 0; r < m; ++r) {
        for (int64_t c = first; c < end; ++c)
          ASSERT_EQ(part.At(r, c - first), whole.At(r, c)) << "column " << c << ", M " << m;
      }
    }
  }
}

TEST_P(LinearContract, WritesNothingBesideItsRows) {
  auto ops = GetParam().make(compute_);
  std::mt19937 rng(3);
  HostTensor x(compute_, 9, 40), w(DType::kF32, 70, 40), out(DType::kF32, 9, 70, 11);
  x.Fill(rng), w.Fill(rng);
  const HostTensor before = out;
  auto packed = PackOrDie(*ops, w, nullptr);
  ops->Linear(x.view(), *packed, out.view());
  ops->Sync();
  const float* after = static_cast<const float*>(out.view().data);
  const float* old = static_cast<const float*>(const_cast<HostTensor&>(before).view().data);
  for (int64_t r = 0; r < 9; ++r)
    ASSERT_EQ(std::memcmp(after + r * 81 + 70, old + r * 81 + 70, 11 * 4), 0) << "row " << r;
}

// Without the promise of equal bits a GPU may take other forms for many rows: as right, and on the emulator the same.
TEST(CudaOpsLinear, TheFastFormsOfManyRowsAreRight) {
  auto exact = *MakeHostTensorOps({}), fast = *MakeHostTensorOps({.deterministic = false});
  std::mt19937 rng(4);
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    HostTensor x(DType::kBF16, 130, 72), w(DType::kBF16, 40, 72), want(dtype, 130, 40), got(dtype, 130, 40, 6);
    x.Fill(rng), w.Fill(rng);
    exact->Linear(x.view(), *PackOrDie(*exact, w, nullptr), want.view());
    fast->Linear(x.view(), *PackOrDie(*fast, w, nullptr), got.view());
    exact->Sync(), fast->Sync();
    for (int64_t r = 0; r < 130; ++r) ASSERT_EQ(got.Row(r), want.Row(r)) << "row " << r;
  }
}

// Every tile, every border between tiles, and every rest of one. On the emulator the fast forms hold it as well.
TEST(CudaOpsLinear, ARowHasItsBitsForEveryNumberOfRowsUpTo300InBothModes) {
  constexpr int64_t kMost = 300, kColumns = 40, kInner = 72;
  for (const bool deterministic : {true, false}) {
    auto ops = *MakeHostTensorOps({.deterministic = deterministic});
    std::mt19937 rng(5);
    HostTensor x(DType::kBF16, kMost, kInner), w(DType::kBF16, kColumns, kInner), alone(DType::kF32, kMost, kColumns);
    x.Fill(rng), w.Fill(rng);
    const auto packed = PackOrDie(*ops, w, nullptr);
    for (int64_t r = 0; r < kMost; ++r) ops->Linear(x.view().Rows(r, 1), *packed, alone.view().Rows(r, 1));
    ops->Sync();
    for (int64_t m = 1; m <= kMost; ++m) {
      HostTensor out(DType::kF32, m, kColumns);
      ops->Linear(x.view().Rows(0, m), *packed, out.view());
      ops->Sync();
      for (int64_t r = 0; r < m; ++r) ASSERT_EQ(out.Row(r), alone.Row(r)) << "row " << r << " of " << m;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LinearContract, testing::ValuesIn(Backends()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace baton::kernels
