// `baton-tools`: the commands of `baton` that no process of a cluster needs. `baton` starts it for them; it is a
// program of its own because these are a sixth of all there is to build.
#include <iterator>

#include "cli/beside.h"
#include "cli/completion_tables.h"
#include "cli/program.h"

int main(int argc, char** argv) {
  using namespace baton::cli;  // NOLINT: the commands, here only
  Program tools("baton", "The tools of baton, which starts this program for them.", kServing);
  constexpr Program::Make* kMake[] = {AddBench, AddPlan, AddSim};
  for (size_t i = 0; i < std::size(kMake); ++i) tools.AddTool(kToolCommands[i].name, kToolCommands[i].what, kMake[i]);
  tools.AddTool(kCompletionTables, "the flags of these commands, for `baton completion`", AddCompletionTables);
  return tools.Run(argc, argv);
}
