#include <cstdio>
#include <string_view>

#include "cli/command.h"
#include "cli/exit_code.h"
#include "common/kv_digest.h"

namespace baton::cli {

const char kVersion[] = BATON_VERSION;

Runner AddVersion(CLI::App&) {
  return [] {
    const bool whole = kKvDigestName == std::string_view(kKvDigestUnnamed);
    std::printf("baton %s%s\n", kVersion, whole ? "" : " without KV digests, for measuring alone");
    return static_cast<int>(kExitOk);
  };
}

}  // namespace baton::cli
