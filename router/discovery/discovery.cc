#include "router/discovery/discovery.h"

#include <map>
#include <utility>

#include "common/net/address.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "router/discovery/dns_source.h"
#include "router/discovery/kubernetes_source.h"
#include "router/discovery/workers_file.h"

namespace baton::router {
namespace {

using Sources = std::vector<std::unique_ptr<EndpointSource>>;

absl::StatusOr<Sources> SourcesOf(const RouterConfig& config) {
  Sources sources;
  if (!config.workers_file.empty()) sources.push_back(std::make_unique<WorkersFile>(config.workers_file));
  for (const std::string& name : config.workers_dns) {
    DnsOptions options{.interval = std::chrono::milliseconds(config.workers_dns_interval_ms),
                       .server = config.dns_server};
    BATON_ASSIGN_OR_RETURN(auto source, MakeDnsSource(name, options));
    sources.push_back(std::move(source));
  }
  for (const std::string& service : config.workers_kubernetes) {
    const KubernetesOptions options{config.kubernetes_api, config.kubernetes_token_file, config.kubernetes_ca_file};
    BATON_ASSIGN_OR_RETURN(auto source, MakeKubernetesSource(service, options));
    sources.push_back(std::move(source));
  }
  return sources;
}

}  // namespace

absl::Status CheckDiscovery(const RouterConfig& config) { return SourcesOf(config).status(); }

std::vector<Endpoint> Union(const std::vector<std::vector<Endpoint>>& sets) {
  std::vector<Endpoint> out;
  std::map<std::string, size_t> at;
  for (const auto& set : sets) {
    for (const Endpoint& one : set) {
      const auto [found, fresh] = at.try_emplace(one.address, out.size());
      if (fresh) {
        out.push_back(one);
      } else if (one.takes_requests()) {
        out[found->second] = one;
      }
    }
  }
  return out;
}

absl::StatusOr<std::unique_ptr<Discovery>> Discovery::Create(const RouterConfig& config) {
  BATON_ASSIGN_OR_RETURN(Sources sources, SourcesOf(config));
  std::vector<Endpoint> listed;
  for (const std::string& address : config.worker) listed.push_back({address});
  return std::make_unique<Discovery>(std::move(listed), std::move(sources));
}

Discovery::Discovery(std::vector<Endpoint> listed, std::vector<std::unique_ptr<EndpointSource>> sources)
    : sources_(std::move(sources)) {
  sets_.push_back(std::move(listed));
  sets_.resize(1 + sources_.size());
}

Discovery::~Discovery() { sources_.clear(); }

void Discovery::Start(Tell tell) {
  tell_ = std::move(tell);
  for (size_t i = 0; i < sources_.size(); ++i) {
    sources_[i]->Start([this, i](std::vector<Endpoint> set) {
      std::lock_guard lock(mutex_);
      sets_[1 + i] = std::move(set);
      tell_(Union(sets_));
    });
  }
}

}  // namespace baton::router
