// SIGINT and SIGTERM for one who waits for something else too. BlockSignals comes first; one thread waits.
#pragma once

#include <optional>

#include "common/clock.h"

namespace baton::cli {

class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  /// Waits until `fd` can be read, a signal comes or `timeout` has passed. The signal, or nullopt.
  std::optional<int> Wait(int fd, std::optional<Duration> timeout = std::nullopt);

 private:
  int signals_;
};

}  // namespace baton::cli
