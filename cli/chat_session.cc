#include "cli/chat_session.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/exit_code.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/str_cat.h"

namespace baton::cli {
namespace {

constexpr Duration kDrainPoll = std::chrono::seconds(1);      // how often a server is asked whether it drains
constexpr Duration kDrainPatience = std::chrono::seconds(3);  // for the answer to end by itself

constexpr char kHelp[] =
    "/help            this\n"
    "/clear           forget the conversation, keep the system message\n"
    "/system [TEXT]   another system message (none), and a new conversation\n"
    "/stats           tokens, rates and stages after each answer: on or off\n"
    "/quit            leave; so does Ctrl-D\n"
    "//…              a message that begins with /\n"
    "Ctrl-C ends an answer, or clears the line. Alt-Enter begins a new line of the same message; pasted text is one\n"
    "message. Up and Down find earlier messages, Ctrl-R searches them.\n";

void Print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

/// What is no part of the answer: beside it on a terminal, apart from it where the answer goes into a file or a pipe.
void PrintNote(std::string_view text) {
  if (isatty(STDOUT_FILENO) != 0) return Print(text);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

void PrintStats(const ChatStats& s) {
  const double decode_ms = s.total_ms - s.first_token_ms;
  const double rate = s.completion_tokens > 1 && decode_ms > 0 ? 1000.0 * (s.completion_tokens - 1) / decode_ms : 0;
  std::printf("[%d prompt tokens (%d cached), %d generated · first token %.0f ms · %.1f tokens/s]\n", s.prompt_tokens,
              s.cached_tokens, s.completion_tokens, s.first_token_ms, rate);
  std::vector<std::string> stages;
  for (const auto& [name, ms] : s.stages) {
    if (ms > 0) stages.push_back(absl::StrFormat("%s %.1f ms", name, ms));
  }
  if (!stages.empty()) std::printf("[stages: %s]\n", absl::StrJoin(stages, ", ").c_str());
  std::fflush(stdout);
}

// Asks a server now and then, on a thread of its own, whether it drains.
class DrainWatch {
 public:
  explicit DrainWatch(ChatClient& client) : client_(client), thread_([this] { Run(); }) {}
  ~DrainWatch() {
    stop_.Cancel();
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  DrainWatch(const DrainWatch&) = delete;
  DrainWatch& operator=(const DrainWatch&) = delete;

  bool draining() const { return draining_; }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    while (!ended_ && !draining_) {
      lock.unlock();
      draining_ = client_.Draining(stop_);
      lock.lock();
      wake_.wait_for(lock, kDrainPoll, [this] { return ended_; });
    }
  }

  ChatClient& client_;
  Cancellation stop_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ended_ = false;
  std::atomic<bool> draining_ = false;
  std::thread thread_;
};

}  // namespace

std::optional<int> ChatSession::WhileCalling(const std::function<void()>& call, Cancellation& stop,
                                             const std::function<void()>& each_second) {
  const int ended = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  BATON_CHECK(ended >= 0);
  std::thread caller([&] {
    call();
    eventfd_write(ended, 1);
  });
  std::optional<int> last;
  for (eventfd_t value = 0; eventfd_read(ended, &value) != 0;) {
    if (const std::optional<int> signal = interrupts_.Wait(ended, kDrainPoll)) {
      last = signal;
      stop.Cancel();
    } else {
      each_second();
    }
  }
  caller.join();
  close(ended);
  return last;
}

ChatSession::ChatSession(ChatClient& client, Interrupts& interrupts, ChatOptions options, std::string system,
                         bool stats)
    : client_(client),
      interrupts_(interrupts),
      options_(std::move(options)),
      system_(std::move(system)),
      stats_(stats) {
  Clear();
}

void ChatSession::Clear() {
  turns_.clear();
  if (!system_.empty()) turns_.push_back({"system", system_});
}

absl::StatusOr<std::string> ChatSession::Greet() {
  absl::StatusOr<std::string> model = absl::UnknownError("");
  Cancellation stop;
  signal_ = WhileCalling([&] { model = client_.Greet(options_, stop); }, stop, [] {});
  return model;
}

absl::StatusOr<ChatStats> ChatSession::AskInterruptibly(std::string& answer, std::string& cut_by) {
  const SteadyClock clock;
  Cancellation stop;
  absl::StatusOr<ChatStats> result = absl::UnknownError("");
  const auto on_text = [&](std::string_view text) {
    answer.append(text);
    Print(text);
  };
  std::optional<DrainWatch> watch;
  std::optional<TimePoint> cut_at;
  const auto watch_drain = [&] {
    if (!watch) {
      watch.emplace(client_);
    } else if (watch->draining() && !cut_at) {
      cut_at = clock.Now() + kDrainPatience;
    } else if (cut_at && clock.Now() >= *cut_at) {
      cut_by = "cut off: the server is shutting down";
      stop.Cancel();
    }
  };
  signal_ = WhileCalling([&] { result = client_.Ask(turns_, options_, on_text, stop); }, stop, watch_drain);
  if (signal_) cut_by = "stopped";
  return result;
}

absl::Status ChatSession::Ask(const std::string& message) {
  turns_.push_back({"user", message});
  std::string answer, cut_by;
  absl::StatusOr<ChatStats> stats = AskInterruptibly(answer, cut_by);
  if (!answer.empty()) Print("\n");
  if (!cut_by.empty() && !stats.ok()) {
    PrintNote(StrCat("[", cut_by, "]\n"));
    stats = ChatStats{};
  } else if (!stats.ok()) {
    turns_.pop_back();
    return stats.status();
  } else if (stats->cut) {
    PrintNote(options_.max_tokens > 0 ? StrCat("[cut off after ", stats->completion_tokens, " tokens: --max-tokens]\n")
                                      : "[cut off: the context is full; /clear begins a new one]\n");
  }
  turns_.push_back({"assistant", answer});
  if (stats_ && cut_by.empty()) PrintStats(*stats);
  return absl::OkStatus();
}

int ChatSession::AskOnce(const std::string& message) {
  const absl::Status status = Ask(message);
  if (signal_) return 128 + *signal_;
  return status.ok() ? static_cast<int>(kExitOk) : Fail(status);
}

ChatSession::Next ChatSession::Command(const std::string& line) {
  const size_t space = line.find(' ');
  const std::string name = line.substr(0, space), rest = space == std::string::npos ? "" : line.substr(space + 1);
  if (name == "/quit" || name == "/exit" || name == "/bye") return Next::kQuit;
  if (name == "/help" || name == "/?") {
    Print(kHelp);
  } else if (name == "/clear") {
    Clear();
    Print("[the conversation is forgotten]\n");
  } else if (name == "/system") {
    system_ = rest;
    Clear();
    Print(rest.empty() ? "[no system message; a new conversation]\n" : "[system message set; a new conversation]\n");
  } else if (name == "/stats") {
    stats_ = !stats_;
    Print(stats_ ? "[stats are on]\n" : "[stats are off]\n");
  } else {
    Print(StrCat("No command is called ", name, ": /help lists them; // begins a message with /.\n"));
  }
  return Next::kGoOn;
}

int ChatSession::Converse(LineEditor& editor) {
  while (true) {
    Input input = editor.Read();
    if (input.kind == Input::kInterrupted && editor.is_terminal()) continue;
    if (input.kind == Input::kInterrupted) return 128 + SIGINT;
    if (input.kind == Input::kTerminated) return 128 + SIGTERM;
    if (input.kind == Input::kEnd) return kExitOk;
    std::string& text = input.text;
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) continue;
    const bool command = text[0] == '/' && !text.starts_with("//") && text.find('\n') == std::string::npos;
    if (command && Command(text) == Next::kQuit) return kExitOk;
    if (command) continue;
    if (text.starts_with("//")) text.erase(0, 1);
    const absl::Status status = Ask(text);
    if (signal_ && (*signal_ == SIGTERM || !editor.is_terminal())) return 128 + *signal_;
    if (!status.ok() && !editor.is_terminal()) return Fail(status);
    if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    if (editor.is_terminal()) Print("\n");
  }
}

}  // namespace baton::cli
