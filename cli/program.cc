#include "cli/program.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "cli/beside.h"
#include "cli/completion_tables.h"
#include "cli/environment.h"
#include "cli/exit_code.h"
#include "cli/signals.h"
#include "cli/vllm_flags.h"
#include "common/errno_text.h"
#include "common/nearest_name.h"
#include "common/status.h"
#include "common/str_cat.h"

extern char** environ;

namespace baton::cli {
namespace {

/// Threads have 8 MiB at least: what refuses grammars that lead too deep counts on it (text/rust/src/chains.rs). glibc
/// gives them what the shell's limit says, and 2 MiB where that is "unlimited".
void GiveThreadsStacks() {
  constexpr size_t kBytes = 8 << 20;
  pthread_attr_t attributes;
  size_t bytes = 0;
  if (pthread_getattr_default_np(&attributes) != 0) return;
  if (pthread_attr_getstacksize(&attributes, &bytes) == 0 && bytes < kBytes &&
      pthread_attr_setstacksize(&attributes, kBytes) == 0)
    pthread_setattr_default_np(&attributes);
  pthread_attr_destroy(&attributes);
}

/// Standard input, output and error are open; else a file or a connection would take the place of the one that is not,
/// and get what is printed. To the three that are opened here nothing can be written, from them nothing be read.
void HoldStandardStreams() {
  for (const auto& [fd, how] :
       {std::pair{STDIN_FILENO, O_WRONLY}, {STDOUT_FILENO, O_RDONLY}, {STDERR_FILENO, O_RDONLY}}) {
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) open("/dev/null", how);
  }
}

/// The names of a command's options, without dashes, or of their variables.
std::vector<std::string> NamesOf(const CLI::App& command, bool variables) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    if (variables && !option->get_envname().empty()) names.push_back(option->get_envname());
    if (!variables) names.insert(names.end(), option->get_lnames().begin(), option->get_lnames().end());
  }
  return names;
}

/// The commands of the program beside this one; none where it cannot be asked.
std::vector<CompletedCommand> CommandsOf(const char* other) {
  absl::StatusOr<std::string> text = OutputOf(other, kCompletionTables);
  if (!text.ok()) return {};
  return CompletionsOfText(*text).value_or(std::vector<CompletedCommand>{});
}

/// " (--port is a flag of baton serve and baton worker)"; empty: no command of this program or the other has it.
std::string WhoHas(const CLI::App& app, const char* other, const std::string& name) {
  std::vector<std::string> commands;
  for (const CLI::App* command : app.get_subcommands({})) {
    const std::vector<std::string> names = NamesOf(*command, false);
    if (!command->get_group().empty() && std::ranges::count(names, name) > 0)
      commands.push_back("baton " + command->get_name());
  }
  for (const CompletedCommand& command : CommandsOf(other)) {
    if (std::ranges::count(command.flags, "--" + name, &CompletedFlag::name) > 0)
      commands.push_back("baton " + command.name);
  }
  if (commands.empty()) return "";
  const std::string last = commands.back();
  commands.pop_back();
  return StrCat(" (--", name, " is a flag of ", absl::StrJoin(commands, ", "), commands.empty() ? "" : " and ", last,
                ")");
}

/// One line: what is wrong with the command line, and what was probably meant.
int FailParse(const CLI::App& app, const char* other, const CLI::ParseError& error) {
  std::string message = error.what();
  const std::vector<CLI::App*> given = app.get_subcommands();
  const std::vector<std::string> left = app.remaining(/*recurse=*/true);
  if (given.empty() && !left.empty() && !left[0].starts_with("-")) {
    std::vector<std::string> commands;
    for (const CLI::App* command : app.get_subcommands({})) commands.push_back(command->get_name());
    message = StrCat("No command is called ", left[0], DidYouMean(left[0], commands, ""));
  }
  if (!given.empty() && !left.empty())
    message = StrCat("baton ", given[0]->get_name(), " does not take ", absl::StrJoin(left, " "));
  for (const std::string& one : left) {
    if (!one.starts_with("--")) continue;
    const std::string name = one.substr(2, one.find('=') - 2);
    const std::vector<std::string> names = NamesOf(given.empty() ? app : *given[0], false);
    if (!given.empty() && std::ranges::count(names, name) > 0) {
      message += StrCat(" before its name: --", name, " stands behind it");
      continue;
    }
    const std::string whose = WhoHas(app, other, name);
    message += whose.empty() ? DidYouMean(name, names, "--") : whose;
  }
  return FailUsage(absl::InvalidArgumentError(
      StrCat(message, ". `baton", given.empty() ? "" : " " + given[0]->get_name(), " --help` says what there is")));
}

