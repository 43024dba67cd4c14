// One shape of a linear layer in bf16 through oneDNN's inner_product, made so that a row's bits do not depend on the
// rows beside it: one primitive per number of rows, checked against each other when the shape is made.
//
// oneDNN picks another kernel, and may sum in another order, for another number of rows, so nothing is taken on trust:
// Make runs the same rows at M = 1 and inside every other size. The sizes that give the same bits are used together.
// Where only M = 1 would be left, one size whose rows do not depend on each other is used for everything.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::kernels::cpu {

/// What oneDNN may use here: "avx2", "avx512_core", "avx512_core_bf16", "avx512_core_amx". `cap`: one of them or empty;
/// it is set once for the process, before anything else asks oneDNN.
std::string OneDnnIsa(const std::string& cap);
/// "2.6.3"
std::string OneDnnVersion();

class Bf16Product {
 public:
  /// out [M, columns] = x [M, k] · Wᵀ. Takes milliseconds: primitives are compiled and checked.
  /// FailedPrecondition: oneDNN has no bf16 kernel on this machine.
  static absl::StatusOr<std::unique_ptr<Bf16Product>> Make(int64_t k, int64_t columns);
  ~Bf16Product();

  int64_t columns() const { return columns_; }
  size_t packed_bytes() const;
  /// weight [columns, k] bf16, dense → packed_bytes() at `packed`, 64-byte aligned.
  void Pack(const uint16_t* weight, void* packed) const;
  /// The size of the primitive to run next when `rows` ≥ 1 rows are left. It may be greater: pad.
  int64_t NextSize(int64_t rows) const;
  /// x [size, k] bf16 dense, out [size, columns] f32 dense. `size` as NextSize gave it. Any thread, several at a time.
  void Run(int64_t size, const void* x, const void* packed, float* out) const;

  /// Every column here has the bits that it has in `narrow`, a product of the same k whose width divides this one's.
  bool ColumnsAgree(const Bf16Product& narrow) const;

  /// Sizes in use, ascending; one alone that is not 1 means that sizes disagreed.
  const std::vector<int64_t>& sizes() const { return sizes_; }

 private:
  struct Primitives;
  Bf16Product(int64_t k, int64_t columns);
  void ChooseSizes();
  int64_t k_, columns_;
  std::unique_ptr<Primitives> primitives_;
  std::vector<int64_t> sizes_;
};

}  // namespace baton::kernels::cpu
