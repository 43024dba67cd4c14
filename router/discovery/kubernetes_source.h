// --workers-kubernetes NAMESPACE/SERVICE[:PORT]: the workers of a Kubernetes service, by its EndpointSlices: listed
// once, then watched. The token is read again for each request, the CA for each connection, as both are replaced in
// place. An API server that is gone changes nothing that is known.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "router/discovery/endpoint_source.h"
#include "router/outbound/http_call.h"

namespace baton::router {

struct KubernetesOptions {
  std::string api;         ///< https://HOST[:PORT]; http:// for a proxy on loopback; empty: the pod's environment
  std::string token_file;  ///< empty: no token
  std::string ca_file;     ///< empty: the system's
};

/// What --workers-kubernetes and the options mean. InvalidArgument names the flag.
struct KubernetesPlace {
  std::string name_space, service, port = "grpc";
  HttpPlace api;
};
absl::StatusOr<KubernetesPlace> ParseKubernetesPlace(const std::string& service, const KubernetesOptions& options);

absl::StatusOr<std::unique_ptr<EndpointSource>> MakeKubernetesSource(const std::string& service,
                                                                     const KubernetesOptions& options);

}  // namespace baton::router
