#include "cli/bench_targets.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "absl/strings/str_split.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton::cli {
namespace {

using load::BenchOptions;

// The first model that the server has.
absl::StatusOr<std::string> FindModel(const HttpUrl& url, const BenchOptions& o) {
  if (o.insecure && url.tls)
    return absl::InvalidArgumentError(
        "--insecure: name the model with --model, /v1/models is asked of believed servers");
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(o.ready_check_timeout_sec);
  for (;;) {
    absl::StatusOr<HttpResponse> response = HttpGet(url, "/v1/models", o.api_key);
    if (response.ok() && response->status == 200) {
      const auto models = nlohmann::json::parse(response->body, nullptr, /*allow_exceptions=*/false);
      if (models.is_object() && models.contains("data") && models["data"].is_array() && !models["data"].empty() &&
          models["data"][0].is_object() && models["data"][0].value("id", nlohmann::json()).is_string())
        return models["data"][0]["id"].get<std::string>();
      return absl::UnavailableError("/v1/models names no model: name one with --model");
    }
    if (std::chrono::steady_clock::now() >= until) {
      if (!response.ok()) return response.status();
      return absl::UnavailableError(StrCat("/v1/models answers ", response->status, ": name a model with --model"));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

absl::StatusOr<load::Server> ServerOf(const HttpUrl& url, const BenchOptions& o) {
  load::Server server{
      url.host, url.port, url.path + load::PathOf(o), {}, std::chrono::milliseconds(o.request_timeout_ms)};
  if (url.tls) {
    BATON_ASSIGN_OR_RETURN(server.tls, load::MakeTls(url.files, o.insecure));
  }
  if (!o.api_key.empty()) server.headers.emplace_back("Authorization", StrCat("Bearer ", o.api_key));
  for (const std::string& one : o.header) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(one, absl::MaxSplits('=', 1));
    if (parts.first.empty() || one.find('=') == std::string::npos || one.find_first_of("\r\n") != std::string::npos)
      return absl::InvalidArgumentError(StrCat("--header: \"", one, "\" is not NAME=VALUE"));
    server.headers.push_back(parts);
  }
  return server;
}

absl::StatusOr<BenchTarget> TargetAt(const std::string& name, const std::string& text, const BenchOptions& o) {
  BATON_ASSIGN_OR_RETURN(HttpUrl url, ParseHttpUrl(text));
  url.files = {o.tls_cert, o.tls_key, o.tls_ca};
  BATON_ASSIGN_OR_RETURN(load::Server server, ServerOf(url, o));
  std::string model = o.model;
  if (model.empty()) {
    BATON_ASSIGN_OR_RETURN(model, FindModel(url, o));
  }
  BATON_ASSIGN_OR_RETURN(load::RequestBody body, load::RequestBody::Make(o, model));
  return BenchTarget{name, std::move(url), std::move(server), std::move(model), std::move(body)};
}

}  // namespace

absl::StatusOr<std::vector<BenchTarget>> FindTargets(const BenchOptions& o) {
  std::vector<BenchTarget> out;
  if (o.compare.empty()) {
    const std::string url = o.base_url.empty() ? StrCat("http://", o.host, ":", o.port) : o.base_url;
    BATON_ASSIGN_OR_RETURN(BenchTarget only, TargetAt("", url, o));
    out.push_back(std::move(only));
    return out;
  }
  if (!o.base_url.empty())
    return absl::InvalidArgumentError("--compare and --base-url both name servers: leave one out");
  for (const std::string& one : o.compare) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(one, absl::MaxSplits('=', 1));
    const bool again = std::ranges::any_of(out, [&](const BenchTarget& t) { return t.name == parts.first; });
    if (parts.first.empty() || parts.second.empty() || again)
      return absl::InvalidArgumentError(StrCat("--compare: \"", one, "\" is not NAME=URL with a name of its own"));
    BATON_ASSIGN_OR_RETURN(BenchTarget target, TargetAt(parts.first, parts.second, o));
    out.push_back(std::move(target));
  }
  return out;
}

}  // namespace baton::cli
