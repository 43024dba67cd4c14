// The CUDA half of tensor_map.h. The driver's encoder is found at run time, so that nothing links libcuda.
#include <cstdio>
#include <cstdlib>

#include "kernels/runtime/tensor_map.h"

namespace baton::gpu {

namespace {

/// Null when the driver is older than TMA.
decltype(&cuTensorMapEncodeTiled) FindEncoder() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found;
  CheckCuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found),
            "cudaGetDriverEntryPoint", __LINE__);
  return found == cudaDriverEntryPointSuccess ? reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry) : nullptr;
}

}  // namespace

px::TensorMap2D MakeTensorMap2D(const px::bf16* base, int columns, int rows, int row_stride, int box_rows) {
  static const auto encode = FindEncoder();
  px::TensorMap2D map;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(row_stride) * sizeof(px::bf16)};
  const cuuint32_t box[2] = {px::kTmaBoxColumns, static_cast<cuuint32_t>(box_rows)}, steps[2] = {1, 1};
  const CUresult result =
      encode == nullptr
          ? CUDA_ERROR_NOT_FOUND
          : encode(&map.map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<px::bf16*>(base), sizes, strides, box,
                   steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    std::fprintf(stderr, "tensor_map.cu: cuTensorMapEncodeTiled of [%d, %d], stride %d, box of %d rows: error %d %s\n",
                 rows, columns, row_stride, box_rows, static_cast<int>(result),
                 WhatTmaRefuses(base, columns, rows, row_stride, box_rows).c_str());
    std::abort();
  }
  return map;
}

}  // namespace baton::gpu