/// A variable that looks like a server's flag and is none would be ignored in silence.
void WarnOfUnknownVariables(const CLI::App& app) {
  constexpr std::string_view kPrefix = "BATON_";
  const std::string name = app.get_subcommands().front()->get_name();
  if (name != "serve" && name != "router" && name != "worker") return;
  std::vector<std::string> known = {"BATON_MAX_ISA", "BATON_CACHE_DIR", "BATON_BINARY",
                                    "BATON_HTTP",    "BATON_GRPC",      "BATON_ADMIN"};
  std::vector<std::string> flags;
  for (const CLI::App* command : app.get_subcommands({})) {
    const std::vector<std::string> more = NamesOf(*command, true);
    flags.insert(flags.end(), more.begin(), more.end());
  }
  known.insert(known.end(), flags.begin(), flags.end());
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string_view variable(*e, std::string_view(*e).find('='));
    if (!variable.starts_with(kPrefix) || std::ranges::count(known, variable) > 0 || IsVllmVariable(variable)) continue;
    std::fprintf(stderr, "baton: warning: %s is set, but no flag reads it%s\n", std::string(variable).c_str(),
                 DidYouMean(variable, flags, "").c_str());
  }
}

/// `baton config explain serve …` is `baton serve … --explain-config`.
std::vector<std::string> WithExplain(std::vector<std::string> words) {
  if (words.size() < 3 || words[0] != "config" || words[1] != "explain") return words;
  if (words[2] != "serve" && words[2] != "router" && words[2] != "worker") return words;
  words.erase(words.begin(), words.begin() + 2);
  words.push_back("--explain-config");
  return words;
}

/// Variables of vLLM's flags stand before the words of the command line, which win. Those whom a server started were
/// told what became of them.
absl::StatusOr<std::vector<std::string>> WithVariables(std::vector<std::string> words,
                                                       std::vector<std::string>& notes) {
  BATON_ASSIGN_OR_RETURN(words, TranslateArguments(std::move(words), notes));
  const bool server = !words.empty() && (words[0] == "serve" || words[0] == "router" || words[0] == "worker");
  if (!server || ParentPid()) return words;
  std::vector<std::string> variables;
  for (char** e = environ; *e != nullptr; ++e) variables.emplace_back(*e);
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> more, TranslateVariables(variables, notes));
  words.insert(words.begin() + 1, more.begin(), more.end());
  return words;
}

/// Options whose name, heading or help has every word.
int PrintOptionsAbout(const CLI::App& command, const std::vector<std::string>& words) {
  const CLI::Formatter formatter;
  std::string out;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty()) continue;
    const std::string text = absl::AsciiStrToLower(
        StrCat(option->get_name(false, true), " ", option->get_group(), " ", option->get_description()));
    const auto has = [&](const std::string& word) {
      return text.find(absl::AsciiStrToLower(word)) != std::string::npos;
    };
    if (std::ranges::all_of(words, has)) out += formatter.make_option(option, false);
  }
  if (out.empty()) {
    return FailUsage(absl::InvalidArgumentError(
        StrCat("No flag of baton ", command.get_name(), " has to do with \"", absl::StrJoin(words, " "), "\"")));
  }
  std::fputs(out.c_str(), stdout);
  return kExitOk;
}

// `baton help` is `baton --help`, `baton help serve` is `baton serve --help`, `baton help serve kv` what has to do with
// KV in it.
Runner AddHelp(CLI::App& command) {
  auto topic = std::make_shared<std::string>();
  auto words = std::make_shared<std::vector<std::string>>();
  command.add_option("command", *topic, "the command that is explained");
  command.add_option("words", *words, "only flags that have to do with all of these");
  return [&command, topic, words]() -> int {  // app->help() would explain this very command
    CLI::App* const app = command.get_parent();
    if (topic->empty()) {
      std::fputs(app->get_formatter()->make_help(app, "", CLI::AppFormatMode::Normal).c_str(), stdout);
      return kExitOk;
    }
    std::vector<std::string> names;
    for (const CLI::App* one : app->get_subcommands([](CLI::App*) { return true; })) names.push_back(one->get_name());
    if (std::ranges::count(names, *topic) == 0) {
      return FailUsage(
          absl::InvalidArgumentError(StrCat("No command is called ", *topic, DidYouMean(*topic, names, ""))));
    }
    if (!words->empty()) return PrintOptionsAbout(*app->get_subcommand(*topic), *words);
    std::fputs(app->get_subcommand(*topic)->help("baton").c_str(), stdout);
    return kExitOk;
  };
}

