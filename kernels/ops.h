// The list of operations. CpuOps is real and is the oracle; CudaOps is a plugin; one contract test runs over both.
//
// Rules for every operation
//  * Shapes are in the comments; T = tokens of the step over all sequences ("ragged": sequences lie one after another).
//  * Row independence (Promise A): the bits of an output row depend on that row's inputs alone, never on T, the row's
//    position, the number of threads, or whether the row came by prefill or by decode.
//  * Column independence (tensor parallelism): the bits of a column of Linear depend on the row, the column's weights
//  and
//    bias, and K alone, never on which other columns are packed with it.
//  * Activations are `traits().compute` (f32 or bf16); the residual stream and logits are f32.
//  * Outputs may not alias inputs unless the comment says so. Rows may be padded (Tensor::row_stride).
//  * Calls are ordered; on a device they are enqueued. Sync() waits. One thread (the executor) calls an Ops at a time.
//  * Shapes are the caller's promise: a wrong one is a BATON_CHECK, not a Status.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/check.h"
#include "common/kv_mover.h"
#include "kernels/quantized/weight.h"
#include "kernels/rank_group.h"
#include "kernels/tensor.h"

namespace baton::kernels {

/// Device memory with an owner. Freed by its destructor, through the Ops that made it (which must outlive it).
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual void* data() const = 0;
  virtual size_t bytes() const = 0;
};

/// A weight [N, K] packed for this device, with its optional bias [N]. Made once at load, immutable, shared by threads.
class PackedLinear {
 public:
  virtual ~PackedLinear() = default;
  virtual int64_t out_features() const = 0;  ///< N
  virtual int64_t in_features() const = 0;   ///< K
  virtual size_t bytes() const = 0;          ///< device memory it holds
  /// Whether Linear makes x e4m3 first (QuantizedWeight::rounding).
  virtual bool rounds_inputs() const { return false; }
};

/// The weights [N, K] of a layer's experts packed for this device, with their optional biases. As PackedLinear.
class PackedExperts {
 public:
  virtual ~PackedExperts() = default;
  virtual int experts() const = 0;
  virtual int64_t out_features() const = 0;  ///< N
  virtual int64_t in_features() const = 0;   ///< K
  virtual size_t bytes() const = 0;
};

/// What a device computes in; part of the numerics id.
struct OpsTraits {
  DType compute = DType::kF32;  ///< activations and packed weights: f32 or bf16
  DType kv = DType::kF32;       ///< KV planes
  std::string isa;              ///< "avx512_core_amx", "avx512_core_bf16", "avx512_core", "avx2", "sm_90a" …
  std::string kernel_version;   ///< changes whenever bits may change
  int threads = 1;
  bool device_panels = false;  ///< packed weights have a device's shape (kernels/packed_size.h)
  int column_multiple = 1;     ///< hidden sizes and in_features must be multiples of it (CUDA: 8)
  int fused_rows = 0;          ///< up to so many rows a fused form is one kernel; beyond, and at 0, it is its parts
  bool packed_rows = false;    ///< EmbeddingOfPacked works: a tied head is the embedding table as well
  int64_t work_bytes = 0;     ///< of a device: what work that can be cut into launches takes at a time (device_rooms.h)
  int64_t library_bytes = 0;  ///< of a device: what products by a library take beside; 0: none multiplies
};

/// Of a device with memory of its own.
struct DeviceMemory {
  int64_t free_bytes = 0, total_bytes = 0;
};

/// What steps take of a device's memory beside weights, activations and KV, in bytes by kind (device_rooms.h).
struct DeviceRooms {
  int64_t inputs = 0;    ///< of a step: tokens, block tables, attention's work lists
  int64_t partials = 0;  ///< partial results of attention
  int64_t rotary = 0;    ///< tables of angles
  int64_t sampling = 0;  ///< with the tokens that are drawn
  int64_t codes = 0;     ///< of layers in codes (CodeRooms)
  int64_t scales = 0;    ///< of KV in e4m3
  int64_t sums = 0;      ///< over ranks
  int64_t handoff = 0;   ///< lists of the KV that moves
  int64_t library = 0;   ///< products by a library (OpsTraits::library_bytes)
  int64_t Total() const { return inputs + partials + rotary + sampling + codes + scales + sums + handoff + library; }
  bool operator==(const DeviceRooms&) const = default;
};

