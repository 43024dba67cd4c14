#include "engine/model/weights.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "common/check.h"
#include "common/status.h"
#include "kernels/packed_size.h"

namespace baton::engine {
namespace {

using kernels::PackedLinear;

// Threads that read a tensor: a device computes with none of the host's, so some of them are free.
int ReadThreads(const kernels::Ops& ops) {
  constexpr int kForDevice = 8;
  if (!ops.device_memory()) return ops.traits().threads;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kForDevice);
}

// The type that a tensor is read in: its native type, but f32 becomes bf16 where the device computes in bf16 anyway.
DType ReadType(const WeightSource& source, const WeightRule& rule, DType compute) {
  const DType native = source.NativeType(rule);
  return native == DType::kF32 ? compute : native;
}

// The embedding's rows, of which a tied head is a copy: in the type of the packed head where that can be looked up, so
// that the bits are the same on every rank, whether it holds one table or both.
DType EmbeddingType(const WeightSource& source, const ModelConfig& config, const WeightRule& rule,
                    const kernels::OpsTraits& traits) {
  const bool as_packed = config.tied_embeddings && traits.packed_rows && traits.compute == DType::kBF16;
  return as_packed ? DType::kBF16 : ReadType(source, rule, traits.compute);
}

// Whether the rank's head is the embedding, all of it, and is looked up as it is packed.
bool HeadIsEmbedding(const ModelConfig& config, const RankPlace& place, const kernels::OpsTraits& traits) {
  return config.tied_embeddings && traits.packed_rows && HoldsEmbedding(place) && HoldsHead(place) &&
         place.tensor_size == 1;
}

// The parts that the rank keeps: all that it reads, less an embedding table that its head holds as well.
std::vector<WeightPart> PartsKept(const ModelConfig& config, const RankPlace& place, const kernels::OpsTraits& traits) {
  std::vector<WeightPart> parts = PartsOf(config, place);
  if (HeadIsEmbedding(config, place, traits)) {
    parts.erase(std::ranges::find(parts, Weight::kEmbedding, [](const WeightPart& part) { return part.rule.weight; }));
  }
  return parts;
}

int64_t RowsOf(const std::vector<WeightPart>& parts) {
  int64_t rows = 0;
  for (const WeightPart& part : parts) rows += part.rows;
  return rows;
}

// Where the bytes of a packed layer count; of a tied pair only the head is packed.
int64_t& KindOf(Weight weight, WeightBytes& bytes) {
  switch (weight) {
    case Weight::kEmbedding:
    case Weight::kLmHead: return bytes.head;
    case Weight::kGate:
    case Weight::kUp:
    case Weight::kDown: return bytes.mlp;
    default: return bytes.attention;
  }
}

// The type of a packed layer: its parts', or where they differ what is computed in.
DType LinearType(const WeightSource& source, const std::vector<WeightPart>& parts, DType compute) {
  const DType type = ReadType(source, parts[0].rule, compute);
  const bool alike =
      std::ranges::all_of(parts, [&](const WeightPart& part) { return ReadType(source, part.rule, compute) == type; });
  return alike ? type : compute;
}

// The codes that a packed layer is given in: on a device, or where they say what becomes of inputs, if all of its parts
// have them in one format and with their inputs in one order. Parts share their inputs, so also one scale of these:
// the largest. An embedding table is looked up as floats, as its copy that serves as the head is.
std::optional<CodeFormat> CodesKept(const WeightSource& source, const std::vector<WeightPart>& parts,
                                    const kernels::OpsTraits& traits) {
  if (parts[0].rule.weight == Weight::kEmbedding) return std::nullopt;
  std::optional<CodeFormat> all = source.Codes(parts[0]);
  if (!all || (!traits.device_panels && !all->rounding)) return std::nullopt;
  for (const WeightPart& part : parts) {
    std::optional<CodeFormat> one = source.Codes(part);
    if (!one) return std::nullopt;
    const float scale = std::max(one->rounding.scale, all->rounding.scale);
    one->rounding.scale = all->rounding.scale = scale;
    if (one != all) return std::nullopt;
  }
  return all;
}

// Norms lie one behind another, each from a 64-byte line on.
size_t AfterNorm(size_t elements) { return (elements + 15) / 16 * 16; }

class WeightLoader {
 public:
  WeightLoader(const ModelConfig& config, const RankPlace& place, const WeightSource& source, kernels::Ops& ops,
               const LoadProgress& progress, const std::atomic<bool>* given_up)
      : config_(config), place_(place), source_(source), ops_(ops), progress_(progress), given_up_(given_up) {
    for (const WeightPart& part : PartsKept(config, place, ops.traits())) total_ += part.elements();
  }
  absl::StatusOr<ModelWeights> Load();

