// `--role prefill`: computes prompts, hands their KV over layer by layer, answers with the first tokens.
#pragma once

#include <memory>

#include "worker/process/role_service.h"

namespace baton::prefill_worker {

/// For WorkerServer::Start.
absl::StatusOr<std::unique_ptr<worker::Role>> MakePrefillRole(const worker::RoleContext& context);

}  // namespace baton::prefill_worker
