#include "engine/model/decoder.h"

#include "common/check.h"
#include "common/status.h"

namespace baton::engine {
namespace {

using kernels::Tensor;

// Columns [first, first + heads · dim) of a fused row, as heads.
Tensor Heads(const Tensor& fused, int64_t first, int64_t heads, int64_t dim) {
  Tensor out(static_cast<char*>(fused.data) + first * static_cast<int64_t>(DTypeBytes(fused.dtype)), fused.dtype,
             {fused.rows(), heads, dim});
  out.row_stride = fused.row_stride;
  return out;
}

// The first `rows` rows with all heads in one dimension.
Tensor Flat(const Tensor& heads, int64_t rows) { return Tensor(heads.data, heads.dtype, {rows, heads.cols()}); }

// The rows whose logits are wanted, each once, and which of them every logits row is.
struct WantedRows {
  explicit WantedRows(std::span<const int32_t> logit_rows) {
    for (int32_t row : logit_rows) {
      BATON_CHECK(rows.empty() || row >= rows.back(), "logit row ", row, " after ", rows.back());
      if (rows.empty() || row > rows.back()) rows.push_back(row);
      index.push_back(static_cast<int32_t>(rows.size()) - 1);
    }
  }
  bool repeated() const { return index.size() > rows.size(); }
  std::vector<int32_t> rows, index;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(ModelConfig config, KvLayout layout, ModelWeights weights,
                                                         int max_tokens, kernels::Ops& ops) {
  BATON_ASSIGN_OR_RETURN(Activations activations, Activations::Create(config, max_tokens, ops));
  return std::unique_ptr<Decoder>(
      new Decoder(std::move(config), std::move(layout), std::move(weights), std::move(activations), max_tokens, ops));
}

Decoder::Decoder(ModelConfig config, KvLayout layout, ModelWeights weights, Activations activations, int max_tokens,
                 kernels::Ops& ops)
    : config_(std::move(config)),
      layout_(std::move(layout)),
      places_(KvPlaces(layout_, config_.num_layers)),
      weights_(std::move(weights)),
      a_(std::move(activations)),
      max_tokens_(max_tokens),
      ops_(ops) {}

absl::Status Decoder::CheckTokens(std::span<const int32_t> tokens) const {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && tokens[i] < config_.vocab_size) continue;
    return absl::InvalidArgumentError(
        StrCat("token id ", tokens[i], " is not in the vocabulary of ", config_.vocab_size));
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> Decoder::Forward(const ForwardBatch& batch, std::span<const KvGroupView> kv,
                                        const std::atomic<bool>& cancel) {
  const int64_t tokens = static_cast<int64_t>(batch.tokens.size());
  BATON_CHECK(tokens >= 1 && tokens <= max_tokens_, tokens, " tokens in a step of at most ", max_tokens_);
  BATON_CHECK(batch.groups.size() == layout_.groups.size() && kv.size() == layout_.groups.size(), batch.groups.size(),
              " tables, ", kv.size(), " views for ", layout_.groups.size(), " KV groups");
  BATON_RETURN_IF_ERROR(CheckTokens(batch.tokens));
  BATON_RETURN_IF_ERROR(a_.ReserveLogits(static_cast<int64_t>(batch.logit_rows.size()), ops_));
  const WantedRows wanted(batch.logit_rows);

  Tensor residual = a_.residual.Rows(0, tokens);  // [T, hidden]
  ops_.Embedding(batch.tokens, weights_.embedding, config_.embedding_scale, residual);
  ops_.RmsNorm(residual, weights_.layers[0].input_norm, config_.norm_offset, config_.rms_eps,
               a_.normed.Rows(0, tokens));
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    if (cancel.load(std::memory_order_relaxed)) return absl::CancelledError(StrCat("cancelled before layer ", layer));
    const bool last = layer + 1 == config_.num_layers;
    const KvPlace place = places_[layer];
    Attention(layer, batch.groups[place.group], kv[place.group].layers[place.index], tokens,
              last && wanted.rows.empty());
    if (batch.on_layer_kv) batch.on_layer_kv(layer);
    Tensor attended = Flat(a_.attended, tokens);
    if (last) {  // from here on only the wanted rows matter
      if (wanted.rows.empty()) return a_.logits.Rows(0, 0);
      const int64_t count = static_cast<int64_t>(wanted.rows.size());
      const Tensor rows(a_.qkv.data, attended.dtype, {count, attended.cols()});  // q, k and v are done with
      ops_.GatherRows(attended, wanted.rows, rows);
      ops_.GatherRows(residual, wanted.rows, a_.head_in.Rows(0, count));
      attended = rows;
      residual = a_.head_in.Rows(0, count);
    }
    AfterAttention(layer, attended, residual);
    Mlp(layer, last ? weights_.final_norm : weights_.layers[layer + 1].input_norm, residual);
  }
  Tensor normed = a_.normed.Rows(0, residual.rows());
  if (wanted.repeated()) {
    const Tensor all = a_.head_normed.Rows(0, static_cast<int64_t>(wanted.index.size()));
    ops_.GatherRows(normed, wanted.index, all);
    normed = all;
  }
  const Tensor logits = a_.logits.Rows(0, normed.rows());  // [R, vocab] f32
  ops_.Linear(normed, *weights_.lm_head, logits);
  if (config_.logit_softcap > 0) ops_.SoftCap(config_.logit_softcap, logits);
  return logits;
}

void Decoder::Attention(int layer, const kernels::RaggedBatch& batch, const kernels::KvLayerView& kv, int64_t tokens,
                        bool only_kv) {
  const LayerWeights& w = weights_.layers[layer];
  const LayerConfig& shape = config_.layers[layer];
  const int64_t dim = config_.head_dim, q_heads = config_.num_heads, kv_heads = config_.num_kv_heads;
  const Tensor qkv = a_.qkv.Rows(0, tokens);
  ops_.Linear(a_.normed.Rows(0, tokens), *w.qkv, qkv);
  const Tensor q = Heads(qkv, 0, q_heads, dim);                            // [T, q_heads, head_dim]
  const Tensor k = Heads(qkv, q_heads * dim, kv_heads, dim);               // [T, kv_heads, head_dim]
  const Tensor v = Heads(qkv, (q_heads + kv_heads) * dim, kv_heads, dim);  // [T, kv_heads, head_dim]
  ops_.RopeAndWriteKv(q, k, v, w.query_norm, w.key_norm, config_.norm_offset, config_.rms_eps,
                      config_.ropes[shape.rope], batch, kv);
  if (only_kv) return;
  const kernels::AttentionParams params{
      .scale = config_.attention_scale, .window = shape.window, .logit_softcap = config_.attention_softcap};
  ops_.Attention(q, batch, kv, params, a_.attended.Rows(0, tokens));
}

void Decoder::AfterAttention(int layer, const Tensor& attended, const Tensor& residual) {
  const LayerWeights& w = weights_.layers[layer];
  ops_.Linear(attended, *w.output, a_.projected.Rows(0, residual.rows()));
  AddToResidual(w.post_attention_norm, w.mlp_norm, residual);
}

void Decoder::Mlp(int layer, const float* next, const Tensor& residual) {
  const LayerWeights& w = weights_.layers[layer];
  const int64_t rows = residual.rows();
  const Tensor gate_up = a_.gate_up.Rows(0, rows), inner = a_.inner.Rows(0, rows);
  ops_.Linear(a_.normed.Rows(0, rows), *w.gate_up, gate_up);
  ops_.GatedActivation(config_.activation, gate_up, inner);
  ops_.Linear(inner, *w.down, a_.projected.Rows(0, rows));
  AddToResidual(w.post_mlp_norm, next, residual);
}

void Decoder::AddToResidual(const float* post_norm, const float* next, const Tensor& residual) {
  const int64_t rows = residual.rows();
  Tensor change = a_.projected.Rows(0, rows);  // [rows, hidden] f32
  if (post_norm != nullptr) {
    const Tensor normed = a_.post_normed.Rows(0, rows);
    ops_.RmsNorm(change, post_norm, config_.norm_offset, config_.rms_eps, normed);
    change = normed;
  }
  ops_.AddRmsNorm(change, residual, next, config_.norm_offset, config_.rms_eps, a_.normed.Rows(0, rows));
}

}  // namespace baton::engine
