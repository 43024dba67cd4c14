#include "cli/status_page.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <fstream>

#include "absl/strings/str_format.h"
#include "common/lost_log_lines.h"
#include "common/str_cat.h"
#include "router/json_writer.h"

namespace baton::cli {
namespace {

/// When this process began, but for what its start took.
const auto kBegan = std::chrono::system_clock::now();

std::string ReadyJson(const MachineStatus& m) {
  std::string out;
  router::JsonWriter w(out);
  w.BeginObject().Field("status", m.ready ? "ready" : "loading").Field("worker", m.worker);
  w.Field("machine", m.node).Field("machines", m.nodes).Field("first_rank", m.first_rank).Field("ranks", m.num_ranks);
  if (!m.ready) w.Field("phase", m.phase).Field("progress", m.progress);
  w.EndObject();
  return out;
}

/// Prometheus' text format. The standard names of a process, and what this machine has of the worker.
std::string MetricsText(const MachineStatus& m, const ProcessUse& use) {
  std::string out;
  const auto metric = [&out](const char* name, const char* type, const char* help, const std::string& labels,
                             double value) {
    out += absl::StrFormat("# HELP %s %s\n# TYPE %s %s\n%s%s %.17g\n", name, help, name, type, name, labels, value);
  };
  const std::string labels = StrCat("{worker=\"", m.worker, "\",machine=\"", m.node, "\"}");
  metric(
      "baton_machine_info", "gauge", "A machine with ranks of a worker, and its build",
      StrCat("{worker=\"", m.worker, "\",machine=\"", m.node, "\",role=\"", m.role, "\",version=\"", m.version, "\"}"),
      1);
  metric("baton_machine_ready", "gauge", "1: its ranks have loaded and requests can reach them", labels, m.ready);
  metric("baton_machine_ranks", "gauge", "Ranks of the worker that run on this machine", labels, m.num_ranks);
  metric("baton_log_lines_lost_total", "counter", "Lines of the log that could not be written", labels,
         static_cast<double>(use.log_lines_lost));
  metric("process_cpu_seconds_total", "counter", "CPU time of the process", "", use.cpu_seconds);
  metric("process_resident_memory_bytes", "gauge", "Memory of the process that is in RAM", "",
         static_cast<double>(use.resident_bytes));
  metric("process_start_time_seconds", "gauge", "When the process began, since the epoch", "", use.start_time_seconds);
  return out;
}

}  // namespace

ProcessUse UseOfThisProcess() {
  ProcessUse use;
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * double(t.tv_usec); };
  use.cpu_seconds = seconds(used.ru_utime) + seconds(used.ru_stime);
  use.start_time_seconds = std::chrono::duration<double>(kBegan.time_since_epoch()).count();
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;  // the second number
  use.resident_bytes = pages * sysconf(_SC_PAGESIZE);
  use.log_lines_lost = LostLogLines();
  return use;
}

router::HttpResponse AnswerOf(const router::HttpRequest& request, const MachineStatus& machine, const ProcessUse& use) {
  constexpr const char* kJson = "application/json";
  if (request.method != "GET" && request.method != "HEAD")
    return {405, {{"Allow", "GET"}}, kJson, R"({"error":"only GET is answered here"})"};
  if (request.path == "/live" || request.path == "/livez") return {200, {}, kJson, R"({"status":"alive"})"};
  if (request.path == "/ready" || request.path == "/readyz")
    return {machine.ready ? 200 : 503, {}, kJson, ReadyJson(machine)};
  if (request.path == "/metrics") return {200, {}, "text/plain; version=0.0.4", MetricsText(machine, use)};
  return {404, {}, kJson, R"({"error":"there are /live, /ready and /metrics here"})"};
}

}  // namespace baton::cli
