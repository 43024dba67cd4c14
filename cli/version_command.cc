#include <cstdio>

#include "cli/command.h"
#include "cli/exit_code.h"
#include "common/kv_digest.h"

namespace baton::cli {

const char kVersion[] = BATON_VERSION;

Runner AddVersion(CLI::App&) {
  return [] {
    std::printf("baton %s%s\n", kVersion, kMakesKvDigests ? "" : " without KV digests, for measuring alone");
    return static_cast<int>(kExitOk);
  };
}

}  // namespace baton::cli
