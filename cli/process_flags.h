// The flags of one server process: its config's, --config FILE and --ready-file.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cli/flag_set.h"

namespace baton::cli {

template <class Config>
struct ProcessFlags {
  Config config;
  FlagSet set;
  std::string ready_file;
  std::string config_file;

  /// Call once; `this` must outlive the parse.
  void AddTo(CLI::App& app, const std::string& heading, const std::string& ready_help) {
    set.Add(config, heading);
    AddConfigFile(app, set, config_file);
    set.Attach(app);
    app.add_option("--ready-file", ready_file, ready_help);
  }
};

}  // namespace baton::cli
