#include "cli/completion_tables.h"

#include <CLI/CLI.hpp>
#include <cstdio>

#include "cli/command.h"
#include "cli/exit_code.h"
#include "common/json.h"

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

std::vector<CompletedCommand> CompletionsOf(const CLI::App& program) {
  std::vector<CompletedCommand> out;
  for (const CLI::App* one : program.get_subcommands([](const CLI::App* a) { return !a->get_group().empty(); }))
    out.push_back(CompletedOf(*one));
  return out;
}

std::string CompletionsText(const std::vector<CompletedCommand>& commands) {
  nlohmann::json out = nlohmann::json::array();
  for (const CompletedCommand& c : commands) {
    nlohmann::json flags = nlohmann::json::array();
    for (const CompletedFlag& f : c.flags)
      flags.push_back({{"name", f.name}, {"values", f.values}, {"takes_value", f.takes_value}, {"help", f.help}});
    out.push_back({{"name", c.name}, {"help", c.help}, {"flags", flags}});
  }
  return out.dump();
}

absl::StatusOr<std::vector<CompletedCommand>> CompletionsOfText(std::string_view text) try {
  std::vector<CompletedCommand> out;
  for (const nlohmann::json& c : nlohmann::json::parse(text)) {
    out.push_back({.name = c.at("name"), .help = c.at("help")});
    for (const nlohmann::json& f : c.at("flags")) {
      out.back().flags.push_back({.name = f.at("name"),
                                  .values = f.at("values").get<std::vector<std::string>>(),
                                  .takes_value = f.at("takes_value"),
                                  .help = f.at("help")});
    }
  }
  return out;
} catch (const nlohmann::json::exception& e) {
  return absl::InvalidArgumentError(e.what());
}

Runner AddCompletionTables(CLI::App& app) {
  return [&app] {
    std::fputs(CompletionsText(CompletionsOf(*app.get_parent())).c_str(), stdout);
    return static_cast<int>(kExitOk);
  };
}

}  // namespace baton::cli
