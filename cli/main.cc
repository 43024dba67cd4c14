// `baton`: each process of a cluster is one command of it, and so is each thing that users and operators ask of one.
#include "cli/beside.h"
#include "cli/completion_tables.h"
#include "cli/program.h"

int main(int argc, char** argv) {
  using namespace baton::cli;  // NOLINT: the commands, here only
  Program baton("baton",
                "Baton serves large language models on a cluster whose prefill and decode run on different workers.",
                kTools);
  baton.AddServer("serve", "router and workers on this machine", AddServe);
  baton.AddServer("router", "the OpenAI and gRPC front of workers that run elsewhere", AddRouter);
  baton.AddServer("worker", "one worker: loads the model, computes", AddWorker);
  baton.AddHidden("rank", "one rank of a worker; workers start it", AddRank);
  baton.AddHidden(kCompletionTables, "the flags of these commands, for the tools", AddCompletionTables);
  baton.AddScreen("chat", "talk to a running cluster", AddChat);
  for (const auto& [name, what] : kToolCommands) baton.AddElsewhere(name, what, kTools);
  baton.AddTool("certs", "a private authority and certificates for a trial of TLS", AddCerts);
  baton.AddTool("doctor", "what this machine can do, and what would stop a cluster here", AddDoctor);
  baton.AddTool("drain", "workers take no new requests, and what runs there ends", AddDrain);
  baton.AddTool("flip", "a worker changes its role in place: prefill to decode, or back", AddFlip);
  baton.AddScreen("top", "what a cluster does, as it does it", AddTop);
  baton.AddTool("config", "where each value of a server came from", AddConfig);
  baton.AddTool("completion", "a script that completes baton in bash, zsh or fish", AddCompletion);
  baton.AddTool("version", "print the version", AddVersion);
  return baton.Run(argc, argv);
}
