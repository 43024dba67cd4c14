#include "worker/process/nothing_runs.h"

#include "common/planted_bug.h"

namespace baton::worker {

bool NothingRuns(bool engine_idle, const RelayBook& book, const Role* role) {
  if (PlantedBug("the role goes while its legs run")) return engine_idle;
  return (role == nullptr || role->Idle()) && engine_idle && book.live() == 0;
}

}  // namespace baton::worker
