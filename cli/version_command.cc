#include <cstdio>

#include "cli/command.h"
#include "cli/exit_code.h"

namespace baton::cli {

const char kVersion[] = BATON_VERSION;

Runner AddVersion(CLI::App&) {
  return [] {
    std::printf("baton %s\n", kVersion);
    return static_cast<int>(kExitOk);
  };
}

}  // namespace baton::cli
