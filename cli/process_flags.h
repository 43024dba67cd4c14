// The flags of one server process: its configs', --config FILE and --ready-file.
#pragma once

#include <string>

#include "cli/flag_set.h"

namespace baton::cli {

/// Where a process says that it is ready.
struct ReadyConfig {
  std::string ready_file;
};
template <class Visitor>
void VisitFields(ReadyConfig& c, Visitor&& field) {
  field("ready-file", c.ready_file, "", "written with the addresses once requests are served");
}

template <class Config>
struct ProcessFlags {
  Config config;
  ReadyConfig ready;
  FlagSet set;
  std::string config_file;

  /// Call once; `this` must outlive the parse.
  void AddTo(CLI::App& app, const std::string& heading) {
    set.Add(config, heading);
    set.Add(ready, "process");
    AddConfigFile(app, set, config_file);
    set.Attach(app);
  }
};

}  // namespace baton::cli
