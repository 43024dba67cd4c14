#include "bench/gpu/run_each.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>

#include "common/check.h"
#include "kernels/runtime/runtime.h"

namespace baton::bench {
namespace {

void WriteWhole(int fd, const void* data, size_t bytes) {
  for (const char* at = static_cast<const char*>(data); bytes > 0;) {
    const ssize_t n = write(fd, at, bytes);
    if (n <= 0) _exit(kSomethingWrong);  // the parent is gone
    at += n, bytes -= static_cast<size_t>(n);
  }
}

/// False at the end of the pipe.
bool ReadWhole(int fd, void* data, size_t bytes) {
  for (char* at = static_cast<char*>(data); bytes > 0;) {
    const ssize_t n = read(fd, at, bytes);
    if (n <= 0) return false;
    at += n, bytes -= static_cast<size_t>(n);
  }
  return true;
}

std::optional<std::string> ReadResult(int fd) {
  uint64_t size = 0;
  if (!ReadWhole(fd, &size, sizeof size)) return std::nullopt;
  std::string text(size, '\0');
  if (!ReadWhole(fd, text.data(), size)) return std::nullopt;
  return text;
}

std::string DeathOf(int status, unsigned seconds) {
  if (WIFEXITED(status)) return "ended with exit code " + std::to_string(WEXITSTATUS(status));
  const int signal = WTERMSIG(status);
  if (signal == SIGALRM) return "no end within " + std::to_string(seconds) + " s";
  const char* what = sigdescr_np(signal);
  return "killed by signal " + std::to_string(signal) + " (" + (what != nullptr ? what : "unknown") + ")";
}

[[noreturn]] void RunAsChild(int fd, size_t first, size_t count, unsigned seconds,
                             const std::function<std::string(size_t)>& run) {
  for (size_t i = first; i < count; ++i) {
    alarm(seconds);
    const std::string result = run(i);
    alarm(0);
    const uint64_t size = result.size();
    WriteWhole(fd, &size, sizeof size);
    WriteWhole(fd, result.data(), result.size());
  }
  std::fflush(nullptr);
  _exit(kAllRight);
}

}  // namespace

void RunEach(size_t count, unsigned seconds, const std::function<std::string(size_t)>& run,
             const std::function<void(size_t, const Attempt&)>& report) {
  for (size_t next = 0; next < count;) {
    int ends[2];
    BATON_CHECK(pipe(ends) == 0);
    std::fflush(nullptr);  // a child that ends well would print again what waits here
    const pid_t child = fork();
    BATON_CHECK(child >= 0, "fork failed");
    if (child == 0) {
      close(ends[0]);
      RunAsChild(ends[1], next, count, seconds, run);
    }
    close(ends[1]);
    for (std::optional<std::string> result; next < count && (result = ReadResult(ends[0])).has_value(); ++next)
      report(next, {*result, ""});
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    if (next < count) report(next, {"", DeathOf(status, seconds)}), ++next;
  }
}

bool SaysThereIsNoDevice(const char* program) {
  std::string why;
  constexpr unsigned kSeconds = 60;  // the first use of a device may load its driver
  RunEach(
      1, kSeconds, [](size_t) { return gpu::UseDevice(0); },
      [&](size_t, const Attempt& a) { why = a.death.empty() ? a.result : "asking for one: " + a.death; });
  if (why.empty()) return false;
  std::fprintf(stderr, "%s: no GPU can be used: %s\n", program, why.c_str());
  return true;
}

}  // namespace baton::bench
