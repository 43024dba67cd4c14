// Paged attention of CpuOps: decode against the memory it must read, prefill as FLOP/s, by context length.
//   bench_cpu_attention [--threads 2] [--kv float32|bfloat16] [--json FILE]
#include <cstdio>
#include <numeric>
#include <random>

#include "bench/lib/flags.h"
#include "bench/lib/measure.h"
#include "common/check.h"
#include "kernels/cpu/cpu_ops.h"

using namespace baton;

namespace {

struct Heads {
  const char* name;
  int q, kv, dim;
};
const Heads kHeads[] = {{"smol 9/3/64", 9, 3, 64}, {"1B 32/8/64", 32, 8, 64}, {"8B 32/8/128", 32, 8, 128}};

struct Pool {
  std::vector<char> k, v;
  std::vector<int32_t> table;
  kernels::KvLayerView view;
  Pool(const Heads& h, int tokens, DType dtype) {
    const int64_t block = int64_t{16} * h.kv * h.dim * static_cast<int64_t>(DTypeBytes(dtype));
    const int blocks = (tokens + 15) / 16;
    k.resize(static_cast<size_t>(block * blocks));
    v.resize(k.size());
    table.resize(static_cast<size_t>(blocks));
    std::iota(table.begin(), table.end(), 0);
    view.k = {k.data(), block, 16, h.kv, h.dim, dtype, nullptr, 0};
    view.v = view.k;
    view.v.base = v.data();
  }
};

}  // namespace

int main(int argc, char** argv) {
  const bench::Flags flags(argc, argv, {"threads", "kv", "json"});
  const int threads = flags.Count("threads", 2);
  const DType dtype = flags.OneOf("kv", {"float32", "bfloat16"}) == "bfloat16" ? DType::kBF16 : DType::kF32;
  auto made = kernels::MakeCpuOps({.threads = threads, .dtype = DType::kF32, .kv_dtype = dtype});
  BATON_CHECK(made.ok(), made.status().ToString());
  kernels::Ops& ops = **made;
  std::printf("ISA %s, %d threads, KV %s\n%-14s %8s %6s %12s %10s %10s\n", ops.traits().isa.c_str(), threads,
              std::string(DTypeName(dtype)).c_str(), "heads", "context", "rows", "us", "GFLOP/s", "GB/s of KV");
  nlohmann::json out_json;
  for (const Heads& h : kHeads) {
    for (auto [context, rows] : {std::pair{511, 1}, {2047, 1}, {8191, 1}, {0, 512}, {1536, 512}, {7680, 512}}) {
      Pool kv(h, context + rows, dtype);
      std::vector<float> q(static_cast<size_t>(rows * h.q * h.dim), 0.01f), o = q;
      const std::vector<int32_t> row_start{0, rows}, done{context};
      const kernels::RaggedBatch batch{row_start, done, kv.table, static_cast<int64_t>(kv.table.size())};
      const kernels::Tensor in(q.data(), DType::kF32, {rows, h.q, h.dim}),
          to(o.data(), DType::kF32, {rows, h.q, h.dim});
      const auto t = bench::Alternate({[&] { ops.Attention(in, batch, kv.view, {.scale = 0.125f}, to); }}, 5)[0];
      double seen = 0;
      for (int r = 0; r < rows; ++r) seen += context + r + 1;
      const double gflops = 4 * seen * h.q * h.dim / t.median / 1e9;
      const double gbytes =
          2.0 * (context + rows) * h.kv * h.dim * static_cast<double>(DTypeBytes(dtype)) / t.median / 1e9;
      std::printf("%-14s %8d %6d %12.1f %10.1f %10.1f\n", h.name, context, rows, t.median * 1e6, gflops, gbytes);
      out_json.push_back({{"heads", h.name},
                          {"context", context},
                          {"rows", rows},
                          {"seconds", t.median},
                          {"gflops", gflops},
                          {"kv_gbytes", gbytes}});
    }
  }
  bench::WriteJson(flags("json"),
                   {{"isa", ops.traits().isa}, {"threads", threads}, {"kv", DTypeName(dtype)}, {"rows", out_json}});
}
