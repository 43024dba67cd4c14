// SIGINT and SIGTERM for one who has something to keep first: a measurement.
#pragma once

namespace baton::cli {

/// While it lives, the first SIGINT or SIGTERM only makes `fd` readable; a second one of its kind ends the process. One
/// at a time, on the main thread, where signals end the process (LetSignalsEnd).
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  int fd() const;
  /// 0: none has come.
  int signal() const;
};

}  // namespace baton::cli
