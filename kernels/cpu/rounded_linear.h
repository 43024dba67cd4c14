// A weight whose inputs become e4m3 before they are multiplied, for CpuOps: what the codes stand for, both times.
#pragma once

#include <memory>
#include <utility>

#include "kernels/cpu/aligned_vector.h"
#include "kernels/cpu/pool.h"
#include "kernels/ops.h"

namespace baton::kernels::cpu {

class RoundedLinear final : public PackedLinear {
 public:
  /// `inner` is the weight packed as one that rounds nothing; `group` inputs share a scale.
  RoundedLinear(std::unique_ptr<PackedLinear> inner, const InputRounding& rounding, int64_t group)
      : inner_(std::move(inner)), rounding_(rounding), group_(group) {}

  int64_t out_features() const override { return inner_->out_features(); }
  int64_t in_features() const override { return inner_->in_features(); }
  size_t bytes() const override { return inner_->bytes(); }
  bool rounds_inputs() const override { return true; }

  const PackedLinear& inner() const { return *inner_; }
  /// x rounded, in its own type and in `room`: valid until `room` is used again. x [T, K] f32 or bf16.
  Tensor Round(const Tensor& x, Pool& pool, AlignedVector<char>& room) const;

 private:
  std::unique_ptr<PackedLinear> inner_;
  InputRounding rounding_;
  int64_t group_;
};

}  // namespace baton::kernels::cpu
