#include "kernels/cpu/rounded_linear.h"

#include <vector>

#include "common/half.h"

namespace baton::kernels::cpu {

Tensor RoundedLinear::Round(const Tensor& x, Pool& pool, AlignedVector<char>& room) const {
  BATON_CHECK((x.dtype == DType::kF32 || x.dtype == DType::kBF16) && x.rank == 2 && x.cols() == in_features(), "x of ",
              x.cols(), " columns in ", DTypeName(x.dtype), ", a weight of ", in_features());
  const int64_t rows = x.rows(), n = x.cols();
  room.resize(static_cast<size_t>(rows * n) * DTypeBytes(x.dtype));
  const Tensor out(room.data(), x.dtype, {rows, n});
  pool.Run(rows, [&](int64_t r) {
    const Tensor from = x.Rows(r, 1), to = out.Rows(r, 1);
    if (x.dtype == DType::kF32) return RoundInputs(rounding_, from.Data<float>(), n, group_, to.Data<float>());
    thread_local std::vector<float> row;
    row.resize(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) row[static_cast<size_t>(i)] = FloatOfBf16(from.Data<uint16_t>()[i]);
    RoundInputs(rounding_, row.data(), n, group_, row.data());
    for (int64_t i = 0; i < n; ++i) to.Data<uint16_t>()[i] = Bf16OfFloat(row[static_cast<size_t>(i)]);
  });
  return out;
}

}  // namespace baton::kernels::cpu