 private:
  using Linears = std::vector<std::unique_ptr<PackedLinear>>;

  absl::Status Layer(int layer, LayerWeights& out);
  absl::Status Embedding();
  absl::Status UploadNorms();
  WeightPart Part(Weight weight, int layer) const { return PartOf(config_, place_, weight, layer); }
  // Parts with the same columns, their rows one after another.
  absl::StatusOr<std::unique_ptr<PackedLinear>> Linear(const std::vector<WeightPart>& parts,
                                                       const std::vector<WeightPart>& biases);
  absl::StatusOr<std::unique_ptr<PackedLinear>> PackFloats(const std::vector<WeightPart>& parts, const float* bias);
  absl::StatusOr<std::unique_ptr<PackedLinear>> PackCodes(const CodeFormat& format,
                                                          const std::vector<WeightPart>& parts, const float* bias);
  // A layer that is summed over ranks. Its bias belongs to the first leaf of all.
  absl::StatusOr<Linears> Leaves(Weight weight, int layer, bool has_bias, Weight bias);
  // Queues a vector; UploadNorms sets the pointer.
  absl::Status Norm(Weight weight, int layer, const float** slot);
  // Host memory of at least `bytes`, reused by the next tensor.
  char* Scratch(size_t bytes) {
    if (bytes > scratch_bytes_) {
      scratch_.reset();
      scratch_ = std::make_unique_for_overwrite<char[]>(bytes);
      scratch_bytes_ = bytes;
    }
    return scratch_.get();
  }
  void Advance(const WeightPart& part) {
    done_ += part.elements();
    progress_("pack", static_cast<double>(done_) / static_cast<double>(total_));
  }

  const ModelConfig& config_;
  const RankPlace& place_;
  const WeightSource& source_;
  kernels::Ops& ops_;
  const LoadProgress& progress_;
  const std::atomic<bool>* const given_up_;
  int64_t total_ = 0, done_ = 0;
  std::unique_ptr<char[]> scratch_;
  size_t scratch_bytes_ = 0;
  ModelWeights out_;
  std::vector<float> norms_;
  std::vector<std::pair<const float**, size_t>> slots_;  // where a pointer goes, and its offset in norms_
};

absl::StatusOr<std::unique_ptr<PackedLinear>> WeightLoader::Linear(const std::vector<WeightPart>& parts,
                                                                   const std::vector<WeightPart>& biases) {
  if (given_up_ != nullptr && *given_up_) return absl::CancelledError("loading was given up");
  const int64_t rows = RowsOf(parts);
  std::vector<float> bias;
  for (const WeightPart& part : biases) {
    bias.resize(bias.size() + static_cast<size_t>(part.elements()));
    BATON_RETURN_IF_ERROR(source_.Read(part, DType::kF32, bias.data() + bias.size() - part.elements()));
    Advance(part);
  }
  BATON_CHECK(bias.empty() || static_cast<int64_t>(bias.size()) == rows, bias.size(), " biases for ", rows, " rows");
  const float* const added = bias.empty() ? nullptr : bias.data();
  const std::optional<CodeFormat> codes = CodesKept(source_, parts, ops_.traits());
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<PackedLinear> packed,
                         codes ? PackCodes(*codes, parts, added) : PackFloats(parts, added));
  KindOf(parts[0].rule.weight, out_.bytes) += static_cast<int64_t>(packed->bytes());
  for (const WeightPart& part : parts) Advance(part);
  return packed;
}

