// LoadModel: config → weight source → checks (shapes, memory) → packed weights → decoder.
#include <algorithm>
#include <filesystem>
#include <limits>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/foreign_text.h"
#include "common/host_memory.h"
#include "common/log.h"
#include "common/status.h"
#include "engine/model/config/config_reader.h"
#include "engine/model/decoder.h"
#include "engine/model/model_digest.h"
#include "engine/model/model_memory.h"
#include "engine/model/step_limits.h"
#include "kernels/device_rooms.h"
#include "kernels/device_shapes.h"

namespace baton::engine {
namespace {

struct Opened {
  ReadConfig read;
  std::unique_ptr<WeightSource> weights;
};

absl::StatusOr<Opened> OpenGguf(const ModelSource& source) {
  BATON_ASSIGN_OR_RETURN(std::shared_ptr<const GgufFile> file, GgufFile::Open(source.path));
  Opened out;
  BATON_ASSIGN_OR_RETURN(out.read, ReadGgufConfig(*file, source.config_overrides, source.config_directory));
  BATON_ASSIGN_OR_RETURN(out.weights, OpenGgufWeights(std::move(file), out.read.config));
  return out;
}

absl::StatusOr<Opened> Open(const ModelSource& source) {
  std::error_code error;
  const bool directory = std::filesystem::is_directory(source.path, error);
  if (!directory && !std::filesystem::exists(source.path, error)) {
    return absl::NotFoundError(StrCat(source.path, ": no such model directory or file"));
  }
  Opened out;
  if (!directory) {
    BATON_ASSIGN_OR_RETURN(out, OpenGguf(source));
  } else {
    const std::string& config = source.config_directory.empty() ? source.path : source.config_directory;
    BATON_ASSIGN_OR_RETURN(out.read, ReadHfConfig(config, source.config_overrides));
    if (!source.dummy_weights) {
      BATON_ASSIGN_OR_RETURN(out.weights, OpenHfWeights(source.path, out.read.config, out.read.quantization));
    } else if (out.read.quantization) {
      return absl::InvalidArgumentError(StrCat(config,
                                               ": random weights (--load-format dummy) are floats, quant_method ",
                                               Quoted(out.read.quantization->method), " asks for codes"));
    }
  }
  if (source.dummy_weights) out.weights = MakeDummyWeights(out.read.config, source.dummy_seed);
  return out;
}

// Names the first faults and counts them all.
absl::Status CheckWeights(const std::string& path, const ModelConfig& config, const WeightSource& weights) {
  constexpr size_t kShown = 3;
  std::vector<std::string> shown;
  const std::vector<WeightRule> rules = WeightRules(config);
  int64_t faults = 0;
  for (const WeightRule& rule : rules) {
    const absl::Status status = weights.Check(rule);
    if (status.ok()) continue;
    if (++faults <= static_cast<int64_t>(kShown)) shown.emplace_back(View(status.message()));
  }
  if (faults > 0) {
    return absl::InvalidArgumentError(StrCat(path, ": ", faults, " of ", rules.size(),
                                             " tensors cannot be used: ", absl::StrJoin(shown, "; "),
                                             faults > static_cast<int64_t>(kShown) ? "; …" : ""));
  }
  const int64_t unused = weights.Unused(static_cast<int64_t>(rules.size()));
  if (unused > 0) LogInfo("{} tensors are no part of the text model and are skipped", unused);
  return absl::OkStatus();
}

std::string MemoryText(const ModelMemory& m) {
  return StrCat("embedding ", m.weights.embedding, ", attention ", m.weights.attention, ", mlp ", m.weights.mlp,
                ", norms ", m.weights.norms, ", head ", m.weights.head, ", workspace ", m.workspace);
}

// What a device's steps take beside.
std::string RoomsText(const kernels::DeviceRooms& r) {
  return StrCat(", inputs ", r.inputs, ", partials ", r.partials, ", rotary ", r.rotary, ", sampling ", r.sampling,
                ", codes ", r.codes, ", scales ", r.scales, ", sums ", r.sums, ", library ", r.library);
}

struct Available {
  int64_t bytes = 0;
  const char* where = "";  ///< follows the number
};

Available AvailableTo(const ModelSource& source, const std::optional<kernels::DeviceMemory>& device) {
  if (source.memory_limit_bytes > 0) return {source.memory_limit_bytes};
  if (device) return {device->free_bytes, " on the device"};
  return {AvailableMemoryBytes().value_or(std::numeric_limits<int64_t>::max())};
}

// A device's are all there from the start, the host's grow.
int64_t LogitRows(const ModelSource& source, bool device) {
  return device ? std::max(Activations::kFirstLogitRows, source.max_logit_rows) : Activations::kFirstLogitRows;
}

// What LoadModel will take, by what the headers say.
struct Planned {
  ModelMemory memory;
  int64_t scratch_bytes = 0, pinned_bytes = 0;  // of the host's, besides
};

Planned PlanLoad(const ModelSource& source, const ModelConfig& config, const KvLayout& layout,
                 const WeightSource& weights, const kernels::OpsTraits& traits, int max_tokens) {
  const WeightMemory planned = PlanWeightMemory(config, source.place, weights, traits);
  const int64_t logit_rows = LogitRows(source, traits.device_panels);
  Planned out{
      .memory = {planned.device, Activations::Bytes(config, source.place, max_tokens, logit_rows, traits.compute)},
      .scratch_bytes = planned.scratch_bytes};
  if (!traits.device_panels) return out;
  const int64_t positions = source.context_tokens > 0 ? source.context_tokens : config.max_position_embeddings;
  const kernels::StepLimits limits =
      StepLimitsOf(config, source.place, layout, {max_tokens, source.max_sequences, positions, logit_rows});
  out.memory.rooms = RankRooms(source, limits, config.hidden_size, planned.codes, traits.work_bytes);
  if (limits.sequences > 0) {
    out.memory.rooms.library = traits.library_bytes;
    out.pinned_bytes = kernels::PinnedBytes(limits);
  }
  return out;
}

// Weights come through the host's memory: all ranks of a machine load at once, and share it.
absl::Status CheckHostMemory(const ModelSource& source, const Planned& planned) {
  const int64_t need = std::max(planned.scratch_bytes, planned.pinned_bytes);
  const int64_t available = source.host_limit_bytes > 0
                                ? source.host_limit_bytes
                                : AvailableMemoryBytes().value_or(std::numeric_limits<int64_t>::max());
  if (need <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrFormat("%s needs %d bytes (%.2f GiB) of the host's memory to load onto the device, %d bytes (%.2f GiB) "
                      "are available to it",
                      source.path, need, GiB(need), available, GiB(available)));
}

// `taken`: working memory that the device has given already.
absl::Status CheckMemory(const ModelSource& source, const Planned& planned, int max_tokens,
                         const std::optional<kernels::DeviceMemory>& device, const kernels::DeviceRooms& taken) {
  const Available available = AvailableTo(source, device);
  const ModelMemory& memory = planned.memory;
  const int64_t weights = memory.weights.Total(), working = memory.rooms.Total(),
                host = device ? 0 : planned.scratch_bytes;  // loading needs it, and steps do not yet
  const int64_t need = weights + std::max(host, memory.workspace) + std::max<int64_t>(0, working - taken.Total());
  if (need > available.bytes) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%s needs %d bytes (%.2f GiB: weights %.2f GiB, activations of %d tokens "
                        "(--max-num-batched-tokens) %.2f GiB%s), %d bytes (%.2f GiB) are available%s",
                        source.path, need, GiB(need), GiB(weights), max_tokens, GiB(memory.workspace),
                        device ? absl::StrFormat(", working memory of steps %.2f GiB", GiB(working)) : "",
                        available.bytes, GiB(available.bytes), available.where));
  }
  return device ? CheckHostMemory(source, planned) : absl::OkStatus();
}

