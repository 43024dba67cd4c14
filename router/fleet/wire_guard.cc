#include "router/fleet/wire_guard.h"

#include <utility>

#include "common/log.h"
#include "common/str_cat.h"

namespace baton::router {

WireGuard::WireGuard(EventLoop& loop, std::string worker, std::shared_ptr<CallCount> calls)
    : loop_(loop), worker_(std::move(worker)), calls_(std::move(calls)), sockets_({}) {}

void WireGuard::Start() {
  calls_->Add();
  loop_.Post([self = shared_from_this()] {
    if (self->stopped_) return;
    self->timer_ = self->loop_.MakeTimer();
    self->Look();
  });
}

void WireGuard::Stop() {
  if (stopped_.exchange(true)) return;
  loop_.Post([self = shared_from_this()] {
    self->timer_.reset();
    self->calls_->Done();
  });
}

absl::Status WireGuard::Explain(const absl::Status& status) {
  const uint64_t bytes = flood_.exchange(0);  // of a call that went well it was another one's
  if (bytes == 0 || status.ok()) return status;
  return absl::ResourceExhaustedError(StrCat(bytes, " bytes came that are no answer: its connections were ended"));
}

void WireGuard::Look() {
  if (stopped_) return;
  if (const uint64_t bytes = sockets_.EndFlood(clock_.Now()); bytes > 0) {
    flood_ = bytes;
    LogWarning("worker {}: {} bytes came that are no answer: its connections are ended", worker_, bytes);
  }
  timer_->ArmAt(sockets_.NextLook(), [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Look();
  });
}

}  // namespace baton::router
