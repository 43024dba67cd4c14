// baton drain: workers take no new requests; waits until what runs there has ended.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cli/admin_answer.h"
#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/http_client.h"
#include "cli/request_timeout.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton::cli {
namespace {

using nlohmann::json;

struct DrainOptions {
  std::vector<std::string> workers, urls;
  std::string api_key, tls_ca;
  bool undo = false, force = false, no_wait = false;
  int timeout_ms = 0;
  RequestTimeout answer;
};

/// A router's admin port, and the worker there that we wait for.
struct Waited {
  const std::string* url;
  HttpUrl router;
  std::string worker;
  std::optional<int64_t> requests{};  ///< that were told
};

/// True: nothing runs there any more.
absl::StatusOr<bool> IsIdle(Waited& waited, const DrainOptions& o) {
  BATON_ASSIGN_OR_RETURN(const json body, AdminAnswer(*waited.url, HttpGet(waited.router, "/workers", o.api_key)));
  const json& all = ListOf(body, "workers");
  const auto found = std::ranges::find_if(all, [&](const json& w) { return TextOf(w, "address") == waited.worker; });
  if (found == all.end()) return true;  // it has left
  if (IsTrue(*found, "takes_requests"))
    return absl::AbortedError(StrCat(*waited.url, ": ", ShownTextOf(*found, "name"), " takes requests again"));
  const auto requests = static_cast<int64_t>(NumberOf(*found, "requests"));
  if (waited.requests != requests) {
    std::printf("%s: %s, %lld requests\n", ShownTextOf(*found, "name").c_str(), requests == 0 ? "drained" : "draining",
                static_cast<long long>(requests));
    std::fflush(stdout);
  }
  waited.requests = requests;
  return requests == 0;
}

/// All of them, before the first is told.
absl::StatusOr<std::vector<HttpUrl>> RoutersOf(const DrainOptions& o) {
  std::vector<HttpUrl> out;
  for (const std::string& url : o.urls) {
    absl::StatusOr<HttpUrl> router = ParseHttpUrl(url);
    if (!router.ok()) return absl::InvalidArgumentError(StrCat("--url: ", View(router.status().message())));
    router->files.ca = o.tls_ca;
    router->patience = o.answer.patience();
    out.push_back(*std::move(router));
  }
  return out;
}

absl::Status Order(const DrainOptions& o, const std::vector<HttpUrl>& routers, std::vector<Waited>& waited) {
  for (size_t i = 0; i < routers.size(); ++i) {
    const std::string& url = o.urls[i];
    const HttpUrl& router = routers[i];
    for (const std::string& worker : o.workers) {
      const std::string body = json{{"worker", worker}, {"force", o.force}}.dump();
      const char* path = o.undo ? "/workers/resume" : "/workers/drain";
      BATON_ASSIGN_OR_RETURN(const json now, AdminAnswer(url, HttpPost(router, path, o.api_key, body, nullptr)));
      if (o.undo) std::printf("%s: %s\n", ShownTextOf(now, "name").c_str(), ShownTextOf(now, "state").c_str());
      waited.push_back({&url, router, TextOf(now, "address")});
    }
  }
  return absl::OkStatus();
}

int Drain(const DrainOptions& o) {
  const SteadyClock clock;
  const TimePoint until = o.timeout_ms > 0 ? clock.Now() + std::chrono::milliseconds(o.timeout_ms) : TimePoint::max();
  const absl::StatusOr<std::vector<HttpUrl>> routers = RoutersOf(o);
  if (!routers.ok()) return FailUsage(routers.status());
  std::vector<Waited> waited;
  if (const absl::Status ordered = Order(o, *routers, waited); !ordered.ok()) return Fail(ordered);
  if (o.undo || o.no_wait) return kExitOk;
  for (;;) {
    size_t drained = 0;
    for (Waited& one : waited) {
      const absl::StatusOr<bool> idle = IsIdle(one, o);
      if (!idle.ok()) return Fail(idle.status());
      drained += *idle ? 1 : 0;
    }
    if (drained == waited.size()) return kExitOk;
    if (clock.Now() >= until) {
      std::fprintf(stderr, "baton: after --timeout-ms %d requests still run; the workers take no new ones\n",
                   o.timeout_ms);
      return kExitCutOff;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace

Runner AddDrain(CLI::App& app) {
  auto options = std::make_shared<DrainOptions>();
  DrainOptions& o = *options;
  app.add_option("worker", o.workers, "names or addresses of workers, as /workers lists them")->required();
  app.add_option("--url", o.urls, "admin port of each router that sends them requests (http://127.0.0.1:8002)");
  app.add_flag("--undo", o.undo, "they take requests again");
  app.add_flag("--force", o.force, "even the last worker that decodes");
  app.add_flag("--no-wait", o.no_wait, "do not wait until what runs there has ended");
  app.add_option("--timeout-ms", o.timeout_ms, "wait no longer than this (0 = as long as it takes)")
      ->check(CLI::Range(0, 86'400'000));
  o.answer.AddTo(app);
  app.add_option("--api-key", o.api_key, "sent as a bearer token")->envname("BATON_API_KEY");
  app.add_option("--tls-ca", o.tls_ca, "authorities of an https:// router's certificate, PEM (default: the system's)");
  return [options] {
    if (options->urls.empty()) options->urls = {"http://127.0.0.1:8002"};
    return Drain(*options);
  };
}

}  // namespace baton::cli
