// `baton config`: where values came from (main.cc hands `explain` to the server's own command), and the reference page.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/config_explain.h"
#include "cli/exit_code.h"
#include "common/str_cat.h"

namespace baton::cli {

Runner AddConfig(CLI::App& app) {
  auto what = std::make_shared<std::string>();
  app.add_option(
         "what", *what,
         "explain serve|router|worker FLAGS…: every value that this command would have, and where it came from; "
         "reference: docs/reference.md")
      ->required();
  return [what]() -> int {
    if (*what == "reference") {
      std::fputs(ReferencePage().c_str(), stdout);
      return kExitOk;
    }
    return FailUsage(absl::InvalidArgumentError(
        *what == "explain" ? "baton config explain wants serve, router or worker behind it, then its flags"
                           : StrCat("baton config ", *what, ": explain or reference")));
  };
}

}  // namespace baton::cli