absl::StatusOr<std::unique_ptr<PackedLinear>> WeightLoader::PackFloats(const std::vector<WeightPart>& parts,
                                                                       const float* bias) {
  const int64_t rows = RowsOf(parts), columns = parts[0].columns;
  const DType type = LinearType(source_, parts, ops_.traits().compute);
  char* const host = Scratch(static_cast<size_t>(rows * columns) * DTypeBytes(type));
  char* at = host;
  for (const WeightPart& part : parts) {
    BATON_RETURN_IF_ERROR(source_.Read(part, type, at, ReadThreads(ops_)));
    at += static_cast<size_t>(part.elements()) * DTypeBytes(type);
  }
  return ops_.Pack(kernels::Tensor(host, type, {rows, columns}), bias);
}

absl::StatusOr<std::unique_ptr<PackedLinear>> WeightLoader::PackCodes(const CodeFormat& format,
                                                                      const std::vector<WeightPart>& parts,
                                                                      const float* bias) {
  kernels::QuantizedWeight whole;
  for (const WeightPart& part : parts) {
    BATON_ASSIGN_OR_RETURN(kernels::QuantizedWeight codes, source_.ReadCodes(part));
    if (whole.n == 0) {
      whole = std::move(codes);
      continue;
    }
    whole.n += codes.n;
    whole.codes.insert(whole.codes.end(), codes.codes.begin(), codes.codes.end());
    whole.scales.insert(whole.scales.end(), codes.scales.begin(), codes.scales.end());
    whole.zeros.insert(whole.zeros.end(), codes.zeros.begin(), codes.zeros.end());
  }
  whole.rounding = format.rounding;
  return ops_.PackQuantized(whole, bias);
}

absl::StatusOr<WeightLoader::Linears> WeightLoader::Leaves(Weight weight, int layer, bool has_bias, Weight bias) {
  Linears out;
  for (int leaf = 0; leaf < place_.leaves(); ++leaf) {
    std::vector<WeightPart> biases;
    if (has_bias && place_.tensor_rank == 0 && leaf == 0) biases.push_back(Part(bias, layer));
    BATON_ASSIGN_OR_RETURN(out.emplace_back(), Linear({LeafOf(Part(weight, layer), leaf, place_.leaves())}, biases));
  }
  return out;
}

absl::Status WeightLoader::Norm(Weight weight, int layer, const float** slot) {
  const WeightPart part = Part(weight, layer);
  const size_t at = norms_.size();
  norms_.resize(AfterNorm(at + static_cast<size_t>(part.elements())));
  BATON_RETURN_IF_ERROR(source_.Read(part, DType::kF32, norms_.data() + at));
  slots_.emplace_back(slot, at);
  Advance(part);
  return absl::OkStatus();
}

absl::Status WeightLoader::Layer(int layer, LayerWeights& out) {
  BATON_RETURN_IF_ERROR(Norm(Weight::kInputNorm, layer, &out.input_norm));
  BATON_RETURN_IF_ERROR(Norm(Weight::kMlpNorm, layer, &out.mlp_norm));
  if (config_.post_norms) BATON_RETURN_IF_ERROR(Norm(Weight::kPostAttentionNorm, layer, &out.post_attention_norm));
  if (config_.post_norms) BATON_RETURN_IF_ERROR(Norm(Weight::kPostMlpNorm, layer, &out.post_mlp_norm));
  if (config_.qk_norm) BATON_RETURN_IF_ERROR(Norm(Weight::kQueryNorm, layer, &out.query_norm));
  if (config_.qk_norm) BATON_RETURN_IF_ERROR(Norm(Weight::kKeyNorm, layer, &out.key_norm));
  std::vector<WeightPart> qkv, qkv_biases;
  for (Weight w : {Weight::kQuery, Weight::kKey, Weight::kValue}) qkv.push_back(Part(w, layer));
  if (config_.qkv_bias) {
    for (Weight w : {Weight::kQueryBias, Weight::kKeyBias, Weight::kValueBias}) qkv_biases.push_back(Part(w, layer));
  }
  BATON_ASSIGN_OR_RETURN(out.qkv, Linear(qkv, qkv_biases));
  BATON_ASSIGN_OR_RETURN(out.output, Leaves(Weight::kOutput, layer, config_.o_bias, Weight::kOutputBias));
  BATON_ASSIGN_OR_RETURN(out.gate_up, Linear({Part(Weight::kGate, layer), Part(Weight::kUp, layer)}, {}));
  BATON_ASSIGN_OR_RETURN(out.down, Leaves(Weight::kDown, layer, false, {}));
  return absl::OkStatus();
}

