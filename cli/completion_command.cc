// `baton completion SHELL`: the parser's tables as a script.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/completion.h"
#include "cli/exit_code.h"

namespace baton::cli {
namespace {

CompletedCommand CompletedOf(const CLI::App& command) {
  CompletedCommand out{.name = command.get_name(), .help = command.get_description()};
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty() || option->get_lnames().empty()) continue;
    const bool takes_value = option->get_type_size() > 0;
    for (const std::string& name : option->get_lnames()) {
      out.flags.push_back({.name = "--" + name,
                           .values = takes_value ? ValuesOfHelp(option->get_description()) : std::vector<std::string>{},
                           .takes_value = takes_value,
                           .help = option->get_description()});
    }
  }
  return out;
}

}  // namespace

Runner AddCompletion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  app.add_option("shell", *shell,
                 "bash: source <(baton completion bash); zsh: into a file _baton of $fpath; fish: baton "
                 "completion fish > ~/.config/fish/completions/baton.fish")
      ->required();
  return [&app, shell]() -> int {
    std::vector<CompletedCommand> commands;
    std::vector<std::string> names;
    const CLI::App& baton = *app.get_parent();
    for (const CLI::App* one : baton.get_subcommands([](const CLI::App* a) { return !a->get_group().empty(); })) {
      commands.push_back(CompletedOf(*one));
      names.push_back(one->get_name());
    }
    for (CompletedCommand& c : commands) {
      if (c.name == "help") c.words = names;
      if (c.name == "config") c.words = {"explain", "reference"};
      if (c.name == "completion") c.words = {"bash", "zsh", "fish"};
    }
    const absl::StatusOr<std::string> script = CompletionScript(*shell, commands);
    if (!script.ok()) return FailUsage(script.status());
    std::fputs(script->c_str(), stdout);
    return kExitOk;
  };
}

}  // namespace baton::cli
