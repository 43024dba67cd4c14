// What workers send to the simulated router, as bytes of the protocol's messages.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "router/generation.h"

namespace baton::sim {

class RouterPort {
 public:
  virtual ~RouterPort() = default;
  virtual void ReserveReply(int worker, const std::string& session, const router::LegKey& key, std::string bytes) = 0;
  virtual void PrefillReply(int worker, const std::string& session, const router::LegKey& key, std::string bytes) = 0;
  /// The stream of a Prefill has ended.
  virtual void PrefillEnd(int worker, const std::string& session, const router::LegKey& key,
                          const absl::Status& status) = 0;
  virtual void RelayDown(int worker, const std::string& session, std::string bytes) = 0;
};

}  // namespace baton::sim
