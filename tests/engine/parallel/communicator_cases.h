// What every Communicator promises, as programs that each rank runs: the same ones for ranks that are threads and for
// ranks that are processes. A case returns OK, or what it found.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "engine/parallel/communicator.h"

namespace baton::engine {

struct CommunicatorCase {
  const char* name;
  int ranks;
  /// May destroy its communicator: then the rank has left.
  absl::Status (*run)(std::unique_ptr<Communicator>& group);
};

const std::vector<CommunicatorCase>& CommunicatorCases();

}  // namespace baton::engine
