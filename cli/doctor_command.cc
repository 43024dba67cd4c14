// `baton doctor`: what this machine can do, and what would stop a cluster here. Each line: ok
// | warning | error, and the fix.
#include <sys/statvfs.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/http_client.h"
#include "common/gguf.h"
#include "common/host_memory.h"
#include "common/str_cat.h"
#include "kernels/cpu/cpu_ops.h"
#include "worker/ucx_backend.h"

namespace baton::cli {
namespace {

enum class Verdict { kOk, kWarning, kError };

class Report {
 public:
  void Line(Verdict verdict, const std::string& what, const std::string& text) {
    static constexpr const char* kNames[] = {"ok     ", "warning", "error  "};
    std::printf("%s  %-14s %s\n", kNames[static_cast<int>(verdict)], what.c_str(), text.c_str());
    failed_ = failed_ || verdict == Verdict::kError;
  }
  bool failed() const { return failed_; }

 private:
  bool failed_ = false;
};

void CheckCpu(Report& report) {
  absl::StatusOr<std::unique_ptr<kernels::Ops>> ops = kernels::MakeCpuOps({});
  if (!ops.ok()) {
    report.Line(Verdict::kError, "cpu", std::string(ops.status().message()));
    return;
  }
  const kernels::OpsTraits& traits = (*ops)->traits();
  report.Line(Verdict::kOk, "cpu",
              StrCat(std::thread::hardware_concurrency(), " cores, ", traits.isa,
                     ", --dtype auto = ", DTypeName(traits.compute)));
}

void CheckMemory(Report& report) {
  const int64_t available = AvailableMemoryBytes().value_or(0);
  report.Line(available < (int64_t{1} << 30) ? Verdict::kWarning : Verdict::kOk, "memory",
              absl::StrFormat("%.1f of %.1f GiB available; --kv-cache-memory takes at most 40 %% of it", GiB(available),
                              GiB(MemInfo("MemTotal").value_or(0))));
  const int64_t huge = MemInfo("HugePages_Total").value_or(0);
  std::ifstream thp("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string mode;
  std::getline(thp, mode);
  report.Line(mode.find("[never]") == std::string::npos ? Verdict::kOk : Verdict::kWarning, "huge pages",
              StrCat("transparent: ", mode.empty() ? "unknown" : mode, ", reserved: ", huge));
}

void CheckSharedMemory(Report& report) {
  struct statvfs fs{};
  if (statvfs("/dev/shm", &fs) != 0) {
    report.Line(Verdict::kWarning, "/dev/shm", "not mounted: workers on this machine cannot use shared memory");
    return;
  }
  const int64_t bytes = static_cast<int64_t>(fs.f_bavail) * static_cast<int64_t>(fs.f_frsize);
  const bool small = bytes < (int64_t{256} << 20);
  report.Line(small ? Verdict::kWarning : Verdict::kOk, "/dev/shm",
              absl::StrFormat("%.2f GiB free%s", GiB(bytes),
                              small ? ": too small for landing rings (docker: --shm-size=1g)" : ""));
}

void CheckTransports(Report& report) {
  const std::vector<std::string> found = worker::UcxTransports(), rdma = worker::RdmaTransports();
  report.Line(found.empty() ? Verdict::kWarning : Verdict::kOk, "kv transports",
              found.empty() ? "tcp, shm; no UCX in this build (libucx-dev)" : StrCat("tcp, shm; UCX: ", absl::StrJoin(found, ", ")));
  report.Line(Verdict::kOk, "rdma",
              rdma.empty() ? "no device: --require-rdma would refuse to start" : absl::StrJoin(rdma, ", "));
}

void CheckModel(Report& report, const std::string& model) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (model.empty()) return;
  if (fs::is_directory(model, error)) {
    for (const char* needed : {"config.json", "tokenizer.json"}) {
      const bool there = fs::exists(fs::path(model) / needed, error);
      report.Line(there ? Verdict::kOk : Verdict::kError, "model",
                  StrCat(there ? "has " : "lacks ", needed, ": ", model));
    }
    return;
  }
  absl::StatusOr<std::unique_ptr<GgufFile>> file = GgufFile::Open(model);
  report.Line(file.ok() ? Verdict::kOk : Verdict::kError, "model",
              file.ok() ? StrCat("readable GGUF: ", model) : std::string(View(file.status().message())));
}

void CheckCluster(Report& report, const std::string& url) {
  if (url.empty()) return;
  absl::StatusOr<HttpUrl> parsed = ParseHttpUrl(url);
  absl::StatusOr<HttpResponse> ready = parsed.ok() ? HttpGet(*parsed, "/ready", "") : parsed.status();
  if (!ready.ok()) {
    report.Line(Verdict::kError, "cluster", std::string(View(ready.status().message())));
  } else {
    report.Line(ready->status == 200 ? Verdict::kOk : Verdict::kWarning, "cluster",
                StrCat(url, "/ready: ", ready->status, " ", ready->body));
  }
}

}  // namespace

Runner AddDoctor(CLI::App& app) {
  struct Flags {
    std::string model, url;
  };
  auto flags = std::make_shared<Flags>();
  app.add_option("model,--model", flags->model, "also check this HF directory or .gguf file");
  app.add_option("--url", flags->url, "also check this running cluster");
  return [flags] {
    Report report;
    CheckCpu(report);
    CheckMemory(report);
    CheckSharedMemory(report);
    CheckTransports(report);
    CheckModel(report, flags->model);
    CheckCluster(report, flags->url);
    return static_cast<int>(report.failed() ? kExitUsage : kExitOk);
  };
}

}  // namespace baton::cli
