// Where work about transports runs: one thread, in the order it was posted. TransferThread is the product's; tests turn
// one by hand.
#pragma once

#include <functional>

#include "kvtransfer/transport.h"

namespace baton::worker {

class TransferLoop {
 public:
  virtual ~TransferLoop() = default;
  /// Runs `work` on the thread; from any thread. Never refused: bounded by the tickets that live.
  virtual void Post(std::function<void()> work) = 0;
  /// On the thread, or before it starts: `transport` is progressed from now on. It must stay until the thread ends, or
  /// until Unwatch.
  virtual void Watch(Transport* transport) = 0;
  /// In posted work, or before the thread starts: it is progressed no more, and may go.
  virtual void Unwatch(Transport* transport) = 0;
};

}  // namespace baton::worker
