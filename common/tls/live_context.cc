#include "common/tls/live_context.h"

#include <mutex>
#include <utility>

#include "common/log.h"
#include "common/status.h"

namespace baton::tls {

struct LiveContext::Shared {
  mutable std::mutex mutex;  // guards what follows
  std::shared_ptr<const Context> context;
};

absl::StatusOr<std::unique_ptr<LiveContext>> LiveContext::Make(LiveIdentity& live, ServerWish wish) {
  auto shared = std::make_shared<Shared>();
  BATON_ASSIGN_OR_RETURN(shared->context, Context::ForServer(live.now(), wish));
  live.OnChange(
      [weak = std::weak_ptr<Shared>(shared), wish = std::move(wish)](const std::shared_ptr<const Identity>& identity) {
        const auto alive = weak.lock();
        if (!alive) return;
        auto made = Context::ForServer(identity, wish);
        if (!made.ok()) return LogError("TLS: {}; what was read before stays", View(made.status().message()));
        std::lock_guard lock(alive->mutex);
        alive->context = *std::move(made);
      });
  return std::unique_ptr<LiveContext>(new LiveContext(std::move(shared)));
}

std::shared_ptr<const Context> LiveContext::now() const {
  std::lock_guard lock(shared_->mutex);
  return shared_->context;
}

}  // namespace baton::tls
