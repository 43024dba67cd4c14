// LiveContext: the context that new handshakes of a server's port take, made anew whenever the identity changes.
// Sessions that were begun keep the one they have. Thread-safe.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/tls/context.h"
#include "common/tls/live_identity.h"

namespace baton::tls {

class LiveContext {
 public:
  /// As Context::ForServer. Before live.Watch(); `live` may outlive it.
  static absl::StatusOr<std::unique_ptr<LiveContext>> Make(LiveIdentity& live, ServerWish wish);

  std::shared_ptr<const Context> now() const;

 private:
  struct Shared;
  explicit LiveContext(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  const std::shared_ptr<Shared> shared_;
};

}  // namespace baton::tls
