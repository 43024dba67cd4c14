// A paged KV layer with shuffled blocks and a ragged batch over it.
#pragma once

#include <algorithm>
#include <numeric>

#include "common/float8.h"
#include "kernels/ops.h"
#include "tests/kernels/contract/host_tensor.h"

namespace baton::kernels {

struct KvShape {
  int heads = 1, dim = 64, tokens_per_block = 16;
  DType dtype = DType::kF32;
  float k_scale = 1.0f, v_scale = 1.0f;  ///< of e4m3
};

/// Memory of both planes of one layer, and a block table per sequence: blocks in random order, none shared.
class PagedKv {
 public:
  PagedKv(const KvShape& shape, int sequences, int max_tokens, uint32_t seed) : shape_(shape) {
    per_sequence_ = (max_tokens + shape.tokens_per_block - 1) / shape.tokens_per_block;
    blocks_ = sequences * per_sequence_;
    tables_.resize(static_cast<size_t>(blocks_));
    std::iota(tables_.begin(), tables_.end(), 0);
    std::shuffle(tables_.begin(), tables_.end(), std::mt19937(seed));
    block_bytes_ = static_cast<int64_t>(shape.tokens_per_block) * shape.heads * shape.dim *
                   static_cast<int64_t>(DTypeBytes(shape.dtype));
    k_.resize(static_cast<size_t>(blocks_ * block_bytes_), static_cast<char>(0xFF));  // NaN until it is written
    v_ = k_;
    units_ = shape.tokens_per_block / 16;
    k_digests_.resize(static_cast<size_t>(blocks_ * units_ * shape.heads), 0xABCD);
    v_digests_ = k_digests_;
  }

  KvLayerView view(uint32_t layer = 3, uint32_t first_head = 2) {
    const int64_t stride = units_ * shape_.heads;
    KvPlaneView k{k_.data(),         block_bytes_, shape_.tokens_per_block, shape_.heads, shape_.dim, shape_.dtype,
                  k_digests_.data(), stride,       shape_.k_scale};
    KvPlaneView v = k;
    v.base = v_.data();
    v.digests = v_digests_.data();
    v.scale = shape_.v_scale;
    return {k, v, layer, first_head};
  }
  /// All tables; sequence s at s · table_stride().
  const std::vector<int32_t>& tables() const { return tables_; }
  int64_t table_stride() const { return per_sequence_; }

  float At(bool value, int sequence, int token, int head, int i) const {
    const char* at = VectorAt(value, sequence, token, head) + i * static_cast<int64_t>(DTypeBytes(shape_.dtype));
    if (shape_.dtype == DType::kF32) {
      float x;
      std::memcpy(&x, at, 4);
      return x;
    }
    if (shape_.dtype == DType::kF8E4M3)
      return FloatOfE4m3(static_cast<uint8_t>(*at)) * (value ? shape_.v_scale : shape_.k_scale);
    uint16_t h;
    std::memcpy(&h, at, 2);
    return shape_.dtype == DType::kBF16 ? FromBf16(h) : FromF16(h);
  }
  const char* VectorAt(bool value, int sequence, int token, int head) const {
    const int32_t block = tables_[static_cast<size_t>(sequence * per_sequence_ + token / shape_.tokens_per_block)];
    const int64_t element = (static_cast<int64_t>(token % shape_.tokens_per_block) * shape_.heads + head) * shape_.dim;
    return (value ? v_ : k_).data() + block * block_bytes_ + element * static_cast<int64_t>(DTypeBytes(shape_.dtype));
  }
  uint64_t DigestAt(bool value, int sequence, int token, int head) const {
    const int32_t block = tables_[static_cast<size_t>(sequence * per_sequence_ + token / shape_.tokens_per_block)];
    const int unit = token % shape_.tokens_per_block / 16;
    return (value ? v_digests_ : k_digests_)[static_cast<size_t>((block * units_ + unit) * shape_.heads + head)];
  }

 private:
  KvShape shape_;
  int64_t per_sequence_ = 0, blocks_ = 0, block_bytes_ = 0, units_ = 1;
  std::vector<int32_t> tables_;
  std::vector<char> k_, v_;
  std::vector<uint64_t> k_digests_, v_digests_;
};

/// Rows and contexts of a step, with storage.
struct Step {
  std::vector<int32_t> row_start{0}, context, tables;
  int64_t stride = 0;
  /// Sequence `s` of the pool runs `rows` tokens after `done`.
  void Add(const PagedKv& kv, int s, int done, int rows) {
    stride = kv.table_stride();
    row_start.push_back(row_start.back() + rows);
    context.push_back(done);
    tables.insert(tables.end(), kv.tables().begin() + s * stride, kv.tables().begin() + (s + 1) * stride);
  }
  RaggedBatch batch() const { return {row_start, context, tables, stride}; }
  int rows() const { return row_start.back(); }
};

}  // namespace baton::kernels
