#include "cli/tools/bench_targets.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "cli/tools/bench_grpc.h"
#include "common/json.h"
#include "common/net/address.h"
#include "common/shallow_json.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "load/client.h"
#include "load/request_body.h"

namespace baton::cli {
namespace {

using load::BenchOptions;

using ReadyTime = std::chrono::steady_clock::time_point;

// Of a server that is looked for from now on.
ReadyTime ReadyBy(const BenchOptions& o) {
  return std::chrono::steady_clock::now() + std::chrono::seconds(o.ready_check_timeout_sec);
}

// What `ask` says as soon as it is no failure, or at `until`. It is told how long it may take.
template <class Ask>
absl::StatusOr<std::string> Patiently(const BenchOptions& o, ReadyTime until, const Ask& ask) {
  for (;;) {
    const Duration left = until - std::chrono::steady_clock::now();
    absl::StatusOr<std::string> said = ask(
        o.ready_check_timeout_sec == 0 ? kRequestPatience
                                       : std::clamp<Duration>(left, std::chrono::milliseconds(1), kRequestPatience));
    if (!absl::IsUnavailable(said.status())) return said;
    std::this_thread::sleep_until(std::min(std::chrono::steady_clock::now() + kReadyPause, until));
    if (std::chrono::steady_clock::now() < until) continue;
    if (o.ready_check_timeout_sec == 0) return said;
    return absl::UnavailableError(StrCat("not ready within --ready-check-timeout-sec ", o.ready_check_timeout_sec, ": ",
                                         said.status().message()));
  }
}

// What a server is shown besides what it is asked: the bearer token of --header, or --api-key.
std::string KeyOf(const BenchOptions& o) {
  for (const std::string& one : o.header) {
    const absl::string_view text = one;
    if (absl::StartsWithIgnoreCase(text, "authorization=bearer ")) return std::string(text.substr(text.find(' ') + 1));
  }
  return o.api_key;
}

// The first model that the server has.
absl::StatusOr<std::string> FindModel(HttpUrl url, const BenchOptions& o, Duration within) {
  url.patience = within;
  if (o.insecure && url.tls)
    return absl::InvalidArgumentError(
        "--insecure: name the model with --model, /v1/models is asked of believed servers");
  BATON_ASSIGN_OR_RETURN(const HttpResponse response, HttpGet(url, "/v1/models", KeyOf(o)));
  if (response.status != 200)
    return absl::UnavailableError(StrCat("/v1/models answers ", response.status, ": name a model with --model"));
  const auto models = ShallowJson(response.body);
  if (models.is_object() && models.contains("data") && models["data"].is_array() && !models["data"].empty() &&
      models["data"][0].is_object() && models["data"][0].value("id", nlohmann::json()).is_string())
    return models["data"][0]["id"].get<std::string>();
  return absl::UnavailableError("/v1/models names no model: name one with --model");
}

using Headers = std::vector<std::pair<std::string, std::string>>;

absl::StatusOr<Headers> HeadersOf(const BenchOptions& o) {
  Headers out;
  if (o.api_key.find_first_of("\r\n") != std::string::npos)
    return absl::InvalidArgumentError("--api-key (or OPENAI_API_KEY): a key is one line");
  if (!o.api_key.empty()) out.emplace_back("Authorization", StrCat("Bearer ", o.api_key));
  for (const std::string& one : o.header) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(one, absl::MaxSplits('=', 1));
    if (parts.first.empty() || one.find('=') == std::string::npos || one.find_first_of("\r\n") != std::string::npos)
      return absl::InvalidArgumentError(StrCat("--header: \"", one, "\" is not NAME=VALUE"));
    out.push_back(parts);
  }
  return out;
}

// Baton's gRPC port is the next one after its HTTP port, as `baton serve` has it.
absl::StatusOr<BenchTarget> GrpcTargetAt(const std::string& name, const std::string& text, const BenchOptions& o) {
  BATON_ASSIGN_OR_RETURN(const Headers headers, HeadersOf(o));
  BATON_ASSIGN_OR_RETURN(const auto grpc, BenchGrpc::Open(text, headers, o));
  std::string model = o.served_model_name.empty() ? o.model : o.served_model_name;
  const ReadyTime ready_by = ReadyBy(o);
  if (model.empty()) {
    BATON_ASSIGN_OR_RETURN(model, Patiently(o, ready_by, [&](Duration within) { return grpc->FindModel(within); }));
  }
  BATON_ASSIGN_OR_RETURN(const auto where, net::ParseHostPort(text.substr(text.find("//") + 2)));
  HttpUrl http{.host = where.host, .port = StrCat(where.port - 1), .path = "", .tls = text.starts_with("grpcs://")};
  http.files = {o.tls_cert, o.tls_key, o.tls_ca};
  return BenchTarget{name, std::move(http), model, text, grpc->Asker(model), ready_by};
}

absl::StatusOr<BenchTarget> TargetAt(const std::string& name, const std::string& text, const BenchOptions& o) {
  if (text.starts_with("grpc://") || text.starts_with("grpcs://") || load::IsGrpc(o))
    return GrpcTargetAt(name, text, o);
  BATON_ASSIGN_OR_RETURN(HttpUrl url, ParseHttpUrl(text));
  url.files = {o.tls_cert, o.tls_key, o.tls_ca};
  load::Server server{
      url.host, url.port, url.path + load::PathOf(o), {}, std::chrono::milliseconds(o.request_timeout_ms)};
  if (url.tls) {
    BATON_ASSIGN_OR_RETURN(server.tls, load::MakeTls(url.files, o.insecure));
  }
  BATON_ASSIGN_OR_RETURN(server.headers, HeadersOf(o));
  std::string model = o.model;
  const ReadyTime ready_by = ReadyBy(o);
  if (model.empty()) {
    BATON_ASSIGN_OR_RETURN(model, Patiently(o, ready_by, [&](Duration within) { return FindModel(url, o, within); }));
  }
  BATON_ASSIGN_OR_RETURN(load::RequestBody body, load::RequestBody::Make(o, model));
  std::string address = AuthorityOf(url);
  return BenchTarget{name,
                     std::move(url),
                     std::move(model),
                     std::move(address),
                     load::HttpAsker(std::move(server), std::move(body)),
                     ready_by};
}

using NamedTargets = std::vector<std::pair<std::string, std::string>>;

// NAME=URL …
absl::StatusOr<NamedTargets> NamedUrls(const BenchOptions& o) {
  NamedTargets out;
  for (const std::string& one : o.compare) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(one, absl::MaxSplits('=', 1));
    const bool again = std::ranges::any_of(out, [&](const auto& other) { return other.first == parts.first; });
    if (parts.first.empty() || parts.second.empty() || again) {
      return absl::InvalidArgumentError(
          StrCat("--compare: \"", one,
                 "\" is not NAME=URL with a name of its own, nor are all of them layouts (both, both:2, pd, 2:1)"));
    }
    out.push_back(parts);
  }
  return out;
}

