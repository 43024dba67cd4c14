// The commands of `baton`. Each registers its flags with CLI11 and returns what runs it; main dispatches.
#pragma once

#include <functional>
#include <string>

namespace CLI {
class App;
}

namespace baton::cli {

/// Runs a parsed command; the value is the process's exit code.
using Runner = std::function<int()>;

Runner AddServe(CLI::App& app);
Runner AddRouter(CLI::App& app);
Runner AddWorker(CLI::App& app);
Runner AddRank(CLI::App& app);
Runner AddChat(CLI::App& app);
Runner AddBench(CLI::App& app);
Runner AddCerts(CLI::App& app);
Runner AddCompletion(CLI::App& app);
Runner AddConfig(CLI::App& app);
Runner AddDoctor(CLI::App& app);
Runner AddDrain(CLI::App& app);
Runner AddFlip(CLI::App& app);
Runner AddPlan(CLI::App& app);
Runner AddSim(CLI::App& app);
Runner AddTop(CLI::App& app);
Runner AddVersion(CLI::App& app);

/// The commands of `baton-tools`.
struct ToolCommand {
  const char *name, *what;
};
inline constexpr ToolCommand kToolCommands[] = {{"bench", "offer requests to an OpenAI server and measure the answers"},
                                                {"plan", "what a worker would take, what fits, and what limits it"},
                                                {"sim", "a cluster that has not been built, in virtual time"}};
/// Prints what completes these commands, for CompletionsOf (cli/completion_tables.h).
Runner AddCompletionTables(CLI::App& app);

/// "0.1.0"
extern const char kVersion[];
/// "baton 0.1.0", and what is particular about this build.
std::string VersionText();

}  // namespace baton::cli
