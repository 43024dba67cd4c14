#include <cstdio>

#include "cli/command.h"
#include "cli/exit_code.h"
#include "common/kv_digest.h"
#include "common/str_cat.h"

namespace baton::cli {

const char kVersion[] = BATON_VERSION;

std::string VersionText() {
  return StrCat("baton ", kVersion, kMakesKvDigests ? "" : " without KV digests, for measuring alone");
}

Runner AddVersion(CLI::App&) {
  return [] {
    std::printf("%s\n", VersionText().c_str());
    return static_cast<int>(kExitOk);
  };
}

}  // namespace baton::cli
