// Where a rank stands in its worker, and which part of the model is its own. Pure values; any thread.
//
// Tensor parallelism cuts every layer: the columns of q, k, v, gate, up and the head (heads, inner width, vocabulary),
// and the inputs of o and down, whose outputs are partial sums. Pipeline parallelism cuts the layers into runs
// (stages).
//
// A partial sum has `leaves`: with --reduction-width R, a layer that sums over ranks is R partial sums in f32, each
// over 1/R of its inputs, added as one binary tree in order. A rank computes R / TP of them, so TP 1, 2 … R have the
// same bits. With R < TP each rank has one leaf, and the bits are those of that TP.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/int_range.h"
#include "engine/model/config/model_config.h"

namespace baton::engine {

class Communicator;

struct RankPlace {
  int tensor_rank = 0, tensor_size = 1;
  int stage = 0, stages = 1;
  int reduction_width = 1;

  /// Ranks are numbered stage by stage.
  static RankPlace Of(int rank, int tensor_size, int stages, int reduction_width) {
    return {rank % tensor_size, tensor_size, rank / tensor_size, stages, reduction_width};
  }
  int rank() const { return stage * tensor_size + tensor_rank; }
  int ranks() const { return stages * tensor_size; }
  bool first_stage() const { return stage == 0; }
  bool last_stage() const { return stage + 1 == stages; }
  /// The world rank with this tensor rank in another stage.
  int Peer(int other_stage) const { return other_stage * tensor_size + tensor_rank; }
  /// Partial sums that this rank computes of a layer.
  int leaves() const { return reduction_width > tensor_size ? reduction_width / tensor_size : 1; }
  /// "rank 3 (tensor 1 of 2, stage 1 of 2)".
  std::string Name() const;
};

/// The rank's part of the model.
struct RankShape {
  IntRange layers, q_heads, kv_heads, inner, vocab;
};
RankShape ShapeOf(const ModelConfig& config, const RankPlace& place);

/// InvalidArgument with both numbers: heads that TP does not divide (KV heads may also be kept by several ranks, when
/// TP is a multiple of them), widths that are no multiple of TP or R, powers of two that are none, more stages than
/// layers.
absl::Status CheckPlace(const ModelConfig& config, const RankPlace& place);

/// The communicators of a rank. Null where the rank is alone. They outlive the model.
struct RankLinks {
  Communicator* tensor = nullptr;  ///< the ranks of its stage; rank = tensor_rank
  Communicator* world = nullptr;   ///< all ranks of the worker; rank = RankPlace::rank()
  Communicator* stages = nullptr;  ///< the same ranks, for rows between stages that are on devices; null: `world`
};

}  // namespace baton::engine
