#include "kvtransfer/ucx/ucx_transport.h"
#include "transport_contract.h"

namespace baton {

std::vector<Backend> UcxBackends() {
  const auto backend = [](std::string name, std::string transports, UcxVerb verb, FenceKind fence) {
    return Backend{std::move(name),
                   [=](LandingShape shape, TransportEvents& events) {
                     return MakeUcxTransport({.name = name,
                                              .transports = transports,
                                              .devices = transports == "tcp" ? "lo" : "",
                                              .verb = verb,
                                              .put_fence = fence,
                                              .landing = shape},
                                             events);
                   },
                   fence};
  };
  return {backend("ucx_tcp", "tcp", UcxVerb::kMessage, FenceKind::kReceiverWrites),
          backend("ucx_put", "tcp", UcxVerb::kPut, FenceKind::kForcedClose),  // what ucx-rdma runs
          backend("ucx_shm", "posix,cma,self", UcxVerb::kPut, FenceKind::kPeerExit)};
}

}  // namespace baton
