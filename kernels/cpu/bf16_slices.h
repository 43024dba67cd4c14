// A weight [N, K] in bf16 for oneDNN, where no instruction multiplies bf16 (tests): cut into column slices of a fixed
// width: the unit of work that one thread does alone.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu/aligned_vector.h"
#include "kernels/cpu/bf16_product.h"
#include "kernels/cpu/isa/kernel_table.h"
#include "kernels/cpu/pool.h"
#include "kernels/ops.h"

namespace baton::kernels::cpu {

/// The shapes in use, each made and checked once. One thread at a time.
class Bf16Products {
 public:
  static constexpr int64_t kNarrowest = 64;  ///< columns; widths are multiples of it

  /// A product of `columns` columns, or of kNarrowest where a column would have other bits in the wider one: a column's
  /// bits depend on its weights and on k alone.
  absl::StatusOr<const Bf16Product*> Widest(int64_t k, int64_t columns);

 private:
  absl::StatusOr<const Bf16Product*> Get(int64_t k, int64_t columns);

  std::map<std::pair<int64_t, int64_t>, bool> agrees_;  ///< with the narrowest of its k
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Bf16Product>> made_;
};

class Bf16Slices final : public PackedLinear {
 public:
  /// Copies `weight` (f32, bf16 or f16, rows maybe padded; rounded to bf16) and `bias` (may be null). `products` must
  /// outlive it.
  static absl::StatusOr<std::unique_ptr<Bf16Slices>> Make(const Tensor& weight, const float* bias,
                                                          const KernelTable& kernels, Bf16Products& products,
                                                          Pool& pool);

  int64_t out_features() const override { return n_; }
  int64_t in_features() const override { return k_; }
  size_t bytes() const override { return memory_->bytes() + bias_.size() * sizeof(float); }

  /// out = x · Wᵀ + bias.  x [M, K] bf16, out [M, N] bf16 or f32; either may have padded rows. `staging`: memory of the
  /// caller, kept between calls.
  void Run(const Tensor& x, const Tensor& out, const KernelTable& kernels, Pool& pool,
           AlignedVector<uint16_t>& staging) const;

 private:
  struct Slice {
    int64_t first = 0, columns = 0;
    int64_t width = 0;  ///< of the product: `columns`, and zeros after them
    const Bf16Product* product = nullptr;
    size_t offset = 0;  ///< of its weights in memory_
  };
  Bf16Slices() = default;

  int64_t n_ = 0, k_ = 0;
  std::vector<Slice> slices_;
  std::unique_ptr<Buffer> memory_;
  std::vector<float> bias_;
};

}  // namespace baton::kernels::cpu
