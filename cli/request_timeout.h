// --request-timeout-ms of the commands that ask a router.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>

#include "cli/http_client.h"
#include "common/clock.h"

namespace baton::cli {

struct RequestTimeout {
  int ms = std::chrono::duration_cast<std::chrono::duration<int, std::milli>>(kRequestPatience).count();

  /// `this` must outlive the parse.
  void AddTo(CLI::App& app, const char* help = "an answer of the router may take so long (0 = as long as it takes)") {
    app.add_option("--request-timeout-ms", ms, help)->check(CLI::Range(0, 86'400'000))->capture_default_str();
  }
  Duration patience() const { return std::chrono::milliseconds(ms); }
  TimePoint until(TimePoint now) const { return ms > 0 ? now + patience() : TimePoint::max(); }
};

}  // namespace baton::cli
