// `baton doctor`: what this machine can do, and what would stop a cluster here. Each line: ok
// | warning | error, and the fix.
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <fstream>
#include <thread>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/admin_answer.h"
#include "cli/command.h"
#include "cli/doctor_report.h"
#include "cli/exit_code.h"
#include "cli/http_client.h"
#include "cli/request_timeout.h"
#include "common/errno_text.h"
#include "common/foreign_text.h"
#include "common/host_memory.h"
#include "common/json.h"
#include "common/shallow_json.h"
#include "common/str_cat.h"
#include "common/tls/kernel_tls.h"
#include "kernels/cpu/cpu_ops.h"
#include "kvtransfer/transports/ucx_backend.h"
#include "router/router_config.h"

namespace baton::cli {
namespace {

// What is computed in here, as far as it computes at all.
kernels::OpsTraits CheckCpu(DoctorReport& report) {
  absl::StatusOr<std::unique_ptr<kernels::Ops>> ops = kernels::MakeCpuOps({});
  if (!ops.ok()) {
    report.Error("cpu", ops.status());
    return {};
  }
  const kernels::OpsTraits& traits = (*ops)->traits();
  report.Line(Verdict::kOk, "cpu",
              StrCat(std::thread::hardware_concurrency(), " cores, ", traits.isa,
                     ", --dtype auto = ", DTypeName(traits.compute)));
  return traits;
}

void CheckMemory(DoctorReport& report) {
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

void CheckSharedMemory(DoctorReport& report) {
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

std::string LockedMemoryLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return ErrnoText();
  return limit.rlim_cur == RLIM_INFINITY ? "no limit" : StrCat("at most ", limit.rlim_cur >> 10, " KiB");
}

void CheckTransports(DoctorReport& report) {
  const std::vector<std::string> found = UcxTransports(), rdma = RdmaTransports();
  report.Line(found.empty() ? Verdict::kWarning : Verdict::kOk, "kv transports",
              found.empty() ? "tcp, shm; no UCX in this build (libucx-dev)"
                            : StrCat("tcp, shm; UCX: ", absl::StrJoin(found, ", ")));
  report.Line(Verdict::kOk, "rdma",
              rdma.empty() ? "no device: --require-rdma would refuse to start" : absl::StrJoin(rdma, ", "));
  std::vector<std::string> registered;
  for (const UcxRegistration& one : UcxRegistrations()) {
    if (one.page.ok()) {
      registered.push_back(one.device);
    } else {
      report.Line(Verdict::kWarning, StrCat("memory of ", one.device),
                  StrCat(one.page.message(), "; locked memory: ", LockedMemoryLimit(),
                         " (ulimit -l, in a container the capability IPC_LOCK)"));
    }
  }
  if (!registered.empty()) {
    report.Line(Verdict::kOk, "kv memory", StrCat("a page was registered with ", absl::StrJoin(registered, ", ")));
  }
}

void CheckKernelTls(DoctorReport& report) {
  report.Line(Verdict::kOk, "kv in tls", tls::ChooseKernelTls(/*wanted=*/true).text);
}

// Whether the ports that a cluster takes by default can be had.
void CheckPorts(DoctorReport& report) {
  const router::RouterConfig config;
  std::vector<std::string> taken;
  for (const auto& [flag, port] : {std::pair{"--port", config.port}, std::pair{"--grpc-port", config.grpc_port},
                                   std::pair{"--admin-port", config.admin_port}}) {
    boost::asio::io_context context;
    boost::asio::ip::tcp::acceptor acceptor(context, boost::asio::ip::tcp::v4());
    boost::system::error_code error;
    acceptor.set_option(boost::asio::socket_base::reuse_address(true), error);
    acceptor.bind({boost::asio::ip::address_v4::loopback(), static_cast<uint16_t>(port)}, error);
    if (error) taken.push_back(StrCat(port, " (", flag, "): ", error.message()));
  }
  report.Line(taken.empty() ? Verdict::kOk : Verdict::kWarning, "ports",
              taken.empty() ? StrCat(config.port, ", ", config.grpc_port, ", ", config.admin_port, " are free")
                            : absl::StrJoin(taken, "; "));
}

// What /ready says, whom it waits for, since when, and when it tries again.
void CheckCluster(DoctorReport& report, const std::string& url, const HttpUrl& router) {
  const absl::StatusOr<HttpResponse> ready = HttpGet(router, "/ready", "");
  if (!ready.ok()) return report.Error("cluster", ready.status());
  const nlohmann::json body = ShallowJson(ready->body);
  const std::string state = ShownTextOf(body, "status");
  if (state.empty()) {
    return report.Line(Verdict::kWarning, "cluster",
                       StrCat(url, "/ready: ", ready->status, ", no router's answer: ", Printable(ready->body, 200)));
  }
  const bool well = ready->status == 200 && state == "ready";
  report.Line(well ? Verdict::kOk : Verdict::kWarning, "cluster",
              StrCat(url, "/ready: ", ready->status, " ", state, well ? "" : ": " + ShownTextOf(body, "detail")));
  for (const nlohmann::json& one : ListOf(body, "awaited")) {
    std::string text = absl::StrFormat("%s for %.1f s", ShownTextOf(one, "state"), NumberOf(one, "for_s"));
    if (FieldOf(one, "next_try_s").is_number())
      text += absl::StrFormat(", tried again in %.1f s", NumberOf(one, "next_try_s"));
    if (const std::string detail = ShownTextOf(one, "detail"); !detail.empty()) text += ": " + detail;
    report.Line(Verdict::kWarning, StrCat("worker ", ShownTextOf(one, "worker")), text);
  }
  if (FieldOf(body, "awaited_more").is_number())
    report.Line(
        Verdict::kWarning, "workers",
        absl::StrFormat("%.0f more take no requests (/workers at the admin port)", NumberOf(body, "awaited_more")));
}

}  // namespace

Runner AddDoctor(CLI::App& app) {
  struct Flags {
    std::string model, url, tls_ca;
    RequestTimeout timeout;
  };
  auto flags = std::make_shared<Flags>();
  app.add_option("model,--model", flags->model, "also check this HF directory or .gguf file");
  app.add_option("--url", flags->url, "also check this running cluster");
  app.add_option("--tls-ca", flags->tls_ca,
                 "authorities of an https:// cluster's certificate, PEM (default: the system's)");
  flags->timeout.AddTo(app);
  return [flags] {
    absl::StatusOr<HttpUrl> router = HttpUrl();
    if (!flags->url.empty()) router = ParseHttpUrl(flags->url);
    if (!router.ok()) return FailUsage(absl::InvalidArgumentError(StrCat("--url: ", router.status().message())));
    router->files.ca = flags->tls_ca;
    router->patience = flags->timeout.patience();
    DoctorReport report;
    const kernels::OpsTraits traits = CheckCpu(report);
    CheckMemory(report);
    CheckSharedMemory(report);
    CheckTransports(report);
    CheckKernelTls(report);
    CheckPorts(report);
    if (!flags->model.empty()) CheckModel(report, flags->model, traits);
    if (!flags->url.empty()) CheckCluster(report, flags->url, *router);
    return report.exit_code();
  };
}

}  // namespace baton::cli
