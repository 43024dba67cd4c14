// One attention problem: ragged sequences over a shuffled paged cache with NaN wherever nobody may look, and its answer
// in double precision.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>

#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/instances/instances.h"
#include "tests/kernels/cuda/device_test.h"

namespace baton::cuda_test {

struct AttentionShape {
  std::vector<int> new_rows, lengths;  ///< per sequence; lengths include the new rows
  int q_heads = 4, kv_heads = 2, tokens_per_block = 16;
  int window = 0;
  float softcap = 0.0f;
  bool sinks = false, tree = false;
  float loudness = 1.0f;  ///< standard deviation of q and of the sinks
  bool per_head_tables =
      false;  ///< every kv head has its own blocks and, 29 tokens fewer from head to head, its own length
  int LengthOf(size_t sequence, int kv_head) const {
    return per_head_tables ? std::max(new_rows[sequence], lengths[sequence] - 29 * kv_head) : lengths[sequence];
  }
};

template <typename Kv, int kDim>
class AttentionCase {
 public:
  AttentionCase(const AttentionShape& s, unsigned seed)
      : shape(s),
        data_(seed),
        k(Blocks() * BlockElements()),
        v(k.size()),
        q(MakeQueries()),
        out(static_cast<size_t>(rows()) * OutStride()),
        lse(std::max<size_t>(1, static_cast<size_t>(rows()) * s.q_heads)),
        tables(MakeTables()),
        row_start(RowStart()),
        lengths(MakeLengths()),
        k_scale(static_cast<size_t>(s.kv_heads)),
        v_scale(k_scale.size()),
        sinks(data_.Normal<float>(s.q_heads, s.loudness)),
        tree(MakeTree()) {
    for (int head = 0; head < s.kv_heads; ++head) {
      k_scale[head] = 0.5f + 0.125f * static_cast<float>(head % 5);
      v_scale[head] = 0.75f - 0.125f * static_cast<float>(head % 4);
    }
    std::fill_n(k.host(), k.size(), Nan<Kv>());
    std::fill_n(v.host(), v.size(), Nan<Kv>());
    for (size_t seq = 0; seq < s.lengths.size(); ++seq)
      for (int head = 0; head < s.kv_heads; ++head)
        for (int t = 0; t < s.LengthOf(seq, head); ++t)
          for (Kv* plane : {k.host(), v.host()}) data_.template Fill<Kv>(plane + At(seq, head, t), kDim);
  }

  int rows() const { return std::accumulate(shape.new_rows.begin(), shape.new_rows.end(), 0); }
  void Poison() {
    std::fill_n(out.host(), out.size(), Nan<px::bf16>());
    std::fill_n(lse.host(), lse.size(), NAN);
    out.Send();
    lse.Send();
  }
  cuda::PagedKv<Kv> Cache() const {
    return {k.data(),
            v.data(),
            static_cast<int64_t>(BlockElements()),
            tables.data(),
            table_stride_ * HeadTables(),
            shape.per_head_tables ? table_stride_ : 0,
            lengths.data(),
            HeadTables(),
            shape.per_head_tables ? 1 : 0,
            cuda::MakeBlockSize(shape.tokens_per_block),
            shape.kv_heads,
            k_scale.data(),
            v_scale.data()};
  }
  cuda::AttentionOptions Options() const {
    return {static_cast<float>(1.0 / std::sqrt(kDim)), shape.window, shape.softcap,
            shape.sinks ? sinks.data() : nullptr};
  }

