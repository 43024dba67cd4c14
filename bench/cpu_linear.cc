// Linear layers beside plain oneDNN (packed matmul of the same type, one primitive per M, all threads) and the
// machine's measured limits.
//   bench_cpu_linear [--threads 2] [--compute auto|float32|bfloat16] [--weights float32|bfloat16] [--rows 1,8,128,512]
//   [--json FILE]
#include <omp.h>

#include <cstdio>
#include <oneapi/dnnl/dnnl.hpp>
#include <random>
#include <sstream>

#include "bench/lib/flags.h"
#include "bench/lib/machine_limits.h"
#include "bench/lib/measure.h"
#include "common/check.h"
#include "common/half.h"
#include "kernels/cpu/cpu_ops.h"

using namespace baton;

namespace {

struct Shape {
  const char* name;
  int64_t n, k;
};
// SmolLM2-135M, Llama-3.2-1B, and one wide layer.
const Shape kShapes[] = {{"smol qkv", 960, 576},    {"smol gate_up", 3072, 576}, {"smol down", 576, 1536},
                         {"smol head", 49152, 576}, {"1B qkv", 3072, 2048},      {"1B gate_up", 16384, 2048},
                         {"1B down", 2048, 8192}};

class PlainOneDnn {
 public:
  PlainOneDnn(int64_t m, int64_t n, int64_t k, const std::vector<float>& w, int threads, bool bf16)
      : threads_(threads), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    using Desc = dnnl::memory::desc;
    omp_set_num_threads(threads_);
    const auto f32 = dnnl::memory::data_type::f32, type = bf16 ? dnnl::memory::data_type::bf16 : f32;
    const Desc x({m, k}, type, dnnl::memory::format_tag::ab), any({k, n}, type, dnnl::memory::format_tag::any),
        y({m, n}, f32, dnnl::memory::format_tag::ab);
    const dnnl::matmul::primitive_desc desc(dnnl::matmul::desc(x, any, y), engine_);
    primitive_ = dnnl::matmul(desc);
    dnnl::memory plain({{k, n}, f32, dnnl::memory::format_tag::ba}, engine_, const_cast<float*>(w.data()));
    packed_ = dnnl::memory(desc.weights_desc(), engine_);
    dnnl::reorder(plain, packed_).execute(stream_, plain, packed_);
    x_ = dnnl::memory(x, engine_, nullptr);
    y_ = dnnl::memory(y, engine_, nullptr);
  }
  void Run(void* x, float* y) {
    omp_set_num_threads(threads_);  // ours leaves it at one
    x_.set_data_handle(x);
    y_.set_data_handle(y);
    primitive_.execute(stream_, {{DNNL_ARG_SRC, x_}, {DNNL_ARG_WEIGHTS, packed_}, {DNNL_ARG_DST, y_}});
    stream_.wait();
  }

 private:
  int threads_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul primitive_;
  dnnl::memory packed_, x_, y_;
};

std::vector<int64_t> Numbers(const std::string& list) {
  std::vector<int64_t> out;
  std::stringstream in(list);
  for (std::string part; std::getline(in, part, ',');) out.push_back(std::stoll(part));
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Flags flags(argc, argv, {"threads", "weights", "compute", "rows", "json"});
  const int threads = flags.Count("threads", 2);
  const bool bf16 = flags.OneOf("weights", {"bfloat16", "float32"}) != "float32";
  const std::string compute = flags("compute", "auto");
  kernels::CpuOpsConfig config{.threads = threads};
  if (compute != "auto") config.dtype = compute == "bfloat16" ? DType::kBF16 : DType::kF32;
  auto made = kernels::MakeCpuOps(config);
  BATON_CHECK(made.ok(), made.status().ToString());
  kernels::Ops& ops = **made;
  const double flops = bench::PeakF32Flops(threads), bytes = bench::ReadBandwidth(threads);
  const DType type = ops.traits().compute;
  std::printf("ISA %s, %d threads, compute %s, weights %s; limits: %.0f GFLOP/s f32, %.1f GB/s read\n",
              ops.traits().isa.c_str(), threads, std::string(DTypeName(type)).c_str(), bf16 ? "bfloat16" : "float32",
              flops / 1e9, bytes / 1e9);
  std::printf("%-14s %6s %12s %12s %8s %10s %10s\n", "layer", "M", "baton us", "oneDNN us", "ratio", "of FLOPs",
              "of memory");
  nlohmann::json rows_json;
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  for (const Shape& s : kShapes) {
    std::vector<float> w(static_cast<size_t>(s.n * s.k));
    for (float& v : w) v = normal(rng);
    std::vector<uint16_t> half(w.size());
    for (size_t i = 0; i < w.size(); ++i) half[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(w[i]) >> 16);
    const kernels::Tensor weight(bf16 ? static_cast<void*>(half.data()) : w.data(), bf16 ? DType::kBF16 : DType::kF32,
                                 {s.n, s.k});
    auto packed = ops.Pack(weight, nullptr);
    BATON_CHECK(packed.ok(), packed.status().ToString());
    for (int64_t m : Numbers(flags("rows", "1,4,8,32,128,512"))) {
      std::vector<float> floats(static_cast<size_t>(m * s.k), 0.5f), y(static_cast<size_t>(m * s.n)), z = y;
      std::vector<uint16_t> halves(floats.size(), Bf16OfFloat(0.5f));
      void* x = type == DType::kBF16 ? static_cast<void*>(halves.data()) : floats.data();
      PlainOneDnn peer(m, s.n, s.k, w, threads, type == DType::kBF16);
      const kernels::Tensor in(x, type, {m, s.k}), out(y.data(), DType::kF32, {m, s.n});
      const auto t = bench::Alternate({[&] { ops.Linear(in, **packed, out); }, [&] { peer.Run(x, z.data()); }});
      const double of_flops = 2.0 * m * s.n * s.k / t[0].median / flops;
      const double of_memory = static_cast<double>((*packed)->bytes()) / t[0].median / bytes;
      std::printf("%-14s %6ld %12.1f %12.1f %8.2f %9.0f%% %9.0f%%\n", s.name, m, t[0].median * 1e6, t[1].median * 1e6,
                  t[1].median / t[0].median, of_flops * 100, of_memory * 100);
      rows_json.push_back({{"layer", s.name},
                           {"M", m},
                           {"N", s.n},
                           {"K", s.k},
                           {"baton_s", t[0].median},
                           {"baton_low_s", t[0].low},
                           {"baton_high_s", t[0].high},
                           {"onednn_s", t[1].median},
                           {"of_flops", of_flops},
                           {"of_memory", of_memory}});
    }
  }
  bench::WriteJson(flags("json"), {{"isa", ops.traits().isa},
                                   {"threads", threads},
                                   {"compute", DTypeName(type)},
                                   {"weights", bf16 ? "bfloat16" : "float32"},
                                   {"flops", flops},
                                   {"read", bytes},
                                   {"rows", rows_json}});
}
