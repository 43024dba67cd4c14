// A program of commands, from the first line of main to the exit code: what `baton` and `baton-tools` have in common.
#pragma once

#include <memory>

#include "cli/command.h"

namespace baton::cli {

/// One per process, on its main thread.
class Program {
 public:
  /// Takes the process over: its standard streams, signals and the stacks of threads to come. First of all in main.
  /// `what` and `name` are for the help. `other`: the program beside this one, whose commands are commands of `name`,
  /// too.
  Program(const char* name, const char* what, const char* other);
  ~Program();

  using Make = Runner(CLI::App& command);
  /// A command that serves until it is told to stop.
  void AddServer(const char* name, const char* what, Make* make);
  /// As AddServer, for other commands of ours to start: the help is silent about it.
  void AddHidden(const char* name, const char* what, Make* make);
  /// One that takes the terminal, and signals with it.
  void AddScreen(const char* name, const char* what, Make* make);
  /// One that a signal ends, and whose output is what it is for.
  void AddTool(const char* name, const char* what, Make* make);
  /// A command of `program`, which lies beside this one and is started instead.
  void AddElsewhere(const char* name, const char* what, const char* program);

  /// Parses, runs what was asked for, and returns the exit code.
  int Run(int argc, char** argv);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace baton::cli
