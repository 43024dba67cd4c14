// A model with KV memory of its own, for tests: one sequence in scattered blocks, logits as vectors.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "engine/model/model.h"
#include "kernels/cpu/cpu_ops.h"

namespace baton::engine {

using LogitRows = std::vector<std::vector<float>>;

/// Root of the squared differences, as a share of b's.
inline double Distance(const LogitRows& a, const LogitRows& b) {
  double error = 0, size = 0;
  for (size_t r = 0; r < a.size(); ++r)
    for (size_t i = 0; i < a[r].size(); ++i) {
      error += std::pow(a[r][i] - b[r][i], 2);
      size += std::pow(b[r][i], 2);
    }
  return std::sqrt(error / size);
}

class PagedModel {
 public:
  static constexpr int kMaxTokens = 64;

  /// A model that holds `blocks` blocks of every group. `ops` has the defaults but for what is set in it.
  static absl::StatusOr<std::unique_ptr<PagedModel>> Load(const ModelSource& source, kernels::CpuOpsConfig ops = {},
                                                          int blocks = 12) {
    BATON_ASSIGN_OR_RETURN(std::unique_ptr<kernels::Ops> cpu, kernels::MakeCpuOps(ops));
    return LoadOn(std::move(cpu), source, blocks);
  }
  /// The same on any backend.
  static absl::StatusOr<std::unique_ptr<PagedModel>> LoadOn(std::unique_ptr<kernels::Ops> ops,
                                                            const ModelSource& source, int blocks = 12) {
    std::unique_ptr<PagedModel> out(new PagedModel);
    out->ops_ = std::move(ops);
    BATON_ASSIGN_OR_RETURN(out->model_, LoadModel(source, *out->ops_, kMaxTokens, nullptr));
    BATON_RETURN_IF_ERROR(out->AllocateKv(blocks));
    return out;
  }

  const Model& model() const { return *model_; }
  kernels::Ops& ops() { return *ops_; }
  const std::vector<KvGroupView>& views() const { return views_; }
  const std::vector<int32_t>& table() const { return table_; }

  /// Runs tokens at positions context, context + 1, …; logits of `rows` (indices into `tokens`).
  absl::StatusOr<LogitRows> Run(const std::vector<int32_t>& tokens, int32_t context, const std::vector<int32_t>& rows,
                                bool cancelled = false) {
    const std::vector<int32_t> row_start = {0, static_cast<int32_t>(tokens.size())}, contexts = {context};
    ForwardBatch batch{.tokens = tokens, .logit_rows = rows};
    for (size_t g = 0; g < views_.size(); ++g) {
      batch.groups.push_back({.row_start = row_start,
                              .context = contexts,
                              .block_tables = table_,
                              .table_stride = static_cast<int64_t>(table_.size())});
    }
    const std::atomic<bool> cancel{cancelled};
    BATON_ASSIGN_OR_RETURN(const kernels::Tensor logits, model_->Forward(batch, views_, cancel));
    LogitRows out(rows.size(), std::vector<float>(logits.shape[1]));
    for (size_t r = 0; r < rows.size(); ++r) {
      ops_->CopyToHost(out[r].data(), logits.Rows(static_cast<int64_t>(r), 1).data, out[r].size() * sizeof(float));
    }
    return out;
  }

  /// All logits of a prompt, run in chunks.
  absl::StatusOr<LogitRows> Prefill(const std::vector<int32_t>& prompt, int chunk) {
    LogitRows out;
    for (size_t at = 0; at < prompt.size(); at += chunk) {
      const std::vector<int32_t> part(prompt.begin() + at, prompt.begin() + std::min(prompt.size(), at + chunk));
      std::vector<int32_t> rows(part.size());
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i);
      BATON_ASSIGN_OR_RETURN(LogitRows logits, Run(part, static_cast<int32_t>(at), rows));
      for (std::vector<float>& row : logits) out.push_back(std::move(row));
    }
    return out;
  }

 private:
  PagedModel() = default;

  absl::Status AllocateKv(int blocks) {
    for (const KvGroup& group : model_->kv_layout().groups) {
      KvGroupView view;
      for (int layer : group.layers) {
        kernels::KvLayerView planes;
        planes.layer = static_cast<uint32_t>(layer);
        for (int p = 0; p < 2; ++p) {
          const KvPlane& plane = group.planes[p];
          const int64_t stride = group.tokens_per_block * plane.heads * plane.BytesPerTokenHead();
          BATON_ASSIGN_OR_RETURN(std::unique_ptr<kernels::Buffer> memory,
                                 ops_->Allocate(static_cast<size_t>(stride * blocks)));
          kernels::KvPlaneView& to = p == 0 ? planes.k : planes.v;
          to.base = memory->data();
          to.block_stride_bytes = stride;
          to.tokens_per_block = group.tokens_per_block;
          to.heads = plane.heads;
          to.dim = plane.dim;
          to.dtype = plane.dtype;
          to.scale = plane.ScaleOf(layer);
          memory_.push_back(std::move(memory));
        }
        view.layers.push_back(planes);
      }
      views_.push_back(std::move(view));
    }
    for (int b = 0; b < blocks; ++b)
      table_.push_back((b * 5 + 3) % blocks);  // 5 and `blocks` share no factor: a permutation
    return absl::OkStatus();
  }

  std::unique_ptr<kernels::Ops> ops_;
  std::unique_ptr<Model> model_;
  std::vector<std::unique_ptr<kernels::Buffer>> memory_;
  std::vector<KvGroupView> views_;
  std::vector<int32_t> table_;
};

}  // namespace baton::engine