/// What was printed is on its way; else the disk is full, say. Whoever reads may leave when he has seen enough.
int FailIfUnprinted(int code) {
  errno = 0;
  std::cout.flush();
  const bool printed = std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good();
  const std::string why = errno == 0 ? "" : ": " + ErrnoText();
  pollfd reader{STDOUT_FILENO, POLLOUT, 0};
  const bool left = poll(&reader, 1, 0) == 1 && (reader.revents & (POLLERR | POLLHUP)) != 0;
  if (printed || left || code != kExitOk) return code;
  return Fail(absl::ResourceExhaustedError(StrCat("cannot write to standard output", why)));
}

/// A command that waits for nothing of its own: a signal ends it, and what it prints is what it is for.
int RunTool(const Runner& run) {
  LetSignalsEnd();
  return FailIfUnprinted(run());
}

}  // namespace

struct Program::Parts {
  Parts(const char* name, const char* what, const char* its_other) : app(what, name), other(its_other) {}

  CLI::App app;
  const char* const other;                       // the program beside this one
  std::map<std::string, const char*> elsewhere;  // a command → the program that has it
  Runner runner;
  bool explains = false;

  CLI::App* Add(const char* name, const char* what, Make* make, std::function<Runner(Runner)> around) {
    CLI::App* const command = app.add_subcommand(name, what);
    command->final_callback([this, run = make(*command), around = std::move(around)] { runner = around(run); });
    return command;
  }
  CLI::App* AddServer(const char* name, const char* what, Make* make) {
    return Add(name, what, make, [this](Runner run) -> Runner {
      return [this, run = std::move(run)] { return explains ? RunTool(run) : run(); };
    });
  }
  /// The command that is asked for or explained, where another program has it.
  auto ElsewhereOf(const std::vector<std::string>& words) const {
    const size_t at = !words.empty() && words[0] == "help" ? 1 : 0;
    return words.size() > at ? elsewhere.find(words[at]) : elsewhere.end();
  }
};

Program::Program(const char* name, const char* what, const char* other) {
  HoldStandardStreams();
  GiveThreadsStacks();
  BlockSignals();
  FollowParent();
  // Debian's abseil looks for cycles at every lock that is taken, gRPC's locks among them: 4 % of a small request's
  // time.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  parts_ = std::make_unique<Parts>(name, what, other);
  parts_->app.require_subcommand(1);
  parts_->app.option_defaults()->always_capture_default(false);
  parts_->app.set_version_flag("--version", VersionText());
}

Program::~Program() = default;

void Program::AddServer(const char* name, const char* what, Make* make) { parts_->AddServer(name, what, make); }

void Program::AddHidden(const char* name, const char* what, Make* make) {
  parts_->AddServer(name, what, make)->group("");
}

void Program::AddScreen(const char* name, const char* what, Make* make) {
  parts_->Add(name, what, make,
              [](Runner run) -> Runner { return [run = std::move(run)] { return FailIfUnprinted(run()); }; });
}

void Program::AddTool(const char* name, const char* what, Make* make) {
  parts_->Add(name, what, make, [](Runner run) -> Runner { return [run = std::move(run)] { return RunTool(run); }; });
}

void Program::AddElsewhere(const char* name, const char* what, const char* program) {
  parts_->app.add_subcommand(name, what);
  parts_->elsewhere.emplace(name, program);
}

int Program::Run(int argc, char** argv) {
  parts_->Add("help", "what a command takes", AddHelp,
              [](Runner run) -> Runner { return [run = std::move(run)] { return RunTool(run); }; });
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (const auto found = parts_->ElsewhereOf(words); found != parts_->elsewhere.end()) {
    const auto& [command, program] = *found;
    const absl::Status status = Become(program, argv);
    return Fail(
        absl::UnavailableError(StrCat("`baton ", command, "` is a command of ", program,
                                      ", which cannot be started: ", status.message(), " (`make tools` builds it)")));
  }
  std::vector<std::string> notes;
  absl::StatusOr<std::vector<std::string>> arguments = WithVariables(WithExplain(words), notes);
  if (!arguments.ok()) return FailUsage(arguments.status());
  parts_->explains = std::ranges::count(*arguments, "--explain-config") > 0;
  for (const std::string& note : notes) std::fprintf(stderr, "baton: %s\n", note.c_str());
  std::ranges::reverse(*arguments);  // CLI11 takes them from the back
  CLI::App& app = parts_->app;
  try {
    app.parse(*std::move(arguments));
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() != 0) return FailParse(app, parts_->other, e);
    return RunTool([&] {
      app.exit(e);  // prints the help that was asked for
      return kExitOk;
    });
  } catch (const std::exception& e) {  // of a value that CLI11 itself reads: --no-flag=99999999999999999999
    return FailUsage(absl::InvalidArgumentError(StrCat("a value cannot be read: ", e.what())));
  }
  if (!ParentPid()) WarnOfUnknownVariables(app);
  return parts_->runner();
}

}  // namespace baton::cli