  /// The kernels that take the problem: with mma.sync, and on Hopper with wgmma.
  enum class Form { kMmaSync, kWgmma };
  std::vector<Form> PrefillForms() {
    if constexpr (cuda::kWgmmaPrefills<Kv, kDim>) {
      if (cuda::HasWgmma(gpu::CurrentDevice().architecture) && cuda::WgmmaPrefillSuits<kDim>(Prompts({})))
        return {Form::kMmaSync, Form::kWgmma};
    }
    return {Form::kMmaSync};
  }
  template <bool kFixed>
  void Prefill(gpu::Stream& stream, Form form = Form::kMmaSync) {
    const auto plan = cuda::PlanPrefill({row_start.host(), row_start.size()}, shape.lengths);
    prefill_tiles_ = std::make_unique<Array<cuda::PrefillTile>>(plan);
    const cuda::PrefillParams<Kv> p = Prompts(prefill_tiles_->data());
    if constexpr (cuda::kWgmmaPrefills<Kv, kDim>) {
      if (form == Form::kWgmma) return cuda::LaunchWgmmaPrefill<kDim, kFixed>(stream, p, static_cast<int>(plan.size()));
    }
    cuda::LaunchPrefillAttention<Kv, kDim, kFixed>(stream, p, static_cast<int>(plan.size()));
  }
  template <bool kFixed>
  void Decode(gpu::Stream& stream, int tiles_per_item, int blocks = 5) {
    PlanDecode<kFixed>(tiles_per_item);
    LaunchDecode<kFixed>(stream, blocks);
  }
  /// The lists of a decode launch and memory for its partial results; a capture cannot make them.
  template <bool kFixed>
  void PlanDecode(int tiles_per_item) {
    const auto plan = Plan<kFixed>(tiles_per_item);
    groups_ = std::make_unique<Array<cuda::DecodeGroup>>(plan.groups);
    items_ = std::make_unique<Array<cuda::DecodeItem>>(plan.items);
    counts_ = std::make_unique<Array<int32_t>>(
        std::vector<int32_t>{static_cast<int32_t>(plan.groups.size()), static_cast<int32_t>(plan.items.size())});
    const size_t rows = static_cast<size_t>(plan.partials) * cuda::kRowsPerWarp;
    partial_o_ = std::make_unique<Array<float>>(std::vector<float>(rows * kDim, NAN));
    partial_ml_ = std::make_unique<Array<float>>(std::vector<float>(rows * 2, NAN));
  }
  /// What the last decode's warps left to be combined: values, then maxima and sums. NaN where they left nothing.
  std::vector<float> Partials() const {
    std::vector<float> all = Copy(*partial_o_);
    const std::vector<float> ml = Copy(*partial_ml_);
    all.insert(all.end(), ml.begin(), ml.end());
    return all;
  }
  template <bool kFixed>
  void LaunchDecode(gpu::Stream& stream, int blocks = 5) {
    cuda::DecodeParams<Kv> p{q.data(),
                             out.data(),
                             lse.data(),
                             QStride(),
                             OutStride(),
                             row_start.data(),
                             shape.tree ? tree.data() : nullptr,
                             {groups_->data(), items_->data(), counts_->data()},
                             partial_o_->data(),
                             partial_ml_->data(),
                             Cache(),
                             Options(),
                             shape.q_heads};
    cuda::LaunchDecodeAttention<Kv, kDim, kFixed>(stream, p, blocks);
  }

  /// Other lengths, none longer than at first: the lists of the last Decode are rewritten in place.
  template <bool kFixed>
  void SetLengths(const std::vector<int>& now, int tiles_per_item) {
    shape.lengths = now;
    std::copy_n(MakeLengths().data(), lengths.size(), lengths.host());
    const auto plan = Plan<kFixed>(tiles_per_item);
    std::copy(plan.groups.begin(), plan.groups.end(), groups_->host());
    std::copy(plan.items.begin(), plan.items.end(), items_->host());
    (*counts_)[0] = static_cast<int32_t>(plan.groups.size());
    (*counts_)[1] = static_cast<int32_t>(plan.items.size());
    lengths.Send();
    groups_->Send();
    items_->Send();
    counts_->Send();
  }

  int64_t QStride() const { return shape.q_heads * kDim + 8; }
  int64_t OutStride() const { return shape.q_heads * kDim + 4; }
  /// Where the output of a row's head begins.
  size_t OutAt(int row, int head) const { return static_cast<size_t>(row) * OutStride() + head * kDim; }
  /// [rows, q_heads, head_dim] of the output, without what lies between rows.
  std::vector<px::bf16> Packed() const {
    std::vector<px::bf16> packed;
    for (int r = 0; r < rows(); ++r)
      packed.insert(packed.end(), out.host() + OutAt(r, 0), out.host() + OutAt(r, shape.q_heads));
    return packed;
  }
  bool GapsAreUntouched() const {
    for (int r = 0; r < rows(); ++r)
      for (size_t at = OutAt(r, shape.q_heads); at < OutAt(r + 1, 0); ++at)
        if (out[at].bits != Nan<px::bf16>().bits) return false;
    return true;
  }

