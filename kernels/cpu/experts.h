// Mixtures of experts on the CPU: the reference for devices. Plain loops around Ops::Linear, no kernels of their own.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu/isa/kernel_table.h"
#include "kernels/ops.h"

namespace baton::kernels::cpu {

/// One PackedLinear per expert.
class CpuExperts final : public PackedExperts {
 public:
  /// weights [experts, N, K], biases [experts, N] or null. `ops` packs them and runs them later.
  static absl::StatusOr<std::unique_ptr<CpuExperts>> Make(Ops& ops, const Tensor& weights, const float* biases);

  int experts() const override { return static_cast<int>(linears_.size()); }
  int64_t out_features() const override { return linears_.front()->out_features(); }
  int64_t in_features() const override { return linears_.front()->in_features(); }
  size_t bytes() const override;
  const PackedLinear& Expert(int e) const { return *linears_[static_cast<size_t>(e)]; }

 private:
  std::vector<std::unique_ptr<PackedLinear>> linears_;
};

/// What Ops says of the operations of these names. Thread: the caller's.
void RouteTokens(const Tensor& logits, bool renormalize, const MoeRoutes& routes);
/// `gathered`: memory of the caller, kept between calls.
void ExpertLinear(Ops& ops, const Tensor& x, bool by_row, const MoeRoutes& routes, const CpuExperts& w,
                  const Tensor& out, std::vector<char>& gathered);
void CombineExperts(const KernelTable& kernels, const Tensor& y, const MoeRoutes& routes, const Tensor& out);

}  // namespace baton::kernels::cpu
