// Dense linear layers by cuBLASLt, where it is measured faster than Baton's own GEMM (--no-deterministic: how it adds
// depends on the number of rows).
//
// Which of both multiplies is decided once, before the steps: each shape of weight, each kind of output and some
// numbers of rows are run by both, on weights that no cache holds. A step then takes what was measured for the next
// number of rows above its own.
//
// e4m3 with e4m3 is multiplied where the library has their scales: one for each matrix; from 12.9 on one for each row,
// or one for 128 × 128 weights and for 128 inputs of a row, of rows and outputs in fours.
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
#include "kernels/packed_size.h"
#include "kernels/runtime/cublas_lt.h"
#include "kernels/runtime/runtime.h"

namespace baton::cuda {

/// What x and w are: bf16, or e4m3 with scales in f32 that are of a whole matrix, of each row of both, or of 128 inputs
/// of a row of x and of 128 × 128 weights.
enum class LtNumbers : uint8_t { kBf16, kOneScale, kRowScales, kBlockScales };

/// out [m, n] = x [m, k] · wᵀ + bias, w [n, k]. Strides are elements between rows.
struct DenseProduct {
  const void *x = nullptr, *w = nullptr;
  void* out = nullptr;
  int64_t x_stride = 0, w_stride = 0, out_stride = 0;
  int m = 0, n = 0, k = 0;
  bool wide = false;           ///< out in f32, else in bf16
  bool adds = false;           ///< out += …; of f32 only
  const void* bias = nullptr;  ///< [n] or null: f32 where out is and x is bf16, else bf16
  LtNumbers numbers = LtNumbers::kBf16;
  /// Of e4m3. x: one, [m], [k / 128][m]. w: one, or kernels::LibraryScales.
  const float *x_scales = nullptr, *w_scales = nullptr;
};

/// A kind of weight.
struct LtWeight {
  int n = 0, k = 0;
  bool biased = false;
  LtNumbers numbers = LtNumbers::kBf16;
  auto operator<=>(const LtWeight&) const = default;
};

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

  /// Whether this version has products of such numbers.
  bool Knows(LtNumbers numbers) const;
  /// Decides for weights of these kinds and steps of `rows`, ascending. Takes up to half of a GiB of the device
  /// meanwhile; what there is no room for is left to `own`. Waits for the stream.
  void Measure(std::span<const LtWeight> weights, std::span<const int> rows, const Own& own, const Timer& timer);

  /// Whether Run would take the product, wherever its numbers lie.
  bool Wins(const DenseProduct& product) const;
  /// Enqueues the product if it was measured faster; false: nothing was enqueued. Ends the process when the library
  /// finds that the device has failed.
  bool Run(const DenseProduct& product);

  /// What was decided, in one line.
  std::string about() const;

 private:
  struct Plan;
  using Kind = std::tuple<LtWeight, bool, bool>;                     ///< with wide, adds
  using Problem = std::tuple<Kind, int, int64_t, int64_t, int64_t>;  ///< with m and the strides

  LtLinear(const gpu::CublasLtApi& api, gpu::Stream& stream, gpu::LtHandle* handle);
  static Kind KindOf(const DenseProduct& product);
  std::unique_ptr<Plan> MakePlan(const DenseProduct& product) const;
  int SetPointers(const DenseProduct& product, gpu::LtOperation* operation) const;
  const Plan* PlanOf(const DenseProduct& product);
  bool Multiply(const DenseProduct& product);
  bool MeasureWeight(const LtWeight& weight, std::span<const int> rows, const Own& own, const Timer& timer);
  void FillWith(std::span<const uint16_t> numbers, const gpu::Memory& to);
  void MeasureKind(const DenseProduct& like, int copies, std::span<const int> rows, const Own& own, const Timer& timer);

  const gpu::CublasLtApi api_;
  gpu::Stream& stream_;
  gpu::LtHandle* const handle_;
  Scratch workspace_;
  std::map<Kind, std::map<int, bool>> faster_;      ///< by the numbers of rows that were measured
  std::map<Problem, std::unique_ptr<Plan>> plans_;  ///< null: there is none
  int measured_ = 0, taken_ = 0;                    ///< products
  int without_room_ = 0, not_known_ = 0;            ///< weights
  double seconds_ = 0, own_seconds_ = 0, won_seconds_ = 0;
};

/// A Timer by the host's clock: eight runs behind one that is not counted.
LtLinear::Timer HostTimer(gpu::Stream& stream);

}  // namespace baton::cuda