enum class Activation { kSilu, kGeluTanh };

/// Rotary embedding, resolved by the model family: cos/sin of angle position · inv_freq[i], times `attention_factor`.
/// Non-interleaved ("rotate half") pairs (i, i + rotary_dim/2). Positions ≥ 0; elements beyond rotary_dim are copied.
struct RopeParams {
  int rotary_dim = 0;             ///< even, ≤ head_dim
  std::vector<float> inv_freq;    ///< [rotary_dim / 2], scaling (linear, llama3, yarn) already applied
  float attention_factor = 1.0f;  ///< yarn's mscale
};

/// The most that one rank's steps of a model ask for: what a device with memory of its own sizes its working memory by.
struct StepLimits {
  /// One kind of attention layer.
  struct Heads {
    int q_heads = 1, kv_heads = 1, dim = 0, window = 0;
    int group = 0;  ///< its KV group
    bool operator==(const Heads&) const = default;
  };
  int64_t rows = 0, sequences = 0;
  int64_t positions = 0;                  ///< of a sequence
  int64_t logit_rows = 0;                 ///< of one Sample or Logprobs, and of one GatherRows
  int64_t vocab = 0;                      ///< columns of those
  std::vector<float> kv_scales{};         ///< of the KV planes in e4m3; those that are 1 need not be told
  std::vector<int> tokens_per_block{16};  ///< of each KV group
  std::vector<Heads> attention;           ///< each kind once
  std::vector<RopeParams> ropes;          ///< each once
  std::vector<int32_t> recorded_rows;     ///< ascending: steps of decodes that a device may record; empty: none
};

/// One layer's K or V plane of a paged pool: block b at base + b · block_stride_bytes, inside it
/// [tokens_per_block, heads, dim].
struct KvPlaneView {
  void* base = nullptr;
  int64_t block_stride_bytes = 0;
  int tokens_per_block = 16;
  int heads = 0;  ///< KV heads of this rank
  int dim = 0;
  DType dtype = DType::kF32;
  /// Digest of each 16-token unit: [blocks, tokens_per_block / 16, heads]; block stride in elements. Null: none kept.
  /// Tokens are written in order: a unit's first token sets its digest, later ones add to it (blocks are reused as is).
  uint64_t* digests = nullptr;
  int64_t digest_block_stride = 0;
  float scale = 1.0f;  ///< of e4m3: value = stored · scale, for all heads; other types are kept as they are
};

struct KvLayerView {
  KvPlaneView k, v;
  uint32_t layer = 0;       ///< global layer number (digest key)
  uint32_t first_head = 0;  ///< global number of this rank's first KV head (digest key)
};

/// The sequences of one ragged step. Sequence s owns rows [row_start[s], row_start[s + 1]); its row r is position
/// context[s] + r. Its tokens up to and including that position are in its blocks when attention runs.
struct RaggedBatch {
  std::span<const int32_t> row_start;     ///< [sequences + 1], row_start[0] = 0
  std::span<const int32_t> context;       ///< [sequences] tokens already computed before this step
  std::span<const int32_t> block_tables;  ///< [sequences, table_stride] block numbers, in order of position
  int64_t table_stride = 0;               ///< entries per sequence in block_tables
  int sequences() const { return static_cast<int>(context.size()); }
};

struct AttentionParams {
  float scale = 1.0f;            ///< multiplies q·k
  int window = 0;                ///< > 0: position p sees (p - window, p]; 0: all of [0, p]
  float logit_softcap = 0.0f;    ///< > 0: s ← cap · tanh(s / cap)
  const float* sinks = nullptr;  ///< [q_heads] extra softmax logit per head with no value (gpt-oss), or null
};

/// Where the tokens of a mixture-of-experts layer go: device memory of the caller, filled by RouteTokens.
struct MoeRoutes {
  int tokens = 0, experts = 0, per_token = 0;  ///< at most 256 experts, 16 of them per token
  int32_t* chosen = nullptr;                   ///< [tokens, per_token] experts, best first
  float* weights = nullptr;                    ///< [tokens, per_token]
  int32_t* offsets = nullptr;                  ///< [experts + 1]: expert e has rows [offsets[e], offsets[e + 1])
  int32_t* row_of_pair = nullptr;              ///< [tokens, per_token] its row; an expert's rows are in order of pairs
  int32_t* token_of_row = nullptr;             ///< [rows()]
  int rows() const { return tokens * per_token; }
};