  /// [rows, q_heads, head_dim] and [rows, q_heads] in double precision.
  void Reference(std::vector<double>& want, std::vector<double>& want_lse) const {
    want.clear();
    want_lse.clear();
    for (size_t s = 0; s < shape.lengths.size(); ++s)
      for (int r = 0; r < shape.new_rows[s]; ++r)
        for (int h = 0; h < shape.q_heads; ++h) ReferenceRow(s, r, h, want, want_lse);
  }

  /// Where one head's vector of a token begins in k and v.
  size_t At(size_t seq, int head, int token) const {
    const size_t table = (seq * HeadTables() + (shape.per_head_tables ? head : 0)) * table_stride_;
    return tables[table + token / shape.tokens_per_block] * BlockElements() +
           (static_cast<size_t>(token % shape.tokens_per_block) * shape.kv_heads + head) * kDim;
  }
  /// Whether new row r of the sequence sees the token.
  bool Visible(size_t s, int kv_head, int r, int token) const {
    const int context = shape.LengthOf(s, kv_head) - shape.new_rows[s], position = context + r;
    if (shape.window > 0 && token <= position - shape.window) return false;
    if (shape.tree && token >= context) return tree[row_start[s] + r] >> (token - context) & 1;
    return token <= position;
  }

  AttentionShape shape;

 private:
  Data data_;
  int64_t table_stride_ = 0;

 public:
  Array<Kv> k, v;
  Array<px::bf16> q, out;
  Array<float> lse;
  Array<int32_t> tables, row_start, lengths;
  Array<float> k_scale, v_scale, sinks;
  Array<uint32_t> tree;