using Layouts = std::vector<std::pair<std::string, Layout>>;

// "both,pd": with as many workers each, where nothing else is said. Nothing: not all are layouts.
std::optional<Layouts> NamedLayouts(const BenchOptions& o) {
  Layouts out;
  int most = 0;
  for (const std::string& item : o.compare) {
    for (const std::string& name : std::vector<std::string>(absl::StrSplit(item, ','))) {
      const std::optional<Layout> layout = ParseLayout(name);
      const bool again = std::ranges::any_of(out, [&](const auto& other) { return other.first == name; });
      if (!layout || again) return std::nullopt;
      most = std::max(most, layout->workers());
      out.emplace_back(name, *layout);
    }
  }
  for (auto& [name, layout] : out) {
    if (layout.workers() == 0) layout.both = std::max(1, most);
  }
  return out;
}

// A cluster of this machine for each layout, one after the other; they stay until all is measured.
absl::StatusOr<std::vector<BenchTarget>> StartTargets(const Layouts& layouts, const BenchOptions& o) {
  if (o.model.empty())
    return absl::InvalidArgumentError("--compare with layouts starts clusters: --model says which model they serve");
  if (load::IsGrpc(o))
    return absl::InvalidArgumentError(
        StrCat("--backend ", o.backend, ": clusters that --compare starts are asked over HTTP"));
  std::vector<std::string> arguments{"--model", o.model};
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(o.serve_args, ' ', absl::SkipEmpty())))
    arguments.push_back(word);
  const Duration within = std::chrono::seconds(o.ready_check_timeout_sec > 0 ? o.ready_check_timeout_sec : 600);
  BenchOptions asked = o;
  asked.model = o.served_model_name;  // empty: what the cluster calls it
  std::vector<BenchTarget> out;
  for (const auto& [name, layout] : layouts) {
    std::fprintf(stderr, "%s: starting %d workers (%d prefill, %d decode, %d both)\n", name.c_str(), layout.workers(),
                 layout.prefill, layout.decode, layout.both);
    BATON_ASSIGN_OR_RETURN(LocalCluster cluster, LocalCluster::Start(name, layout, arguments, within));
    BATON_ASSIGN_OR_RETURN(BenchTarget target, TargetAt(name, cluster.url(), asked));
    target.cluster = std::make_shared<LocalCluster>(std::move(cluster));
    out.push_back(std::move(target));
  }
  return out;
}

}  // namespace

absl::StatusOr<std::vector<BenchTarget>> FindTargets(const BenchOptions& o) {
  std::vector<BenchTarget> out;
  if (o.compare.empty()) {
    const std::string there = load::IsGrpc(o) ? StrCat("grpc://", net::JoinHostPort(o.host, o.port + 1))
                                              : StrCat("http://", net::JoinHostPort(o.host, o.port));
    BATON_ASSIGN_OR_RETURN(BenchTarget only, TargetAt("", o.base_url.empty() ? there : o.base_url, o));
    out.push_back(std::move(only));
    return out;
  }
  if (!o.base_url.empty())
    return absl::InvalidArgumentError("--compare and --base-url both name servers: leave one out");
  if (const std::optional<Layouts> layouts = NamedLayouts(o)) return StartTargets(*layouts, o);
  if (!o.serve_args.empty())
    return absl::InvalidArgumentError("--serve-args is for the clusters that --compare starts: name layouts there");
  BATON_ASSIGN_OR_RETURN(const NamedTargets named, NamedUrls(o));
  for (const auto& [name, url] : named) {
    BATON_ASSIGN_OR_RETURN(BenchTarget target, TargetAt(name, url, o));
    out.push_back(std::move(target));
  }
  return out;
}

}  // namespace baton::cli
