#include "cli/ready_file.h"

#include <sys/stat.h>

#include <cstdio>
#include <fstream>

#include "common/errno_text.h"
#include "common/str_cat.h"

namespace baton::cli {

absl::Status WriteReadyFile(const std::string& path, const std::vector<std::pair<std::string, std::string>>& values) {
  if (path.empty()) return absl::OkStatus();
  const std::string part = path + ".part";
  std::ofstream out(part);
  for (const auto& [name, value] : values) out << name << "='" << value << "'\n";
  out.close();
  if (!out || std::rename(part.c_str(), path.c_str()) != 0) {
    return absl::InvalidArgumentError(StrCat("--ready-file: cannot write ", path, ": ", ErrnoText()));
  }
  return absl::OkStatus();
}

absl::Status CheckReadyFile(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  struct stat there{};  // another file takes its place: that of /dev/null, for everybody
  if (lstat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode))
    return absl::FailedPreconditionError(
        StrCat("--ready-file: ", path, " is there, and no file that could be replaced"));
  const std::string part = path + ".part";
  if (!std::ofstream(part))
    return absl::FailedPreconditionError(StrCat("--ready-file: cannot write ", path, ": ", ErrnoText()));
  std::remove(part.c_str());
  return absl::OkStatus();
}

absl::Status PrepareReadyFile(const std::string& path) {
  absl::Status status = CheckReadyFile(path);
  if (status.ok() && !path.empty()) std::remove(path.c_str());
  return status;
}

}  // namespace baton::cli
