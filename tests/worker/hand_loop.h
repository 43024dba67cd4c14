// Transfer loops without a thread.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "worker/transfer/transfer_loop.h"

namespace baton::worker {

/// Runs what is posted at once: for desks whose ports only write down what they are asked.
class InlineLoop final : public TransferLoop {
 public:
  void Post(std::function<void()> work) override { work(); }
  void Watch(Transport*) override {}
  void Unwatch(Transport*) override {}
};

/// Turned by hand.
class HandLoop final : public TransferLoop {
 public:
  void Post(std::function<void()> work) override { posted_.push_back(std::move(work)); }
  void Watch(Transport* transport) override { transports_.push_back(transport); }
  void Unwatch(Transport* transport) override { std::erase(transports_, transport); }
  /// False: there was nothing to do.
  bool Turn() {
    std::vector<std::function<void()>> work = std::exchange(posted_, {});
    for (auto& one : work) one();
    bool moved = !work.empty();
    for (size_t i = 0; i < transports_.size(); ++i) moved |= transports_[i]->Progress();
    return moved;
  }

 private:
  std::vector<std::function<void()>> posted_;
  std::vector<Transport*> transports_;
};

}  // namespace baton::worker