absl::Status CheckContext(const ModelSource& source, const ModelConfig& config) {
  const int64_t limit = config.max_position_embeddings, asked = source.context_tokens;
  if (asked > limit) {
    return absl::FailedPreconditionError(
        StrCat("--max-model-len ", asked, " is longer than the model's context of ", limit, " tokens"));
  }
  if (const int64_t tokens = asked > 0 ? asked : limit; tokens < 2) {
    return absl::FailedPreconditionError(StrCat("a context of ", tokens,
                                                " token has no room for a prompt and an answer (--max-model-len ",
                                                asked, ", the model's is ", limit, ")"));
  }
  return absl::OkStatus();
}

// What a device has no kernels for is refused before anything is read.
absl::Status CheckDeviceShape(const ModelConfig& config, const RankPlace& place) {
  const auto refused = [](std::string_view what, int64_t number, const std::string& takes) {
    return absl::FailedPreconditionError(StrCat(what, " ", number, " is not supported on a GPU (", takes, ")"));
  };
  if (std::ranges::count(kernels::kDeviceHeadDims, config.head_dim) == 0)
    return refused("head_dim", config.head_dim, StrCat(absl::StrJoin(kernels::kDeviceHeadDims, ", "), " are"));
  if (config.hidden_size > kernels::kDeviceMostHidden)
    return refused("hidden_size", config.hidden_size, StrCat("up to ", kernels::kDeviceMostHidden, " is"));
  if (const int heads = ShapeOf(config, place).kv_heads.size(); heads > kernels::kDeviceMostKvHeads)
    return refused("KV heads of a rank:", heads, StrCat("up to ", kernels::kDeviceMostKvHeads, " are"));
  const int parts = std::max(place.tensor_size, place.reduction_width);
  const std::string of_part = parts > 1 ? StrCat(" for each of ", parts, " parts of a sum") : std::string();
  const std::pair<std::string, int64_t> widths[] = {
      {"hidden_size", config.hidden_size},
      {StrCat("inputs of the attention's output layer", of_part, ":"),
       int64_t{config.num_heads} * config.head_dim / parts},
      {StrCat("inner elements of the MLP", of_part, ":"), config.intermediate_size / parts}};
  for (const auto& [what, width] : widths) {
    if (width % kernels::kDeviceColumnMultiple != 0)
      return refused(what, width, StrCat("multiples of ", kernels::kDeviceColumnMultiple, " are"));
  }
  return absl::OkStatus();
}