/// Of multi-head latent attention: a token's cache is [latent 512 | rope 64], one vector for all heads.
constexpr int kLatentDim = 576, kLatentValues = 512;

/// How one row of logits becomes a token. Neutral values switch a field off. Applied in this order: allowed tokens →
/// logit bias → min_tokens (bans `stop_ids`) → repetition, presence, frequency penalties → grammar mask → (greedy:
/// argmax) temperature → top-k → top-p → min-p → draw. Ties: the lower token id wins.
struct SampleRow {
  float temperature = 1.0f;  ///< 0: greedy
  int32_t top_k = 0;         ///< 0: all
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;         ///< over prompt and output tokens
  float presence_penalty = 0.0f;           ///< over output tokens
  float frequency_penalty = 0.0f;          ///< over output tokens
  std::span<const int32_t> prompt_tokens;  ///< read when repetition_penalty ≠ 1
  std::span<const int32_t> output_tokens;  ///< read when a penalty is on
  /// ≥ 0: the token that this row of the step given last takes, a DrawnToken, was output behind those.
  int32_t unread_row = -1;
  std::span<const std::pair<int32_t, float>> logit_bias;
  std::span<const int32_t> allowed_tokens;  ///< empty: all
  std::span<const int32_t> banned_tokens;   ///< bad words, and stop ids while min_tokens is not reached
  const uint32_t* grammar_mask = nullptr;   ///< [ceil(vocab / 32)] bit = allowed, or null
  uint64_t seed = 0;                        ///< of the request
  uint32_t sequence_index = 0;              ///< of the n choices
  uint64_t position = 0;      ///< position of the token drawn; (seed, sequence_index, position) keys Philox
  int32_t num_logprobs = -1;  ///< -1: none; k ≥ 0: the chosen token's and the k best, of the raw logits' log-softmax
};

/// The numbers that a draw reads as they are, on every device: from a request into a row, from a row into a device's.
template <class From, class To>
void CopyDrawNumbers(const From& from, To& to) {
  to.temperature = from.temperature;
  to.top_k = from.top_k;
  to.top_p = from.top_p;
  to.min_p = from.min_p;
  to.repetition_penalty = from.repetition_penalty;
  to.presence_penalty = from.presence_penalty;
  to.frequency_penalty = from.frequency_penalty;
}

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0.0f;
  int32_t rank = 0;  ///< 1 = most likely
};

struct SampleResult {
  int32_t token = 0;
  TokenLogprob chosen;            ///< set when num_logprobs ≥ 0
  std::vector<TokenLogprob> top;  ///< num_logprobs entries, best first; ties: lower id first
};

/// Tokens that a device draws (Ops::BeginSample).
class Draw {
 public:
  /// Waits until they are drawn. Before the Ops.
  virtual ~Draw() = default;
  /// Take waits for nothing.
  virtual bool ready() const = 0;
  /// One result per row. Once.
  virtual std::vector<SampleResult> Take() = 0;
};

/// Of a device that has drawn them before it says so.
class ReadyDraw final : public Draw {
 public:
  explicit ReadyDraw(std::vector<SampleResult> results) : results_(std::move(results)) {}
  bool ready() const override { return true; }
  std::vector<SampleResult> Take() override { return std::move(results_); }

 private:
  std::vector<SampleResult> results_;
};

/// Stands, among the ids that Embedding gets, for the token that row `row` of the last BeginSample draws.
constexpr int32_t DrawnToken(int32_t row) { return ~row; }

/// All that the calls of one step take from the host, told at once. The spans live until the step's end.
struct StepInputs {
  std::span<const int32_t> tokens;      ///< as Embedding gets them
  std::span<const RaggedBatch> groups;  ///< per KV group: the same rows
  std::span<const int32_t> logit_rows;  ///< as GatherRows gets them
  const void* memory = nullptr;         ///< stands for the KV that the step writes: a step is recorded for one
  bool recordable = true;               ///< the calls depend on the number of rows alone
  std::span<const SampleRow> draws;     ///< as BeginSample gets them once the step is given; empty: not known yet
};

