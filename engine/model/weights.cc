#include "engine/model/weights.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "common/status.h"

namespace baton::engine {
namespace {

using kernels::PackedLinear;

// The table keeps the checkpoint's type; f32 is halved where the device computes in bf16 anyway.
DType EmbeddingType(const WeightSource& source, const WeightRule& rule, DType compute) {
  const DType native = source.NativeType(rule);
  return native == DType::kF32 ? compute : native;
}

class WeightLoader {
 public:
  WeightLoader(const ModelConfig& config, const WeightSource& source, kernels::Ops& ops, const LoadProgress& progress)
      : config_(config), source_(source), ops_(ops), progress_(progress) {
    for (const WeightRule& rule : WeightRules(config)) total_ += rule.elements();
    if (config.tied_embeddings) total_ += RuleOf(config, Weight::kLmHead).elements();
  }
  absl::StatusOr<ModelWeights> Load();

 private:
  absl::Status Layer(int layer, LayerWeights& out);
  absl::Status Embedding();
  absl::Status UploadNorms();
  absl::StatusOr<std::unique_ptr<PackedLinear>> Linear(std::vector<Weight> weights, std::vector<Weight> biases,
                                                       int layer);
  // Queues a vector; UploadNorms sets the pointer.
  void Norm(Weight weight, int layer, const float** slot);
  // Host memory of at least `bytes`, reused by the next tensor.
  char* Scratch(size_t bytes) {
    if (bytes > scratch_bytes_) {
      scratch_.reset();
      scratch_ = std::make_unique_for_overwrite<char[]>(bytes);
      scratch_bytes_ = bytes;
    }
    return scratch_.get();
  }
  void Advance(const WeightRule& rule) {
    done_ += rule.elements();
    progress_("pack", static_cast<double>(done_) / static_cast<double>(total_));
  }

