// Times every CUDA kernel against its floor, after checking it against double precision. Compiled by nvcc it measures;
// compiled by g++ it runs the same cases, tiny, on the emulator (a dry run: the times mean nothing).
//   kernel_bench [--json FILE] [--only SUBSTRING] [--limits FILE]
// --limits: the emulator counts memory accesses; a kernel beyond the limits in the file is a failure.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>

#include "bench/gpu/kernel_case.h"
#if !defined(__CUDACC__)
#include "bench/gpu/access_report.h"
#endif

namespace baton::bench {
namespace {

// H200, measured: copy bandwidth and dense bf16 rate. The floor is the larger of the two times.
constexpr double kBytesPerSecond = 4.3e12, kFlopsPerSecond = 790e12;

struct Timing {
  double median_us = 0, fastest_us = 0;
};

#if defined(__CUDACC__)
constexpr bool kEmulated = false;
struct AccessReport {  // a device counts in nsight
  void Add(const gpu::Stream&) {}
  int Print(const std::string&, bool) const { return 0; }
};
Timing Measure(const KernelCase& c, gpu::Stream& stream) {
  constexpr int kWarmUp = 5, kRuns = 31;
  constexpr size_t kFlushBytes = size_t{256} << 20;  // five times the L2
  gpu::Memory flush(kFlushBytes);
  std::vector<float> times;
  cudaEvent_t start, stop;
  gpu::CheckCuda(cudaEventCreate(&start), "cudaEventCreate", __LINE__);
  gpu::CheckCuda(cudaEventCreate(&stop), "cudaEventCreate", __LINE__);
  for (int i = 0; i < kWarmUp + kRuns; ++i) {
    stream.FillAsync(flush.data(), i & 1, kFlushBytes);
    gpu::CheckCuda(cudaEventRecord(start, stream.handle()), "cudaEventRecord", __LINE__);
    c.launch(stream);
    gpu::CheckCuda(cudaEventRecord(stop, stream.handle()), "cudaEventRecord", __LINE__);
    const std::string error = stream.Synchronize();
    BATON_CHECK(error.empty(), error);
    float ms = 0;
    gpu::CheckCuda(cudaEventElapsedTime(&ms, start, stop), "cudaEventElapsedTime", __LINE__);
    if (i >= kWarmUp) times.push_back(ms * 1000);
  }
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[0]};
}
#else
constexpr bool kEmulated = true;
Timing Measure(const KernelCase& c, gpu::Stream& stream) {
  const auto start = std::chrono::steady_clock::now();
  c.launch(stream);
  const std::string error = stream.Synchronize();
  BATON_CHECK(error.empty(), error);
  const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  return {us, us};
}
#endif

/// The case once more under a policy that counts; slower.
void CountAccesses([[maybe_unused]] const KernelCase& c, [[maybe_unused]] AccessReport& report) {
#if !defined(__CUDACC__)
  gpu::Stream stream;
  stream.SetPolicy({.count = true});
  c.launch(stream);
  const std::string error = stream.Synchronize();
  BATON_CHECK(error.empty(), error);
  report.Add(stream);
#endif
}

int Run(const char* json, const std::string& only, const std::string& limits) {
  std::vector<KernelCase> all;
  const Sizes sizes{kEmulated};
  for (auto make :
       {RowCases, GemvCases, GemmCases, AttentionCases, MlaCases, MoeCases, SamplerCases, HandoffCases, ElementCases})
    for (KernelCase& c : make(sizes)) all.push_back(std::move(c));
  std::string lines;
  int wrong_cases = 0;
  AccessReport accesses;
  std::printf("%-18s %-28s %10s %10s %7s %9s %9s  %s\n", "kernel", "shape", "us", "floor us", "ratio", "GB/s",
              "TFLOP/s", "check");
  for (const KernelCase& c : all) {
    if (c.kernel.find(only) == std::string::npos) continue;
    gpu::Stream stream;
    const std::string wrong = c.check(stream);
    wrong_cases += !wrong.empty();
    const Timing t = Measure(c, stream);
    if (!limits.empty()) CountAccesses(c, accesses);
    const double floor_us = 1e6 * std::max(c.floor_bytes / kBytesPerSecond, c.floor_flops / kFlopsPerSecond);
    const double gb = c.floor_bytes / t.median_us / 1e3, tflop = c.floor_flops / t.median_us / 1e6;
    std::printf("%-18s %-28s %10.2f %10.2f %7.2f %9.1f %9.1f  %s\n", c.kernel.c_str(), c.shape.c_str(), t.median_us,
                floor_us, t.median_us / floor_us, gb, tflop, wrong.empty() ? "right" : wrong.c_str());
    char line[512];
    std::snprintf(line, sizeof line,
                  "    {\"kernel\": \"%s\", \"shape\": \"%s\", \"us\": %.3f, \"fastest_us\": %.3f, \"floor_us\": %.6f, "
                  "\"gb_per_s\": %.1f, "
                  "\"tflop_per_s\": %.2f, \"right\": %s}",
                  c.kernel.c_str(), c.shape.c_str(), t.median_us, t.fastest_us, floor_us, gb, tflop,
                  wrong.empty() ? "true" : "false");
    lines += std::string(lines.empty() ? "" : ",\n") + line;
  }
  if (json != nullptr) {
    std::ofstream(json) << "{\n  \"device\": \"" << gpu::CurrentDevice().architecture
                        << "\",\n  \"emulated\": " << (kEmulated ? "true" : "false") << ",\n  \"kernels\": [\n"
                        << lines << "\n  ]\n}\n";
  }
  std::printf("%d wrong\n", wrong_cases);
  const int beyond = limits.empty() ? 0 : accesses.Print(limits, only.empty());
  return wrong_cases + beyond == 0 ? 0 : 1;
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) {
  const char* json = nullptr;
  std::string only, limits;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--json") == 0)
      json = argv[i + 1];
    else if (std::strcmp(argv[i], "--only") == 0)
      only = argv[i + 1];
    else if (std::strcmp(argv[i], "--limits") == 0)
      limits = argv[i + 1];
    else
      return std::fprintf(stderr, "usage: kernel_bench [--json FILE] [--only SUBSTRING] [--limits FILE]\n"), 2;
  }
  return baton::bench::Run(json, only, limits);
}