/// What a device was asked for since the start.
struct DeviceWork {
  int64_t launches = 0, replays = 0, copies = 0, waits = 0;  ///< copies: between host and device, either way
};

/// The operations. Thread: the executor's; implementations own their compute threads.
class Ops {
 public:
  virtual ~Ops() = default;
  virtual const OpsTraits& traits() const = 0;

  // ---- memory
  /// Zeroed device memory, 64-byte aligned (huge pages where possible). ResourceExhausted with both numbers.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) = 0;
  virtual void CopyToDevice(void* dst, const void* src, size_t bytes) = 0;
  virtual void CopyToHost(void* dst, const void* src, size_t bytes) = 0;
  virtual void Sync() = 0;
  /// The device's memory now; nothing when it is the host's.
  virtual std::optional<DeviceMemory> device_memory() const { return std::nullopt; }
  /// What it has allocated of that for steps. All 0 when the memory is the host's.
  virtual DeviceRooms rooms() const { return {}; }
  /// Takes the working memory that steps within `limits` need: none of them allocates on the device afterwards.
  /// ResourceExhausted with both numbers. A device that was not asked takes it as it goes.
  virtual absl::Status Prepare(const StepLimits&) { return absl::OkStatus(); }
  /// Makes a step's calls, from Embedding to the logits that it returns (without data: another rank's, or none).
  using StepCalls = std::function<absl::StatusOr<Tensor>(const StepInputs&)>;
  /// Runs a step: `issue` makes its calls for the inputs that it is given, which may have more rows than the step's (at
  /// the end; they write no KV). A prepared device uploads the inputs in one copy, records the calls of a step of
  /// decodes once, with the sampler behind them, and replays them: then `issue` is not called.
  virtual absl::Status RunStep(const StepInputs& step, const StepCalls& issue) { return issue(step).status(); }
  virtual DeviceWork device_work() const { return {}; }
  /// What it chose when it was prepared, for a line in the log; empty: nothing.
  virtual std::string about() const { return {}; }
  /// Runs `work` once all calls before this one are done: at once where they are when they return. On a device it is
  /// another thread's, in the order of the calls; it must not call this Ops, nor block. Dropped when the device fails.
  virtual void WhenDone(std::function<void()> work) { work(); }
  /// A step has been given of which the host has read nothing, so that nobody has waited for it. With a KvMover its end
  /// is waited for: blocks that are given back have no work on them.
  virtual void EndStep() {}
  /// The calls since the last of this, or since the start, are a step. Returns once the step before it is done: two at
  /// most are under way.
  virtual void FollowStep() {}
  /// Moves KV for the handoff, through `staging_bytes` of host memory at a time; `lends`: with an outbox and an inbox
  /// for the other devices of the machine. Null: Allocate's memory is the host's own. Asked for once, before the first
  /// step. ResourceExhausted with both numbers.
  virtual absl::StatusOr<std::unique_ptr<KvMover>> MakeKvMover(size_t staging_bytes, bool lends) {
    static_cast<void>(staging_bytes), static_cast<void>(lends);
    return nullptr;
  }

  /// Joins the other ranks of a group, and waits for them. Null: the memory is the host's, and so are its groups
  /// (engine::Communicator). The group ends before this Ops. FailedPrecondition: the ranks' devices do not go together.
  virtual absl::StatusOr<std::shared_ptr<RankGroup>> JoinGroup(const GroupSeat&) { return nullptr; }

  // ---- weights
  /// Packs weight [N, K] (f32, bf16 or f16 host rows, converted to the compute dtype) and bias [N] f32 (may be null).
  /// Where a library does the work, Pack checks on this machine which numbers of rows give a row the same bits, and
  /// uses no other. FailedPrecondition: the device has no kernel for the shape.
  virtual absl::StatusOr<std::unique_ptr<PackedLinear>> Pack(const Tensor& weight, const float* bias) = 0;