  const ModelConfig& config_;
  const WeightSource& source_;
  kernels::Ops& ops_;
  const LoadProgress& progress_;
  int64_t total_ = 0, done_ = 0;
  std::unique_ptr<char[]> scratch_;
  size_t scratch_bytes_ = 0;
  ModelWeights out_;
  std::vector<float> norms_;
  std::vector<std::pair<const float**, size_t>> slots_;  // where a pointer goes, and its offset in norms_
};

absl::StatusOr<std::unique_ptr<PackedLinear>> WeightLoader::Linear(std::vector<Weight> weights,
                                                                   std::vector<Weight> biases, int layer) {
  std::vector<WeightRule> rules;
  int64_t rows = 0;
  for (Weight weight : weights) rules.push_back(RuleOf(config_, weight, layer)), rows += rules.back().shape[0];
  const int64_t columns = rules[0].shape[1];
  DType type = source_.NativeType(rules[0]);
  for (const WeightRule& rule : rules) {
    if (source_.NativeType(rule) != type) type = DType::kF32;
  }
  const size_t bytes = static_cast<size_t>(rows * columns) * DTypeBytes(type);
  char* const host = Scratch(bytes);
  char* at = host;
  for (const WeightRule& rule : rules) {
    source_.Read(rule, type, at, ops_.traits().threads);
    at += static_cast<size_t>(rule.elements()) * DTypeBytes(type);
  }
  std::vector<float> bias;
  for (Weight weight : biases) {
    const WeightRule rule = RuleOf(config_, weight, layer);
    bias.resize(bias.size() + rule.elements());
    source_.Read(rule, DType::kF32, bias.data() + bias.size() - rule.elements());
    Advance(rule);
  }
  BATON_CHECK(bias.empty() || static_cast<int64_t>(bias.size()) == rows, bias.size(), " biases for ", rows, " rows");
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<PackedLinear> packed,
                         ops_.Pack(kernels::Tensor(host, type, {rows, columns}), bias.empty() ? nullptr : bias.data()));
  out_.bytes += packed->bytes();
  for (const WeightRule& rule : rules) Advance(rule);
  return packed;
}

void WeightLoader::Norm(Weight weight, int layer, const float** slot) {
  const WeightRule rule = RuleOf(config_, weight, layer);
  const size_t at = norms_.size();
  norms_.resize((at + rule.elements() + 15) / 16 * 16);  // the next one starts on a 64-byte line
  source_.Read(rule, DType::kF32, norms_.data() + at);
  slots_.emplace_back(slot, at);
  Advance(rule);
}

absl::Status WeightLoader::Layer(int layer, LayerWeights& out) {
  const bool qkv = config_.qkv_bias, o = config_.o_bias;
  Norm(Weight::kInputNorm, layer, &out.input_norm);
  Norm(Weight::kMlpNorm, layer, &out.mlp_norm);
  if (config_.post_norms) Norm(Weight::kPostAttentionNorm, layer, &out.post_attention_norm);
  if (config_.post_norms) Norm(Weight::kPostMlpNorm, layer, &out.post_mlp_norm);
  if (config_.qk_norm) Norm(Weight::kQueryNorm, layer, &out.query_norm);
  if (config_.qk_norm) Norm(Weight::kKeyNorm, layer, &out.key_norm);
  const std::vector<Weight> qkv_biases = {Weight::kQueryBias, Weight::kKeyBias, Weight::kValueBias};
  BATON_ASSIGN_OR_RETURN(
      out.qkv, Linear({Weight::kQuery, Weight::kKey, Weight::kValue}, qkv ? qkv_biases : std::vector<Weight>{}, layer));
  BATON_ASSIGN_OR_RETURN(
      out.output, Linear({Weight::kOutput}, o ? std::vector{Weight::kOutputBias} : std::vector<Weight>{}, layer));
  BATON_ASSIGN_OR_RETURN(out.gate_up, Linear({Weight::kGate, Weight::kUp}, {}, layer));
  BATON_ASSIGN_OR_RETURN(out.down, Linear({Weight::kDown}, {}, layer));
  return absl::OkStatus();
}

absl::Status WeightLoader::Embedding() {
  const WeightRule rule = RuleOf(config_, Weight::kEmbedding);
  const DType type = EmbeddingType(source_, rule, ops_.traits().compute);
  const size_t bytes = static_cast<size_t>(rule.elements()) * DTypeBytes(type);
  char* const host = Scratch(bytes);
  source_.Read(rule, type, host, ops_.traits().threads);
  BATON_ASSIGN_OR_RETURN(out_.embedding_memory, ops_.Allocate(bytes));
  ops_.CopyToDevice(out_.embedding_memory->data(), host, bytes);
  ops_.Sync();
  out_.embedding = kernels::Tensor(out_.embedding_memory->data(), type, {rule.shape[0], rule.shape[1]});
  out_.bytes += bytes;
  Advance(rule);
  return absl::OkStatus();
}

absl::Status WeightLoader::UploadNorms() {
  const size_t bytes = norms_.size() * sizeof(float);
  BATON_ASSIGN_OR_RETURN(out_.norm_memory, ops_.Allocate(bytes));
  ops_.CopyToDevice(out_.norm_memory->data(), norms_.data(), bytes);
  ops_.Sync();
  for (const auto& [slot, at] : slots_) *slot = static_cast<const float*>(out_.norm_memory->data()) + at;
  out_.bytes += bytes;
  return absl::OkStatus();
}

absl::StatusOr<ModelWeights> WeightLoader::Load() {
  BATON_RETURN_IF_ERROR(Embedding());
  out_.layers.resize(config_.num_layers);  // never resized again: slots_ point into it
  for (int layer = 0; layer < config_.num_layers; ++layer) BATON_RETURN_IF_ERROR(Layer(layer, out_.layers[layer]));
  const Weight head = config_.tied_embeddings ? Weight::kEmbedding : Weight::kLmHead;
  BATON_ASSIGN_OR_RETURN(out_.lm_head, Linear({head}, {}, -1));
  const float* final_norm = nullptr;
  Norm(Weight::kFinalNorm, -1, &final_norm);
  BATON_RETURN_IF_ERROR(UploadNorms());
  out_.final_norm = final_norm;
  return std::move(out_);
}

}  // namespace

WeightMemory PlanWeightMemory(const ModelConfig& config, const WeightSource& source, DType compute) {
  WeightMemory out;
  auto scratch = [&](int64_t elements) { out.scratch_bytes = std::max(out.scratch_bytes, elements * 4); };
  for (const WeightRule& rule : WeightRules(config)) {
    const int64_t n = rule.elements();
    const bool table = rule.weight == Weight::kEmbedding;
    DType type = compute == DType::kF32 ? source.NativeType(rule) : compute;  // what the smallest backend keeps
    if (table) type = EmbeddingType(source, rule, compute);
    if (rule.shape.size() == 1) type = DType::kF32;
    out.device_bytes += n * static_cast<int64_t>(DTypeBytes(type));
    scratch(rule.weight == Weight::kGate ? 2 * n : n);
  }
  if (config.tied_embeddings) {
    const WeightRule rule = RuleOf(config, Weight::kEmbedding);
    out.device_bytes +=
        rule.elements() * static_cast<int64_t>(DTypeBytes(compute == DType::kF32 ? source.NativeType(rule) : compute));
  }
  return out;
}

absl::StatusOr<ModelWeights> LoadWeights(const ModelConfig& config, const WeightSource& source, kernels::Ops& ops,
                                         const LoadProgress& progress) {
  return WeightLoader(config, source, ops, progress).Load();
}

}  // namespace baton::engine
