// Discovery: every source of workers that the flags name, and the union of what they say. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "router/discovery/endpoint_source.h"
#include "router/router_config.h"

namespace baton::router {

/// InvalidArgument names the flag that is wrong.
absl::Status CheckDiscovery(const RouterConfig& config);

/// What one who hears several sources knows: an address takes requests where one of them says so.
std::vector<Endpoint> Union(const std::vector<std::vector<Endpoint>>& sets);

class Discovery {
 public:
  using Tell = std::function<void(std::vector<Endpoint>)>;

  /// The sources that `config` names, beside its --worker list. InvalidArgument as CheckDiscovery.
  static absl::StatusOr<std::unique_ptr<Discovery>> Create(const RouterConfig& config);
  /// For tests: of other sources.
  Discovery(std::vector<Endpoint> listed, std::vector<std::unique_ptr<EndpointSource>> sources);
  /// Stops the sources.
  ~Discovery();

  /// `tell` hears the whole set whenever a source has spoken, one call at a time, on a thread of a source's. Once.
  void Start(Tell tell);

 private:
  std::mutex mutex_;                         // guards what follows
  std::vector<std::vector<Endpoint>> sets_;  // the list, then of each source
  Tell tell_;
  std::vector<std::unique_ptr<EndpointSource>> sources_;  // last: they call until they are gone
};

}  // namespace baton::router
