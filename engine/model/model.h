// A loaded model on one rank: config, packed weights and the forward pass over a ragged batch.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/kv_layout.h"
#include "engine/model/config/model_config.h"
#include "engine/parallel/rank_place.h"
#include "kernels/ops.h"

namespace baton::engine {

/// One KV group's memory on this rank: views per layer that the group has here (RankKvLayout), in order.
struct KvGroupView {
  std::vector<kernels::KvLayerView> layers;
};

/// The rows of one step.
struct ForwardBatch {
  std::span<const int32_t> tokens;           ///< [T] token ids of the rows; empty on ranks that look none up
  std::vector<kernels::RaggedBatch> groups;  ///< per KV group: same rows, that group's block tables
  std::span<const int32_t> logit_rows;       ///< rows whose logits are wanted, ascending; a row may come again (n > 1)
  std::function<void(int layer)> on_layer_kv;  ///< every rank has asked its Ops for the rows' KV of this layer, and
                                               ///< ranks that share a machine are done with it; may be empty
  /// Rows of the last Ops::BeginSample that `tokens` may name (kernels::DrawnToken).
  int32_t drawn_rows = 0;
  std::span<const kernels::SampleRow> draws;  ///< kernels::StepInputs::draws
};

/// Progress of a load, 0…1, with a phase name ("read", "pack"). Called on the loading thread.
using LoadProgress = std::function<void(std::string_view phase, double fraction)>;

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  virtual const KvLayout& kv_layout() const = 0;
  /// Device memory of the weights.
  virtual size_t weight_bytes() const = 0;
  /// The layout of the whole model is kv_layout(); `kv` are this rank's views.
  /// Runs the batch: writes its KV, and logits [logit_rows, vocab] f32 into memory the model owns, valid until the next
  /// call. Looks at `cancel` between layers; then the answer is Cancelled and the KV written counts as garbage.
  /// With several ranks: all call it with the same rows, rank 0 alone gets logits, returns last, and looks at `cancel`
  /// before the step only. Any other error there breaks the ranks' links.
  virtual absl::StatusOr<kernels::Tensor> Forward(const ForwardBatch& batch, std::span<const KvGroupView> kv,
                                                  const std::atomic<bool>& cancel) = 0;
  /// Not OK: ranks on devices lost each other, and what the last Forward gave is undefined. After Ops::Sync, or after
  /// results were read.
  virtual absl::Status LinksHealth() const { return absl::OkStatus(); }
};

struct ModelSource {
  std::string path;                             ///< HF directory or .gguf file
  std::string config_directory{};               ///< HF directory of its config; empty: the model's own
  std::vector<std::string> config_overrides{};  ///< JSON objects over its config (config_reader.h)
  bool dummy_weights = false;                   ///< --load-format dummy: seeded random weights from config.json alone
  uint64_t dummy_seed = 0;
  int block_size = kUnitTokens;                 ///< tokens per KV block of the layout, a multiple of kUnitTokens
  RankPlace place;                              ///< the rank that loads
  int64_t context_tokens = 0;                   ///< --max-model-len: prompt and output; 0: as many as the model can
  int64_t max_sequences = 0;                    ///< of a step; 0: not known, a device takes memory as it goes
  int64_t max_logit_rows = 0;                   ///< rows of logits wanted of a step, when max_sequences is known
  std::vector<int32_t> recorded_rows;           ///< steps of decodes that a device may record, by their rows; ascending
  const std::atomic<bool>* given_up = nullptr;  ///< once true, packing ends with Cancelled; any thread sets it
  /// What weights, activations and, on a device, working memory may take; 0: the free memory of the device, or of this
  /// host.
  int64_t memory_limit_bytes = 0;
  int64_t host_limit_bytes = 0;    ///< of the host's memory, for loading onto a device; 0: what is free of it
  int64_t one_shot_sum_bytes = 0;  ///< kernels::DeviceConfig::one_shot_bytes
  bool hands_over = false;         ///< KV will be moved (Ops::MakeKvMover)
  int64_t lent_slot_bytes = 0;     ///< and so many bytes of it at a time are read by other GPUs of the machine
};

/// Reads config and weights (mmap, this rank's slices only), packs them through `ops`. `max_tokens` bounds T per step.
/// `links` are needed where `source.place` has neighbours.
/// InvalidArgument: the files are wrong (with names, offsets, shapes) or the family is unknown; NotFound: no such path;
/// FailedPrecondition: the model's context is not that long, or has no room for an answer (with both numbers);
/// ResourceExhausted: does not fit in memory (with both numbers).
absl::StatusOr<std::unique_ptr<Model>> LoadModel(const ModelSource& source, kernels::Ops& ops, int max_tokens,
                                                 const LoadProgress& progress, const RankLinks& links = {});

/// The description of a model that its files' headers give.
struct ModelFacts {
  ModelConfig config;
  KvLayout kv_layout;
  int64_t parameters = 0;
  int64_t weight_bytes = 0;  ///< device memory that its weights will take
};

/// Opens and checks everything that LoadModel does, and loads nothing. Fails as LoadModel.
absl::StatusOr<ModelFacts> InspectModel(const ModelSource& source, const kernels::OpsTraits& traits, int max_tokens);

}  // namespace baton::engine
