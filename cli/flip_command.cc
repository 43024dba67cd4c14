// baton flip: a worker changes its role in place; waits until it serves in the new one, and says how long that took.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include "cli/admin_answer.h"
#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/request_timeout.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/status.h"
#include "proto/order_limits.h"

namespace baton::cli {
namespace {

using nlohmann::json;

struct FlipOptions {
  std::string worker, role, url = "http://127.0.0.1:8002", api_key, tls_ca;
  bool force = false, no_wait = false;
  int timeout_ms = 0;
  RequestTimeout answer;
};

/// True: it is over, and went well.
absl::StatusOr<bool> IsOver(const json& worker, std::string& told) {
  const std::string name = ShownTextOf(worker, "name");
  const json& flip = FieldOf(worker, "flip");
  const std::string stage = ShownTextOf(flip, "stage"), to = ShownTextOf(flip, "to");
  if (stage == "failed")
    return absl::FailedPreconditionError(
        StrCat(name, " is ", ShownTextOf(worker, "role"), " and has not become ", to, ": ", ShownTextOf(flip, "why")));
  if (stage == "done") {
    std::printf("%s: serves as %s; %.0f ms until nothing ran, %.0f ms for the change, %.0f ms in all\n", name.c_str(),
                to.c_str(), NumberOf(flip, "drain_ms"), NumberOf(flip, "change_ms"), NumberOf(flip, "took_ms"));
    return true;
  }
  const std::string text =
      StrCat(name, ": ", stage,
             stage == "drains" ? StrCat(", ", static_cast<int64_t>(NumberOf(worker, "requests")), " requests") : "");
  if (told != text) std::printf("%s\n", text.c_str());
  std::fflush(stdout);
  told = text;
  return false;
}

int Flip(const FlipOptions& o) {
  absl::StatusOr<HttpUrl> router = ParseHttpUrl(o.url);
  if (!router.ok()) return FailUsage(absl::InvalidArgumentError(StrCat("--url: ", router.status().message())));
  router->files.ca = o.tls_ca;
  router->patience = o.answer.patience();
  const json order = {{"worker", o.worker}, {"role", o.role}, {"force", o.force}, {"timeout_ms", o.timeout_ms}};
  absl::StatusOr<json> worker =
      AdminAnswer(o.url, HttpPost(*router, "/workers/flip", o.api_key, order.dump(), nullptr));
  if (!worker.ok()) return Fail(worker.status());
  const std::string address = TextOf(*worker, "address");
  for (std::string told;;) {
    const absl::StatusOr<bool> over = IsOver(*worker, told);
    if (!over.ok()) return Fail(over.status());
    if (*over || o.no_wait) return kExitOk;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const absl::StatusOr<json> all = AdminAnswer(o.url, HttpGet(*router, "/workers", o.api_key));
    if (!all.ok()) return Fail(all.status());
    const json& list = ListOf(*all, "workers");
    const auto found = std::ranges::find_if(list, [&](const json& w) { return TextOf(w, "address") == address; });
    if (found == list.end()) return Fail(absl::UnavailableError(StrCat("worker ", o.worker, " has left")));
    *worker = *found;
  }
}

}  // namespace

Runner AddFlip(CLI::App& app) {
  auto options = std::make_shared<FlipOptions>();
  FlipOptions& o = *options;
  app.add_option("worker", o.worker, "name or address of a worker, as /workers lists them")->required();
  app.add_option("role", o.role, "what it becomes")->required()->check(CLI::IsMember({"prefill", "decode"}));
  app.add_option("--url", o.url, "admin port of a router that sends it requests (http://127.0.0.1:8002)");
  app.add_flag("--force", o.force, "even the last worker that decodes");
  app.add_flag("--no-wait", o.no_wait, "do not wait until it serves in its new role");
  app.add_option("--timeout-ms", o.timeout_ms,
                 "what runs there may take so long to end; then it stays what it is (0 = as long as it takes)")
      ->check(CLI::Range(0, static_cast<int>(kMostDeadlineMs)));
  o.answer.AddTo(app);
  app.add_option("--api-key", o.api_key, "sent as a bearer token")->envname("BATON_API_KEY");
  app.add_option("--tls-ca", o.tls_ca, "authorities of an https:// router's certificate, PEM (default: the system's)");
  return [options] { return Flip(*options); };
}

}  // namespace baton::cli
