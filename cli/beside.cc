#include "cli/beside.h"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_replace.h"
#include "cli/supervisor.h"
#include "common/errno_text.h"
#include "common/status.h"
#include "common/str_cat.h"

namespace baton::cli {

absl::StatusOr<std::string> Beside(const char* program) {
  std::error_code error;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::UnavailableError(StrCat("/proc/self/exe cannot be read: ", error.message()));
  const std::filesystem::path path = own.parent_path() / program;
  if (access(path.c_str(), X_OK) != 0) return absl::NotFoundError(StrCat(path.string(), ": ", ErrnoText()));
  return path.string();
}

absl::Status Become(const char* program, char** argv) {
  BATON_ASSIGN_OR_RETURN(const std::string path, Beside(program));
  execv(path.c_str(), argv);
  return absl::UnavailableError(StrCat(path, ": ", ErrnoText()));
}

absl::StatusOr<std::string> OutputOf(const char* program, const char* argument) {
  BATON_ASSIGN_OR_RETURN(const std::string path, Beside(program));
  std::fflush(stdout);
  std::FILE* const pipe = popen(StrCat("'", absl::StrReplaceAll(path, {{"'", "'\\''"}}), "' ", argument).c_str(), "re");
  if (pipe == nullptr) return absl::UnavailableError(StrCat(path, ": ", ErrnoText()));
  std::string out;
  std::array<char, 4096> some;
  while (const size_t n = std::fread(some.data(), 1, some.size(), pipe)) out.append(some.data(), n);
  if (const int status = pclose(pipe); status != 0)
    return absl::UnavailableError(StrCat(path, " ", argument, " ended with exit code ", ExitCodeOfWaitStatus(status)));
  return out;
}

}  // namespace baton::cli
