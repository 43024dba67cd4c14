#include "engine/model/decoder.h"

#include <algorithm>
#include <numeric>

#include "common/check.h"
#include "common/status.h"
#include "engine/model/step_limits.h"
#include "engine/parallel/communicator.h"

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

// A dense tensor's memory, for the links.
std::span<std::byte> Bytes(const Tensor& t) {
  BATON_CHECK(t.dense());
  return {static_cast<std::byte*>(t.data), static_cast<size_t>(t.elements()) * DTypeBytes(t.dtype)};
}
std::span<float> Floats(const Tensor& t) {
  BATON_CHECK(t.dense() && t.dtype == DType::kF32);
  return {t.Data<float>(), static_cast<size_t>(t.elements())};
}

// Parts of a step that its stages work on at the same time. With few rows a stage reads its weights for each part anew
// and gains nothing.
int StepParts(int64_t tokens, const RankPlace& place) {
  constexpr int64_t kFewestRows = 64, kPerStage = 4;
  if (place.stages == 1) return 1;
  return static_cast<int>(std::clamp<int64_t>(tokens / kFewestRows, 1, kPerStage * place.stages));
}

kernels::StepLimits LimitsOf(const DecoderParts& parts) {
  kernels::StepLimits limits =
      StepLimitsOf(parts.config, parts.place, parts.layout,
                   {parts.max_tokens, parts.max_sequences, parts.max_positions, parts.logit_rows});
  limits.recorded_rows = parts.recorded_rows;
  // Parts of a step have row numbers of their own, which no record can hold.
  std::erase_if(limits.recorded_rows, [&](int32_t rows) {
    return rows > std::min(limits.sequences, limits.rows) || StepParts(rows, parts.place) > 1;
  });
  return limits;
}

}  // namespace

Decoder::WantedRows::WantedRows(std::span<const int32_t> logit_rows) {
  for (int32_t row : logit_rows) {
    BATON_CHECK(rows.empty() || row >= rows.back(), "logit row ", row, " after ", rows.back());
    if (rows.empty() || row > rows.back()) rows.push_back(row);
    index.push_back(static_cast<int32_t>(rows.size()) - 1);
  }
}

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(DecoderParts parts) {
  const RankPlace& place = parts.place;
  BATON_CHECK(
      (place.tensor_size == 1 || parts.links.tensor != nullptr) && (place.stages == 1 || parts.links.world != nullptr),
      place.Name(), " has no links");
  BATON_ASSIGN_OR_RETURN(Activations activations,
                         Activations::Create(parts.config, place, parts.max_tokens, parts.logit_rows, parts.ops));
  if (parts.links.tensor != nullptr)
    BATON_RETURN_IF_ERROR(parts.links.tensor->Reserve(int64_t{parts.max_tokens} * parts.config.hidden_size));
  if (parts.max_sequences > 0) BATON_RETURN_IF_ERROR(parts.ops.Prepare(LimitsOf(parts)));
  return std::unique_ptr<Decoder>(new Decoder(std::move(parts), std::move(activations)));
}

Decoder::Decoder(DecoderParts parts, Activations activations)
    : config_(std::move(parts.config)),
      layout_(std::move(parts.layout)),
      place_(parts.place),
      shape_(ShapeOf(config_, place_)),
      links_(parts.links),
      places_(KvPlaces(RankKvLayout(layout_, shape_), config_.num_layers)),
      weights_(std::move(parts.weights)),
      a_(std::move(activations)),
      max_tokens_(parts.max_tokens),
      ops_(parts.ops) {}

