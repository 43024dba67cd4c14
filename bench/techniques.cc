// What operations in one pass are worth on this CPU: attention without the matrix of scores, and operations that read
// their input once, beside the same in parts. Bytes saved are those that a part writes or reads again and the whole
// does not.
//   bench_techniques [--threads 2] [--json FILE]
#include <cmath>
#include <cstdio>
#include <numeric>
#include <span>

#include "bench/lib/flags.h"
#include "bench/lib/measure.h"
#include "common/check.h"
#include "kernels/cpu/cpu_ops.h"

using namespace baton;
using kernels::Tensor;

namespace {

constexpr int kHidden = 2048, kHeads = 32, kKvHeads = 8, kHeadDim = 64, kInner = 8192;

struct Row {
  std::string name, what;
  int rows = 0;
  double whole_us = 0, parts_us = 0, saved_bytes = 0;
};

// A matrix with some numbers in it.
struct Matrix {
  Matrix(int64_t rows, int64_t cols) : data(static_cast<size_t>(rows * cols)), shape{rows, cols} {
    for (size_t i = 0; i < data.size(); ++i) data[i] = 0.01f * static_cast<float>(i % 17) - 0.08f;
  }
  Tensor tensor() { return Tensor(data.data(), DType::kF32, {shape[0], shape[1]}); }
  std::vector<float> data;
  int64_t shape[2];
};

class Techniques {
 public:
  explicit Techniques(kernels::Ops& ops) : ops_(ops) {}
  std::vector<Row> rows;

  // residual += x and its norm: in one pass the sum is not read again.
  void AddAndNorm(int count) {
    Matrix x(count, kHidden), residual(count, kHidden), out(count, kHidden);
    const std::vector<float> weight(kHidden, 1.0f);
    Compare(
        {"add, norm", "the sum is not read again", count}, 4.0 * count * kHidden,
        [&] { ops_.AddRmsNorm(x.tensor(), residual.tensor(), weight.data(), 0, 1e-5f, out.tensor()); },
        [&] {
          ops_.Add(x.tensor(), residual.tensor());
          ops_.RmsNorm(residual.tensor(), weight.data(), 0, 1e-5f, out.tensor());
        });
  }

  // Siblings: products of the same rows as one.
  void Siblings(const std::string& name, int count, const std::vector<int64_t>& widths) {
    const int64_t all = std::accumulate(widths.begin(), widths.end(), int64_t{0});
    Matrix x(count, kHidden), weight(all, kHidden), out(count, all);
    const auto whole = ops_.Pack(weight.tensor(), nullptr).value();
    std::vector<std::unique_ptr<kernels::PackedLinear>> parts;
    std::vector<Matrix> outs;
    for (const int64_t width : widths) {
      parts.push_back(ops_.Pack(Matrix(width, kHidden).tensor(), nullptr).value());
      outs.emplace_back(count, width);
    }
    Compare(
        {name, "rows are read once", count}, 4.0 * count * kHidden * static_cast<double>(widths.size() - 1),
        [&] { ops_.Linear(x.tensor(), *whole, out.tensor()); },
        [&] {
          for (size_t i = 0; i < parts.size(); ++i) ops_.Linear(x.tensor(), *parts[i], outs[i].tensor());
        });
  }

  void Attention(int context, int count);

 private:
  void Compare(Row row, double saved_bytes, const std::function<void()>& whole, const std::function<void()>& parts) {
    const std::vector<bench::Timing> times = bench::Alternate({whole, parts}, 5);
    row.whole_us = 1e6 * times[0].median, row.parts_us = 1e6 * times[1].median, row.saved_bytes = saved_bytes;
    std::printf("%-12s %6d %12.1f %12.1f %8.2f %14.0f  %s\n", row.name.c_str(), row.rows, row.whole_us, row.parts_us,
                row.parts_us / row.whole_us, row.saved_bytes, row.what.c_str());
    rows.push_back(std::move(row));
  }
  kernels::Ops& ops_;
};

// Attention in three passes over a matrix of scores [heads, rows, tokens] in memory; K and V are contiguous.
struct ThreePasses {
  int tokens, count;
  std::span<const float> q, k, v;  ///< [rows, heads, dim], [tokens, KV heads, dim]
  std::vector<float> scores = std::vector<float>(static_cast<size_t>(kHeads) * count * tokens);