  /// Packs a group-quantized weight and bias [N] f32 (may be null) for Linear and its fused forms: the bits of Pack
  /// over DequantizedBf16(weight). Here: exactly that; a device with kernels for it keeps the codes. Where the weight
  /// says so (QuantizedWeight::rounding) x becomes e4m3 first, group by group, and scales multiply sums of products of
  /// codes, in f32; a device without such products multiplies what the codes stand for, in its own type.
  virtual absl::StatusOr<std::unique_ptr<PackedLinear>> PackQuantized(const QuantizedWeight& weight,
                                                                      const float* bias) {
    BATON_CHECK(!weight.rounding, "this device rounds no inputs to e4m3");
    std::vector<uint16_t> rows = DequantizedBf16(weight);
    return Pack(Tensor(rows.data(), DType::kBF16, {weight.n, weight.in_features()}), bias);
  }
  /// Packs weights [experts, N, K] (f32, bf16 or f16 host memory) and biases [experts, N] f32 (may be null).
  virtual absl::StatusOr<std::unique_ptr<PackedExperts>> PackExperts(const Tensor& weights, const float* biases) = 0;

  // ---- dense
  /// out[t] = table[ids[t]] · scale.  ids [T] or DrawnTokens, table [vocab, hidden] f32|bf16|f16, out [T, hidden] f32.
  virtual void Embedding(std::span<const int32_t> ids, const Tensor& table, float scale, const Tensor& out) = 0;
  /// The same from a weight [vocab, hidden] that Pack made, in the type it is packed in. traits().packed_rows only.
  virtual void EmbeddingOfPacked(std::span<const int32_t>, const PackedLinear&, float, const Tensor&) {
    BATON_CHECK(false, "this device reads no rows of packed weights");
  }
  /// out = x / sqrt(mean(x²) + eps) · (weight + weight_offset).  x [T, n] f32, weight [n] f32, out [T, n] compute dtype
  /// or f32. weight_offset is 1 for Gemma. Sums in f32, fixed order.
  virtual void RmsNorm(const Tensor& x, const float* weight, float weight_offset, float eps, const Tensor& out) = 0;
  /// residual += x, then RmsNorm of it into out.  x [T, n] f32 or compute dtype, residual [T, n] f32 in place.
  virtual void AddRmsNorm(const Tensor& x, const Tensor& residual, const float* weight, float weight_offset, float eps,
                          const Tensor& out) = 0;
  /// residual += x.  x [T, n] f32 or compute dtype, residual [T, n] f32 in place.
  virtual void Add(const Tensor& x, const Tensor& residual) = 0;
  /// out = x · Wᵀ + bias.  x [M, K] compute dtype, out [M, N] compute dtype or f32.
  virtual void Linear(const Tensor& x, const PackedLinear& w, const Tensor& out) = 0;
  /// out = act(gate) · up, the two halves of one row.  gate_up [T, 2n] compute dtype, out [T, n] compute dtype.
  virtual void GatedActivation(Activation act, const Tensor& gate_up, const Tensor& out) = 0;
  // Fused forms, for steps of traits().fused_rows: a backend overrides them with one kernel of the same bits.
  /// out = act(gate) · up of x · Wᵀ + bias, W's rows gate then up.  x [T, K] and out [T, n] compute dtype; `gate_up`
  /// [T, 2n] compute dtype is scratch.
  virtual void GatedLinear(const Tensor& x, const PackedLinear& w, Activation act, const Tensor& gate_up,
                           const Tensor& out) {
    Linear(x, w, gate_up);
    GatedActivation(act, gate_up, out);
  }
  /// residual += x · Wᵀ + bias, the product in f32.  x [T, K] compute dtype, residual [T, N] f32 in place; `product`
  /// [T, N] f32 is scratch.
  virtual void LinearAdd(const Tensor& x, const PackedLinear& w, const Tensor& product, const Tensor& residual) {
    Linear(x, w, product);
    Add(product, residual);
  }
  /// out[i] = x[rows[i]].  x [T, n], out [rows, n], same dtype.
  virtual void GatherRows(const Tensor& x, std::span<const int32_t> rows, const Tensor& out) = 0;