absl::Status Decoder::CheckTokens(const ForwardBatch& batch) const {
  for (const int32_t token : batch.tokens) {
    if (token < 0 ? ~token < batch.drawn_rows : token < config_.vocab_size) continue;
    return absl::InvalidArgumentError(StrCat("token id ", token, " is not in the vocabulary of ", config_.vocab_size));
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> Decoder::Forward(const ForwardBatch& batch, std::span<const KvGroupView> kv,
                                        const std::atomic<bool>& cancel) {
  BATON_CHECK(batch.groups.size() == layout_.groups.size() && kv.size() == layout_.groups.size(), batch.groups.size(),
              " tables, ", kv.size(), " views for ", layout_.groups.size(), " KV groups");
  const int64_t tokens = batch.groups[0].row_start.back();
  BATON_CHECK(tokens >= 1 && tokens <= max_tokens_, tokens, " tokens in a step of at most ", max_tokens_);
  BATON_RETURN_IF_ERROR(CheckTokens(batch));
  const auto wanted = static_cast<int64_t>(batch.logit_rows.size());
  BATON_RETURN_IF_ERROR(a_.ReserveLogits(wanted, ops_));
  const kernels::StepInputs inputs{batch.tokens,
                                   batch.groups,
                                   batch.logit_rows,
                                   kv[0].layers.data(),
                                   (place_.ranks() == 1 || links_.stages != nullptr) && !batch.on_layer_kv,
                                   batch.draws};
  absl::StatusOr<Tensor> logits = Tensor();
  BATON_RETURN_IF_ERROR(ops_.RunStep(inputs, [&](const kernels::StepInputs& given) {
    const ForwardBatch issued{
        given.tokens, {given.groups.begin(), given.groups.end()}, given.logit_rows, batch.on_layer_kv};
    logits = Issue(issued, kv, cancel);
    return logits;
  }));
  // A replay has left them where the recorded calls did, and may have more rows.
  return inputs.recordable && wanted > 0 && place_.rank() == 0 ? a_.logits.Rows(0, wanted) : logits;
}

absl::StatusOr<Tensor> Decoder::Issue(const ForwardBatch& batch, std::span<const KvGroupView> kv,
                                      const std::atomic<bool>& cancel) {
  const int64_t tokens = batch.groups[0].row_start.back();
  const WantedRows wanted(batch.logit_rows);
  const std::vector<std::unique_ptr<MicroBatch>> parts = SplitRows(batch, wanted.rows, StepParts(tokens, place_));
  for (const auto& part : parts) {
    const bool last = part == parts.back();  // then the layer's KV is there for all rows
    const auto ids = batch.tokens.empty() ? batch.tokens : batch.tokens.subspan(part->first, part->rows);
    BATON_RETURN_IF_ERROR(RunPart(*part, ids, kv, cancel, last ? batch.on_layer_kv : nullptr));
  }
  BATON_RETURN_IF_ERROR(ReturnWanted(wanted));
  if (!place_.first_stage()) return Tensor();
  // The gathering of logits tells rank 0 that all ranks are done with the step; without logits, a barrier does.
  if (wanted.rows.empty() && links_.tensor != nullptr) BATON_RETURN_IF_ERROR(links_.tensor->TreeAllReduce({}));
  absl::StatusOr<Tensor> logits = wanted.rows.empty() ? a_.head_in.Rows(0, 0) : Head(wanted);
  if (!logits.ok() || !batch.on_layer_kv) return logits;
  const int reported = wanted.rows.empty() && place_.stages == 1 ? shape_.layers.end - 1 : shape_.layers.end;
  for (int layer = reported; layer < config_.num_layers; ++layer) batch.on_layer_kv(layer);
  return logits;
}

absl::Status Decoder::RunPart(const MicroBatch& part, std::span<const int32_t> tokens, std::span<const KvGroupView> kv,
                              const std::atomic<bool>& cancel, const std::function<void(int)>& on_layer_kv) {
  const Tensor residual = a_.residual.Rows(0, part.rows);  // [rows, hidden]
  BATON_RETURN_IF_ERROR(Enter(tokens, residual));
  BATON_RETURN_IF_ERROR(Layers(part, kv, cancel, on_layer_kv, residual));
  if (place_.last_stage()) return absl::OkStatus();
  BeReadyFor(stages());
  return stages().Send(place_.Peer(place_.stage + 1), Bytes(residual));
}

absl::Status Decoder::Enter(std::span<const int32_t> tokens, const Tensor& residual) {
  if (!place_.first_stage()) return stages().Recv(place_.Peer(place_.stage - 1), Bytes(residual));
  if (HoldsEmbedding(place_)) {
    if (weights_.embedding.data != nullptr)
      ops_.Embedding(tokens, weights_.embedding, config_.embedding_scale, residual);
    else
      ops_.EmbeddingOfPacked(tokens, *weights_.lm_head, config_.embedding_scale, residual);
  }
  if (links_.tensor == nullptr) return absl::OkStatus();
  BeReadyFor(*links_.tensor);
  return links_.tensor->Broadcast(0, Bytes(residual));
}

absl::Status Decoder::Layers(const MicroBatch& part, std::span<const KvGroupView> kv, const std::atomic<bool>& cancel,
                             const std::function<void(int)>& on_layer_kv, const Tensor& rows_in) {
  Tensor residual = rows_in;
  const IntRange layers = shape_.layers;
  const bool fused = Fuses(part.rows);
  ops_.RmsNorm(residual, WeightsOf(layers.begin).input_norm, config_.norm_offset, config_.rms_eps,
               a_.normed.Rows(0, part.rows));
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    if (place_.ranks() == 1 && cancel.load(std::memory_order_relaxed)) {
      return absl::CancelledError(StrCat("cancelled before layer ", layer));
    }
    const bool last = layer + 1 == config_.num_layers, only_kv = last && part.wanted.empty();
    const KvPlace place = places_[static_cast<size_t>(layer)];
    const auto group = static_cast<size_t>(place.group);
    Attention(layer, part.groups[group], kv[group].layers[static_cast<size_t>(place.index)], part.rows, only_kv);
    if (only_kv) return absl::OkStatus();
    Tensor attended = Flat(a_.attended, part.rows);
    if (last) {  // from here on only the wanted rows matter
      const auto count = static_cast<int64_t>(part.wanted.size());
      const Tensor rows(a_.qkv.data, attended.dtype, {count, attended.cols()});  // q, k and v are done with
      const Tensor kept = a_.head_in.Rows(part.wanted_before, count);
      ops_.GatherRows(attended, part.wanted, rows);
      ops_.GatherRows(residual, part.wanted, kept);
      attended = rows;
      residual = kept;
    }
    const float* next = last ? weights_.final_norm : layer + 1 < layers.end ? WeightsOf(layer + 1).input_norm : nullptr;
    if (fused) {
      FusedAfterAttention(layer, next, attended, residual);
      if (on_layer_kv) on_layer_kv(layer);
      continue;
    }
    BATON_RETURN_IF_ERROR(AfterAttention(layer, attended, residual));
    if (on_layer_kv) on_layer_kv(layer);  // every rank of the stage has been here
    BATON_RETURN_IF_ERROR(Mlp(layer, next, residual));
  }
  return absl::OkStatus();
}

// The last stage sends nothing before this, so stages wait for each other in one direction only.
absl::Status Decoder::ReturnWanted(const WantedRows& wanted) {
  const Tensor kept = a_.head_in.Rows(0, wanted.count());
  if (place_.stages == 1) return absl::OkStatus();
  if (place_.last_stage()) {
    BeReadyFor(stages());
    return stages().Send(place_.Peer(0), Bytes(kept));
  }
  if (!place_.first_stage()) return absl::OkStatus();
  BATON_RETURN_IF_ERROR(stages().Recv(place_.Peer(place_.stages - 1), Bytes(kept)));
  if (wanted.count() == 0) return absl::OkStatus();
  ops_.RmsNorm(kept, weights_.final_norm, config_.norm_offset, config_.rms_eps, a_.normed.Rows(0, wanted.count()));
  return absl::OkStatus();
}

absl::StatusOr<Tensor> Decoder::Head(const WantedRows& wanted) {
  Tensor normed = a_.normed.Rows(0, wanted.count());
  if (wanted.repeated()) {
    const Tensor all = a_.head_normed.Rows(0, static_cast<int64_t>(wanted.index.size()));
    ops_.GatherRows(normed, wanted.index, all);
    normed = all;
  }
  const int64_t rows = normed.rows();
  if (place_.tensor_size > 1) {
    BATON_RETURN_IF_ERROR(GatherLogits(rows, normed));
    if (place_.rank() != 0) return Tensor();
  } else {
    ops_.Linear(normed, *weights_.lm_head, a_.logits.Rows(0, rows));
  }
  const Tensor logits = a_.logits.Rows(0, rows);  // [R, vocab] f32
  if (config_.logit_softcap > 0) ops_.SoftCap(config_.logit_softcap, logits);
  return logits;
}

// Each rank has its columns; rank 0 puts them side by side.
absl::Status Decoder::GatherLogits(int64_t rows, const Tensor& normed) {
  const auto part_of = [&](const IntRange& vocab) {
    return Tensor(a_.part_logits.data, DType::kF32, {rows, vocab.size()});
  };
  if (place_.rank() != 0) {
    const Tensor part = part_of(shape_.vocab);
    ops_.Linear(normed, *weights_.lm_head, part);
    BeReadyFor(*links_.tensor);
    return links_.tensor->Send(0, Bytes(part));
  }
  const Tensor logits = a_.logits.Rows(0, rows);
  ops_.Linear(normed, *weights_.lm_head, logits.Columns(shape_.vocab.begin, shape_.vocab.size()));
  std::vector<int32_t> all(static_cast<size_t>(rows));
  std::iota(all.begin(), all.end(), 0);
  for (int r = 1; r < place_.tensor_size; ++r) {
    RankPlace other = place_;
    other.tensor_rank = r;
    const IntRange vocab = ShapeOf(config_, other).vocab;
    BeReadyFor(*links_.tensor);
    BATON_RETURN_IF_ERROR(links_.tensor->Recv(r, Bytes(part_of(vocab))));
    ops_.GatherRows(part_of(vocab), all, logits.Columns(vocab.begin, vocab.size()));
  }
  return absl::OkStatus();
}

void Decoder::BeReadyFor(const Communicator& link) {
  if (!link.on_device()) ops_.Sync();
}

absl::Status Decoder::LinksHealth() const {
  for (Communicator* link : {links_.tensor, links_.stages}) {
    if (link != nullptr) BATON_RETURN_IF_ERROR(link->health());
  }
  return absl::OkStatus();
}

bool Decoder::Fuses(int64_t rows) const {
  const LayerWeights& w = weights_.layers.front();
  return rows <= ops_.traits().fused_rows && links_.tensor == nullptr && w.output.size() == 1 && w.down.size() == 1 &&
         w.post_attention_norm == nullptr && w.post_mlp_norm == nullptr;
}

void Decoder::Attention(int layer, const kernels::RaggedBatch& batch, const kernels::KvLayerView& kv, int64_t tokens,
                        bool only_kv) {
  const LayerWeights& w = WeightsOf(layer);
  const LayerConfig& shape = config_.layers[static_cast<size_t>(layer)];
  const int64_t dim = config_.head_dim, q_heads = shape_.q_heads.size(), kv_heads = shape_.kv_heads.size();
  const Tensor qkv = a_.qkv.Rows(0, tokens);
  ops_.Linear(a_.normed.Rows(0, tokens), *w.qkv, qkv);
  const Tensor q = Heads(qkv, 0, q_heads, dim);                            // [T, q_heads, head_dim]
  const Tensor k = Heads(qkv, q_heads * dim, kv_heads, dim);               // [T, kv_heads, head_dim]
  const Tensor v = Heads(qkv, (q_heads + kv_heads) * dim, kv_heads, dim);  // [T, kv_heads, head_dim]
  ops_.NormRopeAndWriteKv(q, k, v, w.query_norm, w.key_norm, config_.norm_offset, config_.rms_eps,
                          config_.ropes[shape.rope], batch, kv);
  if (only_kv) return;
  const kernels::AttentionParams params{
      .scale = config_.attention_scale, .window = shape.window, .logit_softcap = config_.attention_softcap};
  ops_.Attention(q, batch, kv, params, a_.attended.Rows(0, tokens));
}

absl::Status Decoder::AfterAttention(int layer, const Tensor& attended, const Tensor& residual) {
  const LayerWeights& w = WeightsOf(layer);
  BATON_RETURN_IF_ERROR(SumOverRanks(attended, w.output));
  AddToResidual(w.post_attention_norm, w.mlp_norm, residual);
  return absl::OkStatus();
}

absl::Status Decoder::Mlp(int layer, const float* next, const Tensor& residual) {
  const LayerWeights& w = WeightsOf(layer);
  const int64_t rows = residual.rows();
  const Tensor gate_up = a_.gate_up.Rows(0, rows), inner = a_.inner.Rows(0, rows);
  ops_.Linear(a_.normed.Rows(0, rows), *w.gate_up, gate_up);
  ops_.GatedActivation(config_.activation, gate_up, inner);
  BATON_RETURN_IF_ERROR(SumOverRanks(inner, w.down));
  AddToResidual(w.post_mlp_norm, next, residual);
  return absl::OkStatus();
}

void Decoder::FusedAfterAttention(int layer, const float* next, const Tensor& attended, const Tensor& residual) {
  const LayerWeights& w = WeightsOf(layer);
  const int64_t rows = residual.rows();
  const Tensor normed = a_.normed.Rows(0, rows), inner = a_.inner.Rows(0, rows),
               product = a_.projected[0].Rows(0, rows);
  ops_.LinearAdd(attended, *w.output[0], product, residual);
  ops_.RmsNorm(residual, w.mlp_norm, config_.norm_offset, config_.rms_eps, normed);
  ops_.GatedLinear(normed, *w.gate_up, config_.activation, a_.gate_up.Rows(0, rows), inner);
  ops_.LinearAdd(inner, *w.down[0], product, residual);
  if (next != nullptr) ops_.RmsNorm(residual, next, config_.norm_offset, config_.rms_eps, normed);
}

absl::Status Decoder::SumOverRanks(const Tensor& x, const std::vector<std::unique_ptr<kernels::PackedLinear>>& leaves) {
  SumLeaves(x, leaves, 0, leaves.size(), 0);
  if (links_.tensor == nullptr) return absl::OkStatus();
  BeReadyFor(*links_.tensor);
  return links_.tensor->TreeAllReduce(Floats(a_.projected[0].Rows(0, x.rows())));
}

void Decoder::SumLeaves(const Tensor& x, const std::vector<std::unique_ptr<kernels::PackedLinear>>& leaves,
                        size_t first, size_t count, size_t level) {
  const Tensor sum = a_.projected[level].Rows(0, x.rows());
  if (count == 1) {
    const int64_t columns = leaves[first]->in_features();
    return ops_.Linear(x.Columns(static_cast<int64_t>(first) * columns, columns), *leaves[first], sum);
  }
  SumLeaves(x, leaves, first, count / 2, level);
  SumLeaves(x, leaves, first + count / 2, count / 2, level + 1);
  ops_.Add(a_.projected[level + 1].Rows(0, x.rows()), sum);
}

void Decoder::AddToResidual(const float* post_norm, const float* next, const Tensor& residual) {
  const int64_t rows = residual.rows();
  Tensor change = a_.projected[0].Rows(0, rows);  // [rows, hidden] f32
  if (post_norm != nullptr) {
    const Tensor normed = a_.post_normed.Rows(0, rows);
    ops_.RmsNorm(change, post_norm, config_.norm_offset, config_.rms_eps, normed);
    change = normed;
  }
  if (next == nullptr) return ops_.Add(change, residual);
  ops_.AddRmsNorm(change, residual, next, config_.norm_offset, config_.rms_eps, a_.normed.Rows(0, rows));
}

}  // namespace baton::engine
