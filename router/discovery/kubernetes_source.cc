#include "router/discovery/kubernetes_source.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "common/clock.h"
#include "common/net/address.h"
#include "common/status.h"
#include "router/discovery/list_watch.h"
#include "router/discovery/slice_book.h"
#include "router/pausing_thread.h"

namespace baton::router {
namespace {

constexpr Duration kAnswerWithin = std::chrono::seconds(15);
constexpr int kWatchSeconds = 240, kPageSize = 500;
constexpr size_t kMostTokenBytes = 64 << 10;
constexpr Duration kWatchWithin = std::chrono::seconds(kWatchSeconds + 30);

bool IsLabel(const std::string& text) {
  const auto allowed = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.'; };
  return !text.empty() && text.size() <= 253 && std::ranges::all_of(text, allowed);
}

std::string PathOf(const KubernetesPlace& place) {
  return StrCat("/apis/discovery.k8s.io/v1/namespaces/", place.name_space,
                "/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D", place.service);
}

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.')
      out += c;
    else
      absl::StrAppend(&out, "%", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
  }
  return out;
}

class KubernetesSource final : public EndpointSource {
 public:
  KubernetesSource(const std::string& service, KubernetesPlace place, KubernetesOptions options)
      : name_("--workers-kubernetes " + service),
        place_(std::move(place)),
        options_(std::move(options)),
        log_(name_),
        book_(place_.port) {}
  ~KubernetesSource() override {
    thread_.Stop([this] { stop_.Stop(); });
  }

  const std::string& name() const override { return name_; }
  void Start(Tell tell) override {
    tell_ = std::move(tell);
    thread_.Start([this] { Run(); });
  }

 private:
  void Run() {
    while (!thread_.stopping()) {
      const TimePoint began = clock_.Now();
      const bool lists = turns_.Begin(!book_.resource_version().empty()) == ListWatch::Turn::kList;
      const absl::Status status = lists ? List() : Watch();
      if (thread_.stopping()) return;
      const ListWatch::Ended ended = turns_.End(status, clock_.Now() - began);
      if (ended.failed) log_.Failed(status, known_.size());
      if (ended.pause > Duration::zero()) thread_.Pause(ended.pause);
    }
  }

  absl::StatusOr<HttpCall> RequestOf(const std::string& query) const {
    HttpCall request{place_.api, "API server", PathOf(place_) + query, "", options_.ca_file};
    if (options_.token_file.empty()) return request;
    std::ifstream in(options_.token_file);
    if (!in && !place_.api.tls) return request;
    if (!in) return absl::UnavailableError(StrCat("no token can be read from ", options_.token_file));
    request.token.resize(kMostTokenBytes + 1);
    in.read(request.token.data(), static_cast<std::streamsize>(request.token.size()));
    request.token.resize(static_cast<size_t>(in.gcount()));
    if (request.token.size() > kMostTokenBytes)
      return absl::UnavailableError(
          StrCat(options_.token_file, " is no token: it has more than ", kMostTokenBytes, " bytes"));
    request.token = std::string(absl::StripAsciiWhitespace(request.token));
    if (request.token.find_first_of("\r\n") != std::string::npos)
      return absl::UnavailableError(StrCat(options_.token_file, " is no token: it has several lines"));
    return request;
  }

  absl::Status List() {
    book_.BeginList();
    do {
      std::string query = StrCat("&limit=", kPageSize);
      if (!book_.next_page().empty()) absl::StrAppend(&query, "&continue=", Escaped(book_.next_page()));
      BATON_ASSIGN_OR_RETURN(const HttpCall request, RequestOf(query));
      BATON_ASSIGN_OR_RETURN(const std::string page, FetchWhole(request, kAnswerWithin, stop_));
      BATON_RETURN_IF_ERROR(book_.Page(page));
    } while (!book_.next_page().empty());
    Changed();
    return absl::OkStatus();
  }

  absl::Status Watch() {
    const std::string query = StrCat("&watch=true&allowWatchBookmarks=true&timeoutSeconds=", kWatchSeconds,
                                     "&resourceVersion=", Escaped(book_.resource_version()));
    BATON_ASSIGN_OR_RETURN(const HttpCall request, RequestOf(query));
    const auto on_open = [this] {
      turns_.Opened();
      Changed();
    };
    return FetchLines(request, {kAnswerWithin, kWatchWithin}, stop_, on_open, [this](std::string_view line) {
      BATON_RETURN_IF_ERROR(book_.Event(line));
      Changed();
      return absl::OkStatus();
    });
  }

  void Changed() {
    std::vector<Endpoint> now = book_.endpoints();
    if (const absl::Status trouble = book_.Trouble(); trouble.ok())
      log_.Knows(now.size());
    else
      log_.Failed(trouble, now.size());
    if (now == known_) return;
    known_ = std::move(now);
    tell_(known_);
  }

  const std::string name_;
  const KubernetesPlace place_;
  const KubernetesOptions options_;
  const SteadyClock clock_;
  Tell tell_;
  SourceLog log_;
  SliceBook book_;
  ListWatch turns_;
  std::vector<Endpoint> known_;
  CallStop stop_;
  PausingThread thread_;
};

}  // namespace

absl::StatusOr<KubernetesPlace> ParseKubernetesPlace(const std::string& service, const KubernetesOptions& options) {
  const size_t slash = service.find('/'), colon = service.find(':');
  KubernetesPlace place;
  place.name_space = service.substr(0, slash);
  if (slash != std::string::npos) place.service = service.substr(slash + 1, colon - slash - 1);
  if (colon != std::string::npos) place.port = service.substr(colon + 1);
  if (!IsLabel(place.name_space) || !IsLabel(place.service) || !IsLabel(place.port) || colon < slash)
    return absl::InvalidArgumentError(
        StrCat("--workers-kubernetes ", service, ": NAMESPACE/SERVICE or NAMESPACE/SERVICE:PORTNAME is expected"));
  std::string api = options.api;
  if (api.empty()) {
    const char *host = std::getenv("KUBERNETES_SERVICE_HOST"), *port = std::getenv("KUBERNETES_SERVICE_PORT");
    if (host == nullptr || port == nullptr)
      return absl::InvalidArgumentError(
          "--workers-kubernetes: this is no pod (KUBERNETES_SERVICE_HOST and _PORT are not set); give "
          "--kubernetes-api");
    api = StrCat("https://", net::JoinHostPort(host, std::atoi(port)));
  }
  const auto bad = [&api](absl::string_view why) {
    return absl::InvalidArgumentError(StrCat("--kubernetes-api ", api, ": ", why));
  };
  auto where = ParseHttpPlace(api);
  if (!where.ok()) return bad(where.status().message());
  if (!where->path.empty() && where->path != "/") return bad("https://HOST[:PORT] without a path is expected");
  if (!where->tls && !net::IsLoopback(where->host))
    return bad("the token would travel in the clear; http:// is for a proxy on loopback");
  place.api = *std::move(where);
  return place;
}

absl::StatusOr<std::unique_ptr<EndpointSource>> MakeKubernetesSource(const std::string& service,
                                                                     const KubernetesOptions& options) {
  BATON_ASSIGN_OR_RETURN(KubernetesPlace place, ParseKubernetesPlace(service, options));
  return std::make_unique<KubernetesSource>(service, std::move(place), options);
}

}  // namespace baton::router
