#include "worker/process/progress_line.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/log.h"

namespace baton::worker {
namespace {

constexpr Duration kRedraw = std::chrono::milliseconds(100), kLogEvery = std::chrono::seconds(5);
constexpr int kBarCells = 30;
constexpr char kClear[] = "\x1b[K";  // from the cursor to the line's end

}  // namespace

ProgressLine::ProgressLine(const Clock& clock, Sinks sinks)
    : clock_(clock), sinks_(std::move(sinks)), shown_(clock.Now()) {}

ProgressLine::~ProgressLine() {
  if (on_terminal_) sinks_.terminal(kClear);
}

void ProgressLine::Show(std::string_view phase, double fraction) {
  const Duration pause = sinks_.terminal ? kRedraw : kLogEvery;
  if (clock_.Now() - shown_ < pause) return;
  shown_ = clock_.Now();
  const double share = std::clamp(fraction, 0.0, 1.0);
  const std::string text = absl::StrFormat("worker: %s %.0f %%", std::string(phase), 100 * share);
  if (!sinks_.terminal) return sinks_.line(text);
  const int full = static_cast<int>(share * kBarCells);
  // The cursor goes back to the line's begin: the next log line takes its place.
  sinks_.terminal(
      absl::StrFormat("%s[%s%s] %s\r", kClear, std::string(full, '='), std::string(kBarCells - full, ' '), text));
  on_terminal_ = true;
}

ProgressLine::Sinks StandardProgress() {
  ProgressLine::Sinks sinks;
  sinks.line = [](const std::string& text) { LogInfo("{}", text); };
  if (isatty(STDOUT_FILENO) == 0) return sinks;
  sinks.terminal = [](const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  return sinks;
}

}  // namespace baton::worker
