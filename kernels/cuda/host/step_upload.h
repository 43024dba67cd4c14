// A step's block tables, positions and attention work lists on the device. Uploaded once per step, not once per layer.
#pragma once

#include <deque>
#include <vector>

#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/attention/mla_decode.cuh"
#include "kernels/cuda/host/scratch.h"
#include "kernels/cuda/host/step_packer.h"
#include "kernels/device_rooms.h"

namespace baton::cuda {

/// Device copies of a RaggedBatch; valid until the next step's first call.
struct StepOnDevice {
  const int32_t* row_start;  ///< [sequences + 1]
  const int32_t* lengths;    ///< [sequences] this step's rows included
  const int32_t* tables;     ///< [sequences, table_stride]
  const int32_t* positions;  ///< [rows]
  const int32_t* slots;      ///< [rows] block · tokens_per_block + offset
  int64_t table_stride;
  int rows, last_position;
  bool apart;  ///< no sequence has several rows
};

/// One kind of layer.
struct AttentionKind {
  int q_heads = 1, kv_heads = 1, window = 0;
  bool latent = false;  ///< multi-head latent attention: every row is decoded, kMlaRows packed rows at a time
  bool operator==(const AttentionKind&) const = default;
};

/// Which part of the step goes to which attention kernel, for one kind of layer.
struct AttentionWork {
  /// Of one launch.
  struct Decode {
    DecodeWork work;
    int partials;
  };
  const PrefillTile* tiles;
  int tile_count;
  std::vector<Decode> decode;
};

inline kernels::StepLimits::Heads HeadsOf(const AttentionKind& kind) {
  return {.q_heads = kind.q_heads, .kv_heads = kind.kv_heads, .window = kind.window};
}

/// Thread: the executor's. One per CudaOps and KV group: the groups of a step have tables of their own.
class StepUpload {
 public:
  explicit StepUpload(gpu::Stream& stream) : stream_(stream), arrays_(stream) {}
  /// Steps within `limits` allocate nothing afterwards. ResourceExhausted with both numbers.
  absl::Status Reserve(const kernels::StepLimits& limits);
  bool Holds(const kernels::RaggedBatch& batch, int tokens_per_block) const;
  int64_t bytes() const;  ///< of the device's memory

  /// How work is shared out, the same for all calls of an object with one kind.
  struct Sharing {
    /// > 0: for the decode form without fixed tiles, cut so that as many warps have about one item each; else one item
    /// per fixed tile.
    int warps = 0;
    int max_partials = 0;  ///< of one launch, unless a single group has more
  };
  // What Get and Work do, for several arrays at once: pack, upload, bind. `sequences` of the batch are real, the others
  // write no KV and attend to nothing.
  void Pack(const kernels::RaggedBatch& batch, int tokens_per_block, int sequences, StepPacker& packer);
  /// With `limits`, arrays have room for the most that `batch` may need, so that offsets depend on its rows alone.
  /// Returns the launches of decode attention.
  size_t PackWork(const AttentionKind& kind, const Sharing& sharing, const kernels::StepLimits* limits,
                  StepPacker& packer);
  void Bind(const char* base);  ///< where the packed arrays are now
  const StepOnDevice& Get(const kernels::RaggedBatch& batch, int tokens_per_block);
  /// Of the step that Get returned last. Sequences whose packed rows fit one MMA tile are decoded, others prefilled.
  const AttentionWork& Work(const AttentionKind& kind, const Sharing& sharing);

 private:
  struct Planned {
    explicit Planned(gpu::Stream& stream) : memory(stream) {}
    AttentionKind kind;
    bool current = false, packed = false;
    Scratch memory;
    AttentionWork work{};
    // While packed: the work above has no pointers yet.
    size_t at_tiles = 0, at_groups = 0, at_items = 0, at_counts = 0;
    std::vector<DecodeSlice> slices;
    void Bind(const char* base);
  };
  Planned& PlanOf(const AttentionKind& kind);
  gpu::Stream& stream_;
  Scratch arrays_;
  StepOnDevice step_{};
  size_t at_rows_ = 0, at_lengths_ = 0, at_tables_ = 0, at_positions_ = 0, at_slots_ = 0;
  int sequences_ = 0;  ///< real ones
  std::vector<int32_t> row_start_, context_, tables_, lengths_;
  int64_t table_stride_ = -1;
  int tokens_per_block_ = 0;
  std::deque<Planned> plans_;
};

/// The steps of the last few groups.
class StepUploads {
 public:
  explicit StepUploads(gpu::Stream& stream) : stream_(stream) {}
  /// As StepUpload::Reserve, for the groups of one step.
  absl::Status Reserve(const kernels::StepLimits& limits) {
    groups_ = limits.tokens_per_block.size();
    while (steps_.size() < groups_) steps_.emplace_back(stream_);
    for (StepUpload& step : steps_) BATON_RETURN_IF_ERROR(step.Reserve(limits));
    return absl::OkStatus();
  }
  int64_t bytes() const {
    int64_t sum = 0;
    for (const StepUpload& step : steps_) sum += step.bytes();
    return sum;
  }
  StepUpload& operator[](size_t group) { return steps_[group]; }  ///< once reserved
  StepUpload& Of(const kernels::RaggedBatch& batch, int tokens_per_block) {
    for (StepUpload& s : steps_)
      if (s.Holds(batch, tokens_per_block)) return s;
    if (steps_.size() < groups_) return steps_.emplace_back(stream_);
    return steps_[next_++ % groups_];
  }

 private:
  size_t groups_ = 4;
  gpu::Stream& stream_;
  std::deque<StepUpload> steps_;
  size_t next_ = 0;
};

}  // namespace baton::cuda