absl::Status WeightLoader::Embedding() {
  const WeightPart part = Part(Weight::kEmbedding, -1);
  const DType type = EmbeddingType(source_, config_, part.rule, ops_.traits());
  const size_t bytes = static_cast<size_t>(part.elements()) * DTypeBytes(type);
  char* const host = Scratch(bytes);
  BATON_RETURN_IF_ERROR(source_.Read(part, type, host, ReadThreads(ops_)));
  BATON_ASSIGN_OR_RETURN(out_.embedding_memory, ops_.Allocate(bytes));
  ops_.CopyToDevice(out_.embedding_memory->data(), host, bytes);
  ops_.Sync();
  out_.embedding = kernels::Tensor(out_.embedding_memory->data(), type, {part.rows, part.columns});
  out_.bytes.embedding = static_cast<int64_t>(bytes);
  Advance(part);
  return absl::OkStatus();
}

absl::Status WeightLoader::UploadNorms() {
  const size_t bytes = norms_.size() * sizeof(float);
  BATON_ASSIGN_OR_RETURN(out_.norm_memory, ops_.Allocate(bytes));
  ops_.CopyToDevice(out_.norm_memory->data(), norms_.data(), bytes);
  ops_.Sync();
  for (const auto& [slot, at] : slots_) *slot = static_cast<const float*>(out_.norm_memory->data()) + at;
  out_.bytes.norms = static_cast<int64_t>(bytes);
  return absl::OkStatus();
}

absl::StatusOr<ModelWeights> WeightLoader::Load() {
  const RankShape shape = ShapeOf(config_, place_);
  if (HoldsEmbedding(place_) && !HeadIsEmbedding(config_, place_, ops_.traits())) BATON_RETURN_IF_ERROR(Embedding());
  out_.layers.resize(static_cast<size_t>(shape.layers.size()));  // never resized again: slots_ point into it
  for (int layer = shape.layers.begin; layer < shape.layers.end; ++layer) {
    BATON_RETURN_IF_ERROR(Layer(layer, out_.layers[static_cast<size_t>(layer - shape.layers.begin)]));
  }
  const float* final_norm = nullptr;
  if (HoldsHead(place_)) {
    const WeightPart head =
        PartsOf(config_, place_).back();  // the head, or the tied embedding's part that serves as one
    BATON_ASSIGN_OR_RETURN(out_.lm_head, Linear({head}, {}));
    BATON_RETURN_IF_ERROR(Norm(Weight::kFinalNorm, -1, &final_norm));
  }
  BATON_RETURN_IF_ERROR(UploadNorms());
  out_.final_norm = final_norm;
  return std::move(out_);
}

// Counts what WeightLoader will take, layer by layer in the same shapes.
class WeightPlanner {
 public:
  WeightPlanner(const ModelConfig& config, const RankPlace& place, const WeightSource& source,
                const kernels::OpsTraits& traits)
      : config_(config), place_(place), source_(source), traits_(traits) {
    out_.codes = kernels::CodeRooms(traits.work_bytes);
  }

  WeightMemory Plan() {
    const RankShape shape = ShapeOf(config_, place_);
    if (HoldsEmbedding(place_) && !HeadIsEmbedding(config_, place_, traits_)) {
      const WeightPart part = PartOf(config_, place_, Weight::kEmbedding);
      out_.device.embedding = part.elements() * BytesOf(EmbeddingType(source_, config_, part.rule, traits_));
      Scratch(out_.device.embedding);
      if (out_.device.embedding >= kernels::kWeightHalfBytes) pinned_ = kernels::WeightHalvesBytes(0);
    }
    for (int layer = shape.layers.begin; layer < shape.layers.end; ++layer) Layer(layer);
    if (HoldsHead(place_)) {
      Linear({PartsOf(config_, place_).back()}, false);
      Norms({Weight::kFinalNorm}, -1);
    }
    out_.device.norms = static_cast<int64_t>(norms_ * sizeof(float));
    if (traits_.device_panels) out_.scratch_bytes += pinned_;
    return out_;
  }