  // ---- attention
  /// Per head of q and k: optional RMSNorm with q_norm / k_norm [head_dim] f32 (null: none; + norm_offset), then RoPE
  /// at the row's position; q is changed in place; k and v go to the row's block slot, and their digests are added. q
  /// [T, q_heads, head_dim], k, v [T, kv_heads, head_dim], compute dtype, rows may be padded (views into fused qkv).
  virtual void NormRopeAndWriteKv(const Tensor& q, const Tensor& k, const Tensor& v, const float* q_norm,
                                  const float* k_norm, float norm_offset, float norm_eps, const RopeParams& rope,
                                  const RaggedBatch& batch, const KvLayerView& kv) = 0;
  /// Causal attention over the paged context, prefill and decode alike. KV is reduced in fixed tiles of 256 logical
  /// tokens counted from position 0, in index order: a row's result is a function of (q row, K[0..p], V[0..p]) only.
  /// q [T, q_heads, head_dim], out [T, q_heads, head_dim], compute dtype; GQA: q_heads a multiple of kv heads.
  virtual void Attention(const Tensor& q, const RaggedBatch& batch, const KvLayerView& kv,
                         const AttentionParams& params, const Tensor& out) = 0;

  /// Attention over multi-head latent attention's cache, absorbed form, causal and paged as Attention: scores use all
  /// kLatentDim elements, the values are the first kLatentValues. q [T, heads, kLatentDim], out [T, heads,
  /// kLatentValues], compute dtype; latents: one head of kLatentDim, kv dtype (e4m3 with scale 1). No window, no sinks.
  virtual void LatentAttention(const Tensor& q, const RaggedBatch& batch, const KvPlaneView& latents,
                               const AttentionParams& params, const Tensor& out) = 0;

  // ---- mixture of experts
  /// The per_token best experts of each token, softmax weights over all experts or (renormalize) over the chosen, and
  /// the lists. Ties go to the lower expert; NaN and −∞ count as the lowest number.  logits [tokens, experts] f32.
  virtual void RouteTokens(const Tensor& logits, bool renormalize, const MoeRoutes& routes) = 0;
  /// out[r] = x[token_of_row[r]] · W[e]ᵀ + bias[e] for the rows r of expert e; `by_row`: x[r] instead.  x [tokens or
  /// rows, K] compute dtype, out [rows, N] compute dtype or f32.
  virtual void ExpertLinear(const Tensor& x, bool by_row, const MoeRoutes& routes, const PackedExperts& w,
                            const Tensor& out) = 0;
  /// out[t] = Σ over t's choices, in order, of weight · y[row].  y [rows, n] compute dtype, out [tokens, n] f32.
  virtual void CombineExperts(const Tensor& y, const MoeRoutes& routes, const Tensor& out) = 0;

  // ---- KV blocks
  /// Copies block src[i] to dst[i] in one layer (both planes, digests too): copy-on-write.
  virtual void CopyBlocks(std::span<const int32_t> src, std::span<const int32_t> dst, const KvLayerView& kv) = 0;

  // ---- logits
  /// x ← cap · tanh(x / cap), in place.  x [T, n] f32.
  virtual void SoftCap(float cap, const Tensor& x) = 0;
  /// One token per row, by SampleRow.  logits [R, vocab] f32, may be overwritten. Deterministic.
  virtual std::vector<SampleResult> Sample(const Tensor& logits, std::span<const SampleRow> rows) = 0;
  /// The same, taken later: calls may follow meanwhile, and name the tokens that are drawn (DrawnToken). Two draws at
  /// most are begun and not taken. With StepInputs::draws of the step before it, what to draw is on the device already,
  /// and may be drawn: a replayed step has drawn all that needs no list of tokens.
  virtual std::unique_ptr<Draw> BeginSample(const Tensor& logits, std::span<const SampleRow> rows) {
    return std::make_unique<ReadyDraw>(Sample(logits, rows));
  }
  /// Whether BeginSample returns before these rows are drawn, and waits for nothing.
  virtual bool DrawsLater(std::span<const SampleRow>) const { return false; }
  /// Log-softmax of given tokens (prompt logprobs): for each row the target's logprob and rank, and the k best.
  virtual std::vector<SampleResult> Logprobs(const Tensor& logits, std::span<const int32_t> targets, int32_t k) = 0;
};

}  // namespace baton::kernels
