// Rows of weights from host memory to the device, through pinned memory: several threads fill one half while the other
// is copied. From pageable memory the driver copies with one thread, and waits.
#pragma once

#include <array>
#include <memory>

#include "absl/status/status.h"
#include "kernels/packed_size.h"
#include "kernels/px/px.h"
#include "kernels/runtime/runtime.h"
#include "kernels/tensor.h"

namespace baton::cuda {

/// Thread: the executor's. The pinned memory is taken by the first call and kept until Release.
class WeightUpload {
 public:
  /// `half_bytes` of pinned memory at a time, twice; a row at least.
  explicit WeightUpload(gpu::Stream& stream, size_t half_bytes = size_t{kernels::kWeightHalfBytes})
      : stream_(stream), half_bytes_(half_bytes) {}
  /// weight [n, k] f32, bf16 or f16 in host memory → bf16 rows `row_stride` elements apart, zero beyond k. The weight
  /// has been read when it returns; its copies may be under way. ResourceExhausted: no pinned memory, with the number.
  absl::Status Rows(const kernels::Tensor& weight, px::bf16* to, int64_t row_stride);
  /// Bytes as they are. As Rows.
  absl::Status Bytes(const void* from, void* to, size_t bytes);
  /// Waits for the copies and gives the pinned memory back.
  void Release();

 private:
  struct Half {
    explicit Half(size_t bytes) : memory(bytes, gpu::MemoryKind::kShared) {}
    gpu::Memory memory;
    gpu::Event copied;
  };
  absl::Status Reserve(size_t bytes);
  /// The half that was sent first, once it is free.
  Half& Next();
  gpu::Stream& stream_;
  const size_t half_bytes_;
  std::array<std::unique_ptr<Half>, 2> halves_;
  size_t next_ = 0;
};

}  // namespace baton::cuda