 private:
  template <bool kFixed>
  cuda::DecodePlan Plan(int tiles_per_item) const {
    return cuda::PlanDecode({{row_start.host(), row_start.size()},
                             {lengths.host(), lengths.size()},
                             shape.per_head_tables,
                             shape.q_heads,
                             shape.kv_heads,
                             shape.window,
                             tiles_per_item,
                             kFixed});
  }
  cuda::PrefillParams<Kv> Prompts(const cuda::PrefillTile* tiles) {
    return {q.data(), out.data(),       lse.data(), QStride(), OutStride(),
            tiles,    row_start.data(), Cache(),    Options(), shape.q_heads};
  }
  size_t BlockElements() const { return static_cast<size_t>(shape.tokens_per_block) * shape.kv_heads * kDim; }
  int BlocksOf(int length) const { return (length + shape.tokens_per_block - 1) / shape.tokens_per_block; }
  size_t Blocks() const {
    size_t n = 2;
    for (int l : shape.lengths) n += BlocksOf(l);
    return n;
  }
  int HeadTables() const { return shape.per_head_tables ? shape.kv_heads : 1; }
  std::vector<int32_t> MakeLengths() const {
    std::vector<int32_t> all;
    for (size_t s = 0; s < shape.lengths.size(); ++s)
      for (int head = 0; head < HeadTables(); ++head) all.push_back(shape.LengthOf(s, head));
    return all;
  }
  std::vector<px::bf16> MakeQueries() {
    auto queries = data_.template Normal<px::bf16>(static_cast<size_t>(rows()) * QStride(), shape.loudness);
    for (int r = 0; r < rows(); ++r)  // between rows lies what nobody may read
      std::fill_n(queries.begin() + r * QStride() + shape.q_heads * kDim, 8, Nan<px::bf16>());
    return queries;
  }
  std::vector<int32_t> MakeTables() {
    table_stride_ = 1;
    for (int l : shape.lengths) table_stride_ = std::max<int64_t>(table_stride_, BlocksOf(l) + 1);
    std::vector<int32_t> t(shape.lengths.size() * HeadTables() * table_stride_,
                           1 << 28);  // unused entries must never be read
    for (int head = 0; head < HeadTables(); ++head) {
      std::vector<int32_t> free(Blocks());
      std::iota(free.begin(), free.end(), 0);
      std::shuffle(free.begin(), free.end(), data_.rng());
      for (size_t s = 0; s < shape.lengths.size(); ++s)
        for (int b = 0; b < BlocksOf(shape.LengthOf(s, head)); ++b) {
          t[(s * HeadTables() + head) * table_stride_ + b] = free.back();
          free.pop_back();
        }
    }
    return t;
  }
  std::vector<int32_t> RowStart() const {
    std::vector<int32_t> starts = {0};
    for (int n : shape.new_rows) starts.push_back(starts.back() + n);
    return starts;
  }
  std::vector<uint32_t> MakeTree() {
    std::vector<uint32_t> bits;
    if (!shape.tree) return bits;  // and there may be more rows than bits
    for (int n : shape.new_rows)
      for (int r = 0; r < n; ++r) {
        uint32_t ancestors = 1u << r;  // itself, and the ancestors of a random earlier node
        if (r > 0) ancestors |= bits[bits.size() - 1 - data_.Int(0, r - 1)];
        bits.push_back(ancestors);
      }
    return bits;
  }
  void ReferenceRow(size_t s, int r, int h, std::vector<double>& want, std::vector<double>& want_lse) const {
    const int kv_head = h / (shape.q_heads / shape.kv_heads);
    const double ks = sizeof(Kv) == 1 ? k_scale[kv_head] : 1.0, vs = sizeof(Kv) == 1 ? v_scale[kv_head] : 1.0;
    const px::bf16* query = q.host() + (row_start[s] + r) * QStride() + h * kDim;
    std::vector<double> o(kDim, 0.0);
    double sum = shape.sinks ? std::exp(sinks[h]) : 0.0;
    for (int t = 0; t < shape.LengthOf(s, kv_head); ++t) {
      if (!Visible(s, kv_head, r, t)) continue;
      const size_t at = At(s, kv_head, t);
      double logit = 0;
      for (int d = 0; d < kDim; ++d) logit += static_cast<double>(px::ToFloat(query[d])) * px::ToFloat(k[at + d]) * ks;
      logit /= std::sqrt(kDim);
      if (shape.softcap > 0) logit = shape.softcap * std::tanh(logit / shape.softcap);
      const double p = std::exp(logit);
      sum += p;
      for (int d = 0; d < kDim; ++d) o[d] += p * px::ToFloat(v[at + d]) * vs;
    }
    for (double x : o) want.push_back(x / sum);
    want_lse.push_back(std::log(sum));
  }

  std::unique_ptr<Array<cuda::PrefillTile>> prefill_tiles_;
  std::unique_ptr<Array<cuda::DecodeGroup>> groups_;
  std::unique_ptr<Array<cuda::DecodeItem>> items_;
  std::unique_ptr<Array<int32_t>> counts_;
  std::unique_ptr<Array<float>> partial_o_, partial_ml_;
};

/// Every form of prefill under every policy. check(name) looks at the answer of each.
template <bool kFixed, typename Case, typename Check>
void PrefillUnderEveryPolicy(Case& c, Check&& check) {
  for (const auto form : c.PrefillForms())
    UnderEveryPolicy(
        [&](gpu::Stream& stream) {
          c.Poison();
          c.template Prefill<kFixed>(stream, form);
        },
        [&](const std::string& policy) {
          check((form == Case::Form::kWgmma ? "prefill by wgmma, " : "prefill, ") + policy);
        });
}

/// Of bf16 outputs; p is rounded to bf16 before p · v.
constexpr Tolerance kAttentionTolerance = kernel_test::ToleranceOf(DType::kBF16).attention;

/// The two relations every attention output must satisfy.
template <typename Case>
void ExpectRight(const Case& c, const std::vector<double>& want, const std::vector<double>& want_lse,
                 const std::string& name) {
  EXPECT_TRUE(Near(c.Packed().data(), want, kAttentionTolerance)) << name;
  EXPECT_TRUE(c.GapsAreUntouched()) << name << ": writes between its rows";
  EXPECT_TRUE(Near(c.lse.host(), want_lse, kernel_test::kLogSumExp)) << name;
}

}  // namespace baton::cuda_test