// Whatever type this worker keeps: a peer's KV may be in e4m3. Scales that are none matter to nobody else: whoever
// would keep KV in e4m3 with them is refused here.
absl::StatusOr<KvScales> KvScalesOf(const std::string& path, const WeightSource& weights, DType kv) {
  absl::StatusOr<KvScales> scales = weights.ReadKvScales();
  if (scales.ok()) return scales;
  if (kv != DType::kF8E4M3) return KvScales{};
  return absl::InvalidArgumentError(StrCat(path, ": ", View(scales.status().message()),
                                           "; KV of another type needs no scales (--kv-cache-dtype auto, bfloat16)"));
}

struct Checked {
  Opened opened;
  KvLayout layout;
  KvScales kv_scales;
  Planned planned;
};

// Everything that can be known without reading the weights' values.
absl::StatusOr<Checked> OpenChecked(const ModelSource& source, const kernels::OpsTraits& traits,
                                    const std::optional<kernels::DeviceMemory>& device,
                                    const kernels::DeviceRooms& taken, int max_tokens) {
  if (max_tokens < 1) return absl::InvalidArgumentError(StrCat("steps of at most ", max_tokens, " tokens"));
  Checked out;
  BATON_ASSIGN_OR_RETURN(out.opened, Open(source));
  const ModelConfig& config = out.opened.read.config;
  BATON_ASSIGN_OR_RETURN(out.layout, MakeKvLayout(config, traits.kv, source.block_size));
  BATON_RETURN_IF_ERROR(CheckContext(source, config));
  BATON_RETURN_IF_ERROR(CheckPlace(config, source.place));
  if (traits.device_panels) BATON_RETURN_IF_ERROR(CheckDeviceShape(config, source.place));
  BATON_RETURN_IF_ERROR(CheckWeights(source.path, config, *out.opened.weights));
  BATON_ASSIGN_OR_RETURN(out.kv_scales, KvScalesOf(source.path, *out.opened.weights, traits.kv));
  SetKvScales(out.kv_scales, out.layout);
  out.planned = PlanLoad(source, config, out.layout, *out.opened.weights, traits, max_tokens);
  BATON_RETURN_IF_ERROR(CheckMemory(source, out.planned, max_tokens, device, taken));
  return out;
}

}  // namespace

