// Dense linear layers by cuBLASLt, where it is measured faster than Baton's own GEMM (--no-deterministic: how it adds
// depends on the number of rows).
//
// Which of both multiplies is decided once, before the steps: each shape of weight, each kind of output and some
// numbers of rows are run by both, on weights that no cache holds. A step then takes what was measured for the next
// number of rows above its own.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/host/scratch.h"
#include "kernels/runtime/cublas_lt.h"
#include "kernels/runtime/runtime.h"

namespace baton::cuda {

/// out [m, n] = x [m, k] · wᵀ, w [n, k]; x and w in bf16. Strides are elements between rows.
struct DenseProduct {
  const void *x = nullptr, *w = nullptr;
  void* out = nullptr;
  int64_t x_stride = 0, w_stride = 0, out_stride = 0;
  int m = 0, n = 0, k = 0;
  bool wide = false;  ///< out in f32, else in bf16
  bool adds = false;  ///< out += …; of f32 only
};

/// Outputs and inputs of a weight.
using WeightShape = std::pair<int, int>;

class LtLinear {
 public:
  /// Enqueues a product by Baton's own GEMM.
  using Own = std::function<void(const DenseProduct&)>;
  /// Seconds that one of `run(i)` takes, i = 0, 1, …, which enqueue what is measured; negative: it cannot be measured.
  using Timer = std::function<double(const DenseProduct& like, bool library, const std::function<void(int)>& run)>;

  /// A handle on the stream's device. Unavailable: the library gives none, in its words. The stream outlives it.
  static absl::StatusOr<std::unique_ptr<LtLinear>> Make(const gpu::CublasLtApi& api, gpu::Stream& stream);
  ~LtLinear();
  LtLinear(const LtLinear&) = delete;
  LtLinear& operator=(const LtLinear&) = delete;

  size_t version() const { return api_.get_version(); }
  /// Takes the memory that products may need beside; ResourceExhausted with both numbers.
  absl::Status Reserve();
  int64_t bytes() const { return workspace_.bytes(); }

  /// Decides for weights of `shapes` and steps of `rows`, ascending. Takes up to half of a GiB of the device meanwhile;
  /// what there is no room for is left to `own`. Waits for the stream.
  void Measure(std::span<const WeightShape> shapes, std::span<const int> rows, const Own& own, const Timer& timer);

  /// Enqueues the product if it was measured faster; false: nothing was enqueued. Ends the process when the library
  /// finds that the device has failed.
  bool Run(const DenseProduct& product);

  /// What was decided, in one line.
  std::string about() const;

 private:
  struct Plan;
  using Kind = std::tuple<int, int, bool, bool>;                     ///< n, k, wide, adds
  using Problem = std::tuple<Kind, int, int64_t, int64_t, int64_t>;  ///< with m and the strides

  LtLinear(const gpu::CublasLtApi& api, gpu::Stream& stream, gpu::LtHandle* handle);
  std::unique_ptr<Plan> MakePlan(const DenseProduct& product) const;
  const Plan* PlanOf(const DenseProduct& product);
  bool Multiply(const DenseProduct& product);
  void MeasureKind(const DenseProduct& like, int copies, std::span<const int> rows, const Own& own, const Timer& timer);

  const gpu::CublasLtApi api_;
  gpu::Stream& stream_;
  gpu::LtHandle* const handle_;
  Scratch workspace_;
  std::map<Kind, std::map<int, bool>> faster_;       ///< by the numbers of rows that were measured
  std::map<Problem, std::unique_ptr<Plan>> plans_;   ///< null: there is none
  int measured_ = 0, taken_ = 0, without_room_ = 0;  ///< products, kinds
  double seconds_ = 0, own_seconds_ = 0, won_seconds_ = 0;
};

/// A Timer by the host's clock: eight runs behind one that is not counted.
LtLinear::Timer HostTimer(gpu::Stream& stream);

}  // namespace baton::cuda
