// Time enters decision cores only as an argument; threads and tests get it from a Clock.
#pragma once

#include <chrono>
#include <cstdint>

namespace baton {

/// Monotonic time. A duration on the wire is always a *remaining* duration, so that clock skew is harmless.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, std::chrono::nanoseconds>;
using Duration = std::chrono::nanoseconds;

/// Seconds as a double, for metrics and messages.
constexpr double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }
/// Milliseconds as a double.
constexpr double Milliseconds(Duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

/// A source of monotonic time. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
};

/// The machine's steady clock.
class SteadyClock final : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
};

/// A clock that tests move by hand. Not thread-safe.
class FakeClock final : public Clock {
 public:
  TimePoint Now() const override { return now_; }
  void Advance(Duration d) { now_ += d; }

 private:
  TimePoint now_{std::chrono::seconds(1)};
};

}  // namespace baton