  int Seen(int row) const { return tokens - count + row + 1; }
  float* ScoresOf(int head, int row) { return scores.data() + (static_cast<size_t>(head) * count + row) * tokens; }
  const float* Kv(std::span<const float> kv, int head, int token) const {
    return kv.data() + (static_cast<size_t>(token) * kKvHeads + head / (kHeads / kKvHeads)) * kHeadDim;
  }
  void Score(int head, int row) {
    const float* query = q.data() + (static_cast<size_t>(row) * kHeads + head) * kHeadDim;
    for (int t = 0; t < Seen(row); ++t) {
      const float* key = Kv(k, head, t);
      float sum = 0;
      for (int d = 0; d < kHeadDim; ++d) sum += query[d] * key[d];
      ScoresOf(head, row)[t] = sum * 0.125f;
    }
  }
  void Softmax(int head, int row) {
    float* s = ScoresOf(head, row);
    const float most = *std::max_element(s, s + Seen(row));
    float sum = 0;
    for (int t = 0; t < Seen(row); ++t) sum += s[t] = std::exp(s[t] - most);
    for (int t = 0; t < Seen(row); ++t) s[t] /= sum;
  }
  void Weigh(int head, int row, float* out) {
    std::fill(out, out + kHeadDim, 0.0f);
    for (int t = 0; t < Seen(row); ++t) {
      const float* value = Kv(v, head, t);
      const float share = ScoresOf(head, row)[t];
      for (int d = 0; d < kHeadDim; ++d) out[d] += share * value[d];
    }
  }
  template <class Pass>
  void Each(const Pass& pass) {
    for (int head = 0; head < kHeads; ++head) {
      for (int row = 0; row < count; ++row) pass(head, row);
    }
  }
  void Run(std::span<float> out) {
    Each([&](int head, int row) { Score(head, row); });
    Each([&](int head, int row) { Softmax(head, row); });
    Each([&](int head, int row) {
      Weigh(head, row, out.data() + (static_cast<size_t>(row) * kHeads + head) * kHeadDim);
    });
  }
};

void Techniques::Attention(int context, int count) {
  const int tokens = context + count, blocks = (tokens + 15) / 16;
  Matrix q(count, kHeads * kHeadDim), k(blocks * 16, kKvHeads * kHeadDim), v(blocks * 16, kKvHeads * kHeadDim);
  Matrix out(count, kHeads * kHeadDim), parts_out(count, kHeads * kHeadDim);
  std::vector<int32_t> table(static_cast<size_t>(blocks));
  std::iota(table.begin(), table.end(), 0);
  kernels::KvLayerView view;
  view.k = {reinterpret_cast<char*>(k.data.data()),
            int64_t{16} * kKvHeads * kHeadDim * 4,
            16,
            kKvHeads,
            kHeadDim,
            DType::kF32,
            nullptr,
            0};
  view.v = view.k;
  view.v.base = reinterpret_cast<char*>(v.data.data());
  const std::vector<int32_t> row_start{0, count}, done{context};
  const kernels::RaggedBatch batch{row_start, done, table, static_cast<int64_t>(table.size())};
  const Tensor in(q.data.data(), DType::kF32, {count, kHeads, kHeadDim}),
      to(out.data.data(), DType::kF32, {count, kHeads, kHeadDim});
  ThreePasses parts{tokens, count, q.data, k.data, v.data};
  // Scores are written, read and written by the softmax, and read again.
  double scores = 0;
  for (int row = 0; row < count; ++row) scores += parts.Seen(row);
  Compare(
      {"attention", "no matrix of scores", count}, 4.0 * 4 * scores * kHeads,
      [&] { ops_.Attention(in, batch, view, {.scale = 0.125f}, to); }, [&] { parts.Run(parts_out.data); });
  for (size_t i = 0; i < out.data.size(); ++i)
    BATON_CHECK(std::abs(out.data[i] - parts_out.data[i]) < 1e-4f, "other numbers at ", i);
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Flags flags(argc, argv, {"threads", "json"});
  const int threads = flags.Count("threads", 2);
  auto made = kernels::MakeCpuOps({.threads = threads, .dtype = DType::kF32, .kv_dtype = DType::kF32});
  BATON_CHECK(made.ok(), made.status().ToString());
  std::printf("ISA %s, %d threads; attention in parts is one thread of plain loops\n%-12s %6s %12s %12s %8s %14s\n",
              (*made)->traits().isa.c_str(), threads, "", "rows", "one pass us", "parts us", "ratio", "bytes saved");
  Techniques techniques(**made);
  for (const int rows : {1, 8, 512}) {
    techniques.AddAndNorm(rows);
    techniques.Siblings("q, k, v", rows, {kHeads * kHeadDim, kKvHeads * kHeadDim, kKvHeads * kHeadDim});
    techniques.Siblings("gate, up", rows, {kInner, kInner});
  }
  for (const auto& [context, rows] : {std::pair{2047, 1}, {0, 512}, {1536, 512}}) techniques.Attention(context, rows);
  nlohmann::json out;
  for (const Row& row : techniques.rows)
    out.push_back({{"operation", row.name},
                   {"rows", row.rows},
                   {"one_pass_us", row.whole_us},
                   {"parts_us", row.parts_us},
                   {"ratio", row.parts_us / row.whole_us},
                   {"bytes_saved", row.saved_bytes}});
  bench::WriteJson(flags("json"),
                   {{"bench", "techniques"}, {"isa", (*made)->traits().isa}, {"threads", threads}, {"rows", out}});
}
