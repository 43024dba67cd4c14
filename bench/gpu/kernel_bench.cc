// Times every CUDA kernel against its floor, after checking it against double precision. The floor is the larger of the
// times that its bytes and its products take at the roofs, which are measured first. Compiled by nvcc it measures;
// compiled by g++ it runs the same cases, tiny, on the emulator (a dry run: the times mean nothing). A case that
// crashes or hangs is a line and the others go on; --json FILE is written again after every case.
//   kernel_bench [--json FILE] [--only SUBSTRING] [--limits FILE]
// --limits: the emulator counts memory accesses; a kernel beyond the limits in the file is a failure.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>

#include "bench/gpu/kernel_case.h"
#include "bench/gpu/measure.h"
#include "bench/gpu/roofs.h"
#include "bench/gpu/run_each.h"
#if !defined(__CUDACC__)
#include "bench/gpu/access_report.h"
#endif

namespace baton::bench {
namespace {

#if defined(__CUDACC__)
struct Accesses {  // a device counts in nsight
  int Print(const std::string&, bool) const { return 0; }
};
#else
using Accesses = AccessReport;
#endif

/// The case once more under a policy that counts; slower.
void CountAccesses([[maybe_unused]] const KernelCase& c, [[maybe_unused]] Accesses& report) {
#if !defined(__CUDACC__)
  gpu::Stream stream;
  stream.SetPolicy({.count = true});
  c.launch(stream);
  const std::string error = stream.Synchronize();
  BATON_CHECK(error.empty(), error);
  report.Add(stream);
#endif
}

/// What a case has shown; as text between processes.
struct Row {
  std::string shape = "?", wrong, architecture;
  double floor_bytes = 0, floor_flops = 0;
  Timing time;

  std::string ToText() const {
    std::ostringstream text;
    text.precision(17);
    text << shape << '\t' << wrong << '\t' << architecture << '\t' << floor_bytes << '\t' << floor_flops << '\t'
         << time.median_us << '\t' << time.fastest_us;
    return text.str();
  }
  static Row FromText(const std::string& text) {
    std::istringstream in(text);
    Row row;
    for (std::string* field : {&row.shape, &row.wrong, &row.architecture}) std::getline(in, *field, '\t');
    in >> row.floor_bytes >> row.floor_flops >> row.time.median_us >> row.time.fastest_us;
    return row;
  }
};

Row RunCase(const CaseMaker& maker, Accesses* accesses) {
  const KernelCase c = maker.make();
  gpu::Stream stream;
  Row row{.shape = c.shape, .architecture = gpu::CurrentDevice().architecture};
  row.floor_bytes = c.floor_bytes, row.floor_flops = c.floor_flops;
  row.wrong = c.check(stream);
  row.time = Measure(c, stream);
  if (accesses != nullptr) CountAccesses(c, *accesses);
  return row;
}

/// The table on stdout and the JSON, as far as they have come: the file is whole after every case.
class Results {
 public:
  explicit Results(const char* json) : json_(json) {
    std::printf("%-22s %-28s %10s %10s %7s %9s %9s  %s\n", "kernel", "shape", "us", "floor us", "ratio", "GB/s",
                "TFLOP/s", "check");
  }
  void Add(const std::string& kernel, const Row& row) {
    wrong_ += !row.wrong.empty();
    if (!row.architecture.empty()) architecture_ = row.architecture;
    if (row.wrong.empty()) TakeRoof(kernel, row.floor_bytes, row.floor_flops, row.time.median_us, roofs_);
    const double us = row.time.median_us, floor_us = roofs_.FloorUs(row.floor_bytes, row.floor_flops);
    const double gb = us > 0 ? row.floor_bytes / us / 1e3 : 0, tflop = us > 0 ? row.floor_flops / us / 1e6 : 0;
    std::printf("%-22s %-28s %10.2f %10.2f %7.2f %9.1f %9.1f  %s\n", kernel.c_str(), row.shape.c_str(), us, floor_us,
                floor_us > 0 ? us / floor_us : 0, gb, tflop, row.wrong.empty() ? "right" : row.wrong.c_str());
    std::fflush(stdout);
    char line[512];
    std::snprintf(line, sizeof line,
                  "    {\"kernel\": \"%s\", \"shape\": \"%s\", \"us\": %.3f, \"fastest_us\": %.3f, "
                  "\"floor_us\": %.6f, \"gb_per_s\": %.1f, \"tflop_per_s\": %.2f, \"right\": %s}",
                  kernel.c_str(), row.shape.c_str(), us, row.time.fastest_us, floor_us, gb, tflop,
                  row.wrong.empty() ? "true" : "false");
    lines_ += std::string(lines_.empty() ? "" : ",\n") + line;
    if (json_ == nullptr) return;
    std::ofstream(json_) << "{\n  \"device\": \"" << architecture_
                         << "\",\n  \"emulated\": " << (kEmulated ? "true" : "false")
                         << ",\n  \"roofs\": {\"copy_bytes_per_s\": " << roofs_.copy_bytes_per_s
                         << ", \"read_bytes_per_s\": " << roofs_.read_bytes_per_s
                         << ", \"flops_per_s\": " << roofs_.flops_per_s << "},\n  \"kernels\": [\n"
                         << lines_ << "\n  ]\n}\n";
  }
  int wrong() const { return wrong_; }

 private:
  const char* json_;
  std::string lines_, architecture_;
  Roofs roofs_;  ///< of the cases so far, which the roofs come before
  int wrong_ = 0;
};

int Run(const char* json, const std::string& only, const std::string& limits) {
  if (SaysThereIsNoDevice("kernel_bench")) return kNoDevice;
  std::vector<CaseMaker> all;
  for (auto make : {RoofCases, RowCases, GemvCases, GemmCases, AttentionCases, MlaCases, MoeCases, SamplerCases,
                    HandoffCases, ElementCases})
    for (CaseMaker& c : make(Sizes{kEmulated}))
      if (c.kernel.starts_with("roof_") || c.kernel.find(only) != std::string::npos) all.push_back(std::move(c));
  Results results(json);
  Accesses accesses;
  if (!limits.empty()) {  // counts come together in this process
    for (const CaseMaker& c : all) results.Add(c.kernel, RunCase(c, &accesses));
  } else {
    constexpr unsigned kSeconds = 60;
    RunEach(
        all.size(), kSeconds, [&](size_t i) { return RunCase(all[i], nullptr).ToText(); },
        [&](size_t i, const Attempt& a) {
          results.Add(all[i].kernel, a.death.empty() ? Row::FromText(a.result) : Row{.wrong = a.death});
        });
  }
  std::printf("%d wrong of %zu\n", results.wrong(), all.size());
  const int beyond = limits.empty() ? 0 : accesses.Print(limits, only.empty());
  return results.wrong() + beyond == 0 ? kAllRight : kSomethingWrong;
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) {
  const char* json = nullptr;
  std::string only, limits;
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 < argc && std::strcmp(argv[i], "--json") == 0)
      json = argv[i + 1];
    else if (i + 1 < argc && std::strcmp(argv[i], "--only") == 0)
      only = argv[i + 1];
    else if (i + 1 < argc && std::strcmp(argv[i], "--limits") == 0)
      limits = argv[i + 1];
    else
      return std::fprintf(stderr, "usage: kernel_bench [--json FILE] [--only SUBSTRING] [--limits FILE]\n"),
             baton::bench::kBadUsage;
  }
  return baton::bench::Run(json, only, limits);
}
