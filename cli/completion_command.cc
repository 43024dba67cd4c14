// `baton completion SHELL`: the parser's tables as a script.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli/beside.h"
#include "cli/command.h"
#include "cli/completion.h"
#include "cli/completion_tables.h"
#include "cli/exit_code.h"
#include "common/status.h"

namespace baton::cli {
namespace {

/// Of `baton` and, where it is there, of `baton-tools`: without it, its commands are completed and not their flags.
absl::StatusOr<std::vector<CompletedCommand>> AllCompletions(const CLI::App& baton) {
  std::vector<CompletedCommand> commands = CompletionsOf(baton);
  const absl::StatusOr<std::string> text = OutputOf(kTools, kCompletionTables);
  if (absl::IsNotFound(text.status())) return commands;
  BATON_RETURN_IF_ERROR(text.status());
  BATON_ASSIGN_OR_RETURN(const std::vector<CompletedCommand> tools, CompletionsOfText(*text));
  for (const CompletedCommand& tool : tools) {
    const auto its = std::ranges::find(commands, tool.name, &CompletedCommand::name);
    if (its != commands.end()) *its = tool;
  }
  return commands;
}

}  // namespace

Runner AddCompletion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  app.add_option("shell", *shell,
                 "bash: source <(baton completion bash); zsh: into a file _baton of $fpath; fish: baton "
                 "completion fish > ~/.config/fish/completions/baton.fish")
      ->required();
  return [&app, shell]() -> int {
    absl::StatusOr<std::vector<CompletedCommand>> commands = AllCompletions(*app.get_parent());
    if (!commands.ok()) return Fail(commands.status());
    std::vector<std::string> names;
    for (const CompletedCommand& c : *commands) names.push_back(c.name);
    for (CompletedCommand& c : *commands) {
      if (c.name == "help") c.words = names;
      if (c.name == "config") c.words = {"explain", "reference"};
      if (c.name == "completion") c.words = {"bash", "zsh", "fish"};
    }
    const absl::StatusOr<std::string> script = CompletionScript(*shell, *commands);
    if (!script.ok()) return FailUsage(script.status());
    std::fputs(script->c_str(), stdout);
    return kExitOk;
  };
}

}  // namespace baton::cli