absl::StatusOr<ModelFacts> InspectModel(const ModelSource& source, const kernels::OpsTraits& traits, int max_tokens) {
  BATON_ASSIGN_OR_RETURN(const Checked checked, OpenChecked(source, traits, std::nullopt, {}, max_tokens));
  const Opened& opened = checked.opened;
  ModelFacts facts{.config = opened.read.config, .kv_layout = checked.layout};
  for (const WeightRule& rule : WeightRules(facts.config)) facts.parameters += rule.rows() * rule.columns();
  facts.weight_bytes = checked.planned.memory.weights.Total();
  return facts;
}

absl::StatusOr<RankMemory> PlanRankMemory(ModelSource source, const kernels::OpsTraits& traits, int max_tokens) {
  source.memory_limit_bytes = std::numeric_limits<int64_t>::max();  // whoever plans compares for himself
  BATON_ASSIGN_OR_RETURN(const Checked checked, OpenChecked(source, traits, std::nullopt, {}, max_tokens));
  return RankMemory{.config = checked.opened.read.config,
                    .kv_layout = checked.layout,
                    .memory = checked.planned.memory,
                    .scratch_bytes = checked.planned.scratch_bytes,
                    .pinned_bytes = checked.planned.pinned_bytes};
}

absl::StatusOr<std::unique_ptr<Model>> LoadModel(const ModelSource& source, kernels::Ops& ops, int max_tokens,
                                                 const LoadProgress& progress, const RankLinks& links) {
  const LoadProgress report = progress ? progress : [](std::string_view, double) {};
  report("read", 0);
  BATON_ASSIGN_OR_RETURN(Checked checked,
                         OpenChecked(source, ops.traits(), ops.device_memory(), ops.rooms(), max_tokens));
  Opened& opened = checked.opened;
  ModelConfig& config = opened.read.config;
  config.digest = ModelDigest(opened.read.text, config, *opened.weights, checked.kv_scales);
  report("read", 1);
  BATON_ASSIGN_OR_RETURN(ModelWeights weights,
                         LoadWeights(config, source.place, *opened.weights, ops, report, source.given_up));
  const int64_t positions = source.context_tokens > 0 ? source.context_tokens : config.max_position_embeddings;
  BATON_ASSIGN_OR_RETURN(auto decoder,
                         Decoder::Create({.config = std::move(config),
                                          .layout = std::move(checked.layout),
                                          .weights = std::move(weights),
                                          .max_tokens = max_tokens,
                                          .max_sequences = source.max_sequences,
                                          .max_positions = positions,
                                          .logit_rows = LogitRows(source, ops.device_memory().has_value()),
                                          .recorded_rows = source.recorded_rows,
                                          .ops = ops,
                                          .place = source.place,
                                          .links = links}));
  const ModelMemory taken = decoder->memory();
  LogInfo("{}: bytes taken by {}{}", source.place.Name(), MemoryText(taken),
          ops.device_memory() ? RoomsText(taken.rooms) : "");
  return decoder;
}

}  // namespace baton::engine
