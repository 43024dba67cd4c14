// The decisions of scheduling that a role (prefill, decode, both) changes. The defaults are those of `--role both`.
// Called on the scheduler thread, from inside the Scheduler: must not call it back.
#pragma once

#include <cstdint>

#include "engine/step/request.h"

namespace baton::engine {

class RolePolicy {
 public:
  virtual ~RolePolicy() = default;
  /// Prefill tokens a step may take beside `decode_rows` decodes, of the `budget` that limits leave. A decode worker
  /// keeps prefill to a share of its step; a prefill worker takes all.
  virtual int32_t PrefillBudget(int32_t decode_rows, int32_t budget) const {
    (void)decode_rows;
    return budget;
  }
  /// True: after its first tokens the request is not decoded here; its KV is held until ReleaseHeld.
  virtual bool HoldAfterFirstToken(RequestKey key) const {
    (void)key;
    return false;
  }
  /// Asked before a sequence that has credit is preempted: give up pins (unbound tickets first). True when some block
  /// came free.
  virtual bool ReleasePins() { return false; }
  /// Asked when a sequence that has credit must be preempted: true hands it back (error Unavailable) so that the router
  /// migrates it, false recomputes it here. `uncached_tokens`: what recompute costs.
  virtual bool HandBackPreempted(RequestKey key, int32_t uncached_tokens) const {
    (void)key;
    (void)uncached_tokens;
    return false;
  }
};

}  // namespace baton::engine
