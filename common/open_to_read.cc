#include "common/open_to_read.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "common/errno_text.h"
#include "common/str_cat.h"

namespace baton {
namespace {

const dev_t kNothing = makedev(1, 3);  // /dev/null

bool IsTerminal(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  const bool terminal = fd >= 0 && isatty(fd) != 0;
  if (fd >= 0) close(fd);
  return terminal;
}

}  // namespace

absl::StatusOr<std::ifstream> OpenToRead(const std::string& path, std::string_view flag) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  struct stat found{};
  const bool is_known = in && ::stat(path.c_str(), &found) == 0;
  const bool is_folder = is_known && S_ISDIR(found.st_mode);
  if (is_known && S_ISCHR(found.st_mode) && found.st_rdev != kNothing && !IsTerminal(path))
    return absl::NotFoundError(StrCat(flag, ": cannot read ", path, ": it is a device, which may have no end"));
  if (in && !is_folder) return in;
  return absl::NotFoundError(StrCat(flag, ": cannot read ", path, ": ", ErrnoText(is_folder ? EISDIR : errno)));
}

}  // namespace baton
