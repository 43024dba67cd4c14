// The flags of `baton serve`, parsed without starting anything.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cli/flag_set.h"
#include "cli/serve_config.h"
#include "cli/vllm_flags.h"
#include "common/str_cat.h"
#include "router/router_config.h"
#include "worker/worker_config.h"

namespace baton::cli {

struct ParsedServe {
  ParsedServe() {
    set.Add(serve, "serve");
    set.Add(router, "router", {"model", "served-model-name", "worker"});
    set.Add(worker, "worker", {"host", "port", "model", "served-model-name", "role", "worker-id"});
    set.Attach(app, "model");
  }
  /// What the parser says to a command line after its translation; empty: it is taken.
  std::string Parse(std::vector<std::string> words) {
    words.insert(words.begin(), "serve");
    auto out = TranslateArguments(std::move(words), notes);
    if (!out.ok()) return std::string(out.status().message());
    out->erase(out->begin());
    std::reverse(out->begin(), out->end());
    try {
      app.parse(*out);
    } catch (const CLI::ParseError& error) {
      return StrCat("unknown: ", error.what());
    }
    return std::string(set.status().message());
  }
  CLI::App app;
  ServeConfig serve;
  router::RouterConfig router;
  worker::WorkerConfig worker;
  FlagSet set;
  std::vector<std::string> notes;
};

}  // namespace baton::cli
