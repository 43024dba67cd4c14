// `baton top`: a router's event stream as a table that refreshes; recordings of it, made and shown.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "absl/strings/str_format.h"
#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/interrupts.h"
#include "cli/request_timeout.h"
#include "cli/terminal_screen.h"
#include "cli/top_feed.h"
#include "cli/top_frame.h"
#include "common/status.h"
#include "common/str_cat.h"
#include "common/whole_file.h"

namespace baton::cli {
namespace {

constexpr Duration kSilent = std::chrono::seconds(4);  // a router sends a state each second

struct TopOptions {
  std::string url = "http://127.0.0.1:8002", api_key, tls_ca, replay, record;
  bool once = false;
  int interval_ms = 500;
  double seconds = 0;
  RequestTimeout answer;
};

void Print(const TopModel& model, const std::string& note = "") {
  FrameLook look;
  look.unicode = TerminalScreen::SpeaksUnicode();
  if (TerminalScreen::There()) look.columns = TerminalScreen::Size().first;
  for (const std::string& line : TopFrame(model, look, note)) std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

/// The terminal, or nothing of it: then a frame now and then is printed below the last.
class ShownScreen {
 public:
  ShownScreen() {
    if (TerminalScreen::There()) screen_.emplace();
  }
  bool terminal() const { return screen_.has_value(); }
  /// False: `q` was pressed, or a signal came. `wait`: for either, so long.
  bool Show(const TopModel& model, const std::string& note, Duration wait) {
    if (screen_) {
      const auto [columns, rows] = TerminalScreen::Size();
      screen_->Show(TopFrame(model, {columns, rows, true, TerminalScreen::SpeaksUnicode()}, note));
    }
    if (interrupts_.Wait(screen_ ? 0 : -1, wait)) return false;
    return !screen_ || screen_->Keys().find_first_of("qQ\x03") == std::string::npos;
  }

 private:
  Interrupts interrupts_;
  std::optional<TerminalScreen> screen_;
};

int Replay(const TopOptions& o) {
  const absl::StatusOr<Recording> recording = ReadRecording(o.replay);
  if (!recording.ok()) return Fail(recording.status());
  const std::vector<RecordedEvent>& events = recording->events;
  const std::string cut =
      recording->cut_line > 0 ? StrCat("line ", recording->cut_line, " of the recording is cut") : "";
  TopModel model;
  if (o.once || !TerminalScreen::There()) {
    for (const RecordedEvent& e : events) (void)model.Take(e.line);
    Print(model, cut);
    return kExitOk;
  }
  ShownScreen shown;
  bool begun = false;  // those of before the recording come at once
  double ahead_ms = 0;
  for (const RecordedEvent& e : events) {
    if (begun) ahead_ms += e.pause_ms;
    begun |= e.line.find("\"state\"") != std::string::npos;
    for (; ahead_ms > 0; ahead_ms -= o.interval_ms) {
      if (!shown.Show(model, "", std::chrono::milliseconds(o.interval_ms))) return kExitOk;
    }
    (void)model.Take(e.line);
  }
  const std::string ended = StrCat("the recording has ended", cut.empty() ? "" : StrCat(", ", cut), "; q leaves");
  while (shown.Show(model, ended, std::chrono::milliseconds(o.interval_ms))) {
  }
  return kExitOk;
}

/// A signal that came; the shell's way to say so.
std::optional<int> Stopped(Interrupts& interrupts) {
  const std::optional<int> signal = interrupts.Wait(-1, Duration::zero());
  return signal ? std::optional(128 + *signal) : std::nullopt;
}

/// One frame with rates, which need two states.
int Once(const TopOptions& o, TopFeed& feed, TopModel& model, Interrupts& interrupts) {
  const SteadyClock clock;
  const TimePoint until = o.answer.until(clock.Now());
  while (model.states() < 2) {
    for (const std::string& event : feed.Take(std::chrono::milliseconds(100))) (void)model.Take(event);
    if (const std::optional<int> stopped = Stopped(interrupts)) return *stopped;
    if (!feed.status().ok()) return Fail(feed.status());
    if (clock.Now() > until)
      return Fail(absl::DeadlineExceededError(
          absl::StrFormat("%s has sent no state for %g s", o.url, Seconds(o.answer.patience()))));
  }
  Print(model);
  return kExitOk;
}

/// Waits for the first event. A server that is not there is said at once. Not 0: the exit code.
int Meet(const TopOptions& o, TopFeed& feed, std::vector<std::string>& first, Interrupts& interrupts) {
  const SteadyClock clock;
  const TimePoint until = o.answer.until(clock.Now());
  while (first.empty()) {
    first = feed.Take(std::chrono::milliseconds(100));
    if (!first.empty()) break;
    if (const std::optional<int> stopped = Stopped(interrupts)) return *stopped;
    if (const absl::Status status = feed.status(); !status.ok()) return Fail(status);
    if (clock.Now() > until)
      return Fail(absl::DeadlineExceededError(
          absl::StrFormat("%s takes the connection and says nothing for %g s", o.url, Seconds(o.answer.patience()))));
  }
  return kExitOk;
}

int FailRecord(const absl::Status& status) {
  return Fail(absl::Status(status.code(), StrCat("--record: ", View(status.message()))));
}

int Follow(const TopOptions& o, TopFeed& feed, TopModel& model, std::vector<std::string> events,
           std::optional<GrowingFile>& record) {
  const SteadyClock clock;
  const TimePoint begin = clock.Now();
  const std::chrono::milliseconds interval(o.interval_ms);
  ShownScreen shown;
  TimePoint printed = begin, heard = begin;
  for (;;) {
    if (!events.empty()) heard = clock.Now();
    for (const std::string& event : events) {
      (void)model.Take(event);  // of a newer router there may be others
      if (!record) continue;
      if (const absl::Status added = record->Add(event + "\n"); !added.ok()) return FailRecord(added);
    }
    const absl::Status status = feed.status();
    if (absl::IsFailedPrecondition(status)) return Fail(status);
    std::string note(status.message());
    if (note.empty() && clock.Now() - heard > kSilent)
      note = absl::StrFormat("%s is silent for %.0f s: this was before", o.url, Seconds(clock.Now() - heard));
    if (!shown.terminal() && !record && clock.Now() - printed >= std::chrono::seconds(1)) {
      printed = clock.Now();
      Print(model, note);
      std::printf("\n");
      if (std::ferror(stdout) != 0) break;  // whoever read it has left
    }
    if (!shown.Show(model, note, interval)) break;
    if (o.seconds > 0 && Seconds(clock.Now() - begin) >= o.seconds) break;
    events = feed.Take(Duration(0));
  }
  return kExitOk;
}

int Top(const TopOptions& o) {
  if (!o.replay.empty()) return Replay(o);
  absl::StatusOr<HttpUrl> url = ParseHttpUrl(o.url);
  if (!url.ok()) return FailUsage(absl::InvalidArgumentError(StrCat("--url: ", url.status().message())));
  url->files.ca = o.tls_ca;
  url->patience = o.answer.patience();
  std::optional<GrowingFile> record;
  if (!o.record.empty()) {
    absl::StatusOr<GrowingFile> file = GrowingFile::Open(o.record, /*keep=*/false);
    if (!file.ok()) return FailRecord(file.status());
    record.emplace(*std::move(file));
  }
  TopFeed feed(*url, o.api_key);
  TopModel model;
  std::vector<std::string> first;
  Interrupts interrupts;
  if (const int failed = Meet(o, feed, first, interrupts); failed != kExitOk) return failed;
  if (o.once) {
    for (const std::string& event : first) (void)model.Take(event);
    return Once(o, feed, model, interrupts);
  }
  return Follow(o, feed, model, std::move(first), record);
}

}  // namespace

Runner AddTop(CLI::App& app) {
  auto options = std::make_shared<TopOptions>();
  TopOptions& o = *options;
  app.add_option("--url", o.url, "a router's admin port")->capture_default_str()->envname("BATON_ADMIN_URL");
  CLI::Option* once = app.add_flag("--once", o.once, "print one frame and leave");
  app.add_option("--interval-ms", o.interval_ms, "between two frames")
      ->check(CLI::Range(50, 60000))
      ->capture_default_str();
  app.add_option("--seconds", o.seconds, "leave after so long (0 = with q)")->check(CLI::Range(0.0, 1e9));
  CLI::Option* record =
      app.add_option("--record", o.record, "write the events to this file, a line of JSON each")->excludes(once);
  app.add_option("--replay", o.replay, "show such a file instead of a router")->excludes(record);
  o.answer.AddTo(app);
  app.add_option("--api-key", o.api_key, "sent as a bearer token")->envname("BATON_API_KEY");
  app.add_option("--tls-ca", o.tls_ca, "authorities of an https:// router's certificate, PEM (default: the system's)");
  return [options] { return Top(*options); };
}

}  // namespace baton::cli