 private:
  static int64_t BytesOf(DType type) { return static_cast<int64_t>(DTypeBytes(type)); }
  WeightPart Part(Weight weight, int layer) const { return PartOf(config_, place_, weight, layer); }
  void Scratch(int64_t bytes) { out_.scratch_bytes = std::max(out_.scratch_bytes, bytes); }

  void Linear(const std::vector<WeightPart>& parts, bool bias) {
    const int64_t rows = RowsOf(parts), columns = parts[0].columns;
    int64_t& kind = KindOf(parts[0].rule.weight, out_.device);
    const std::optional<CodeFormat> codes = CodesKept(source_, parts, traits_);
    if (codes && traits_.device_panels) {
      const int64_t inputs = codes->Inputs(columns);
      const bool rounds = static_cast<bool>(codes->rounding);
      kind += kernels::PackedCodeBytes(rows, inputs, codes->bits, codes->layout.group, rounds, bias) +
              kernels::LibraryCodeBytes(traits_, rows, inputs, codes->layout.group, rounds, bias);
      out_.codes.Add(rows, inputs, codes->layout.group, !codes->layout.inputs.empty(), rounds);
      if (!codes->layout.inputs.empty()) kind += inputs * static_cast<int64_t>(sizeof(int32_t));
      pinned_ = std::max(pinned_, kernels::WeightHalvesBytes(0));
      return Scratch(3 * rows * inputs);  // the file's blocks, the codes in bytes, and the device's layout of them
    }
    const DType type = LinearType(source_, parts, traits_.compute);
    kind += kernels::PackedBytes(traits_, rows, columns, type, bias);
    pinned_ = std::max(pinned_, kernels::WeightHalvesBytes(columns));
    Scratch(rows * columns * (BytesOf(type) + (codes ? 2 : 0)));  // a part's codes and all of them in bytes
  }
  void Leaves(Weight weight, int layer, bool bias) {
    for (int leaf = 0; leaf < place_.leaves(); ++leaf) {
      Linear({LeafOf(Part(weight, layer), leaf, place_.leaves())}, bias && place_.tensor_rank == 0 && leaf == 0);
    }
  }
  void Norms(std::initializer_list<Weight> weights, int layer) {
    for (const Weight weight : weights)
      norms_ = AfterNorm(norms_ + static_cast<size_t>(Part(weight, layer).elements()));
  }
  void Layer(int layer) {
    Norms({Weight::kInputNorm, Weight::kMlpNorm}, layer);
    if (config_.post_norms) Norms({Weight::kPostAttentionNorm, Weight::kPostMlpNorm}, layer);
    if (config_.qk_norm) Norms({Weight::kQueryNorm, Weight::kKeyNorm}, layer);
    Linear({Part(Weight::kQuery, layer), Part(Weight::kKey, layer), Part(Weight::kValue, layer)}, config_.qkv_bias);
    Leaves(Weight::kOutput, layer, config_.o_bias);
    Linear({Part(Weight::kGate, layer), Part(Weight::kUp, layer)}, false);
    Leaves(Weight::kDown, layer, false);
  }

  const ModelConfig& config_;
  const RankPlace& place_;
  const WeightSource& source_;
  const kernels::OpsTraits& traits_;
  WeightMemory out_;
  size_t norms_ = 0;
  int64_t pinned_ = 0;  // that weights pass through on their way to a device, until the last is there
};

}  // namespace

WeightMemory PlanWeightMemory(const ModelConfig& config, const RankPlace& place, const WeightSource& source,
                              const kernels::OpsTraits& traits) {
  return WeightPlanner(config, place, source, traits).Plan();
}

absl::StatusOr<ModelWeights> LoadWeights(const ModelConfig& config, const RankPlace& place, const WeightSource& source,
                                         kernels::Ops& ops, const LoadProgress& progress,
                                         const std::atomic<bool>* given_up) {
  return WeightLoader(config, place, source, ops, progress, given_up).Load();
}

}  // namespace baton::engine
