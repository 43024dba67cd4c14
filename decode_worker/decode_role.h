// `--role decode`: reserves, receives KV, decodes; prefills what is short or was lost.
#pragma once

#include <memory>

#include "worker/process/role_service.h"

namespace baton::decode_worker {

/// For WorkerServer::Start. Unavailable, ResourceExhausted: landing memory or port cannot be had.
absl::StatusOr<std::unique_ptr<worker::Role>> MakeDecodeRole(const worker::RoleContext& context);

}  // namespace baton::decode_worker
