// The processes beside the router: a scripted worker, clients, a bare reader. Each is this program again under a role,
// so that the CPU time of the first process is the router's alone. They speak over pipes in plain structs.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace baton::bench {

/// What one round of requests looks like; an order to the client process.
struct Load {
  enum Kind : int {
    kBatches,  ///< `parallel` at once, each on a connection of its own; the next batch when all are answered
    kDelays,   ///< `parallel` streams at once, once; each token's delay after the step that made it
    kHold,     ///< opens `parallel` connections, asks once on each, and keeps all open until the next order
  } kind = kBatches;
  int requests = 0, prompt_bytes = 1024, tokens = 1, parallel = 32;
  int step_us = 0;  ///< kDelays: the worker's
  int port = 0;
};

/// What the client process saw.
struct Seen {
  int answered = 0;
  double p50_ms = 0, p99_ms = 0;  ///< kDelays
};

/// A process with a role, and a pipe each way. The destructor closes the pipes, which ends it, and waits.
class Child {
 public:
  Child(const std::string& role, const std::string& argument);
  ~Child();
  Child(const Child&) = delete;

  template <class T>
  void Tell(const T& value) const {
    Write(&value, sizeof value);
  }
  template <class T>
  T Hear() const {
    T value;
    Read(&value, sizeof value);
    return value;
  }

 private:
  void Write(const void* data, size_t bytes) const;
  void Read(void* data, size_t bytes) const;
  pid_t pid_;
  int to_, from_;
};

/// Where a role's process hears and answers.
inline constexpr int kOrders = 3, kAnswers = 4;

/// Runs the role that argv names, and ends the process; returns if it names none.
void RunRole(int argc, char** argv);

/// Keeps this process and what it starts on one core, if the machine has it.
void PinTo(int core);

}  // namespace baton::bench
