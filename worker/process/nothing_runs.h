// When a worker that takes nothing new has ended everything: then its role may go.
#pragma once

#include "worker/process/role_service.h"
#include "worker/relay/relay_book.h"

namespace baton::worker {

/// No request lives (`engine_idle`), no router waits for one, and the role has nothing under way. All of that at one
/// moment: a ticket whose KV has come is a request of the engine in the next. `role` may be null. Scheduler thread.
bool NothingRuns(bool engine_idle, const RelayBook& book, const Role* role);

}  // namespace baton::worker
