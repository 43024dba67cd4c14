// `baton`: one binary; each process of a cluster is one command of it.
#include <CLI/CLI.hpp>

#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/signals.h"

int main(int argc, char** argv) {
  using namespace baton::cli;  // NOLINT: the commands, here only
  BlockSignals();
  FollowParent();

  CLI::App app{"Baton serves large language models on a cluster whose prefill and decode run on different workers.",
               "baton"};
  app.require_subcommand(1);
  app.option_defaults()->always_capture_default(false);
  Runner runner;
  auto add = [&](const char* name, const char* what, Runner (*make)(CLI::App&)) {
    CLI::App* command = app.add_subcommand(name, what);
    Runner run = make(*command);
    command->final_callback([&runner, run] { runner = run; });
    return command;
  };
  add("serve", "router and workers on this machine", AddServe);
  add("router", "the OpenAI and gRPC front of workers that run elsewhere", AddRouter);
  add("worker", "one worker: loads the model, computes", AddWorker);
  add("rank", "one rank of a worker; workers start it", AddRank)->group("");
  add("chat", "talk to a running cluster", AddChat);
  add("doctor", "what this machine can do, and what would stop a cluster here", AddDoctor);
  add("version", "print the version", AddVersion);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const bool asked_for_help = e.get_exit_code() == 0;
    app.exit(e);
    return asked_for_help ? kExitOk : kExitUsage;
  }
  return runner();
}
